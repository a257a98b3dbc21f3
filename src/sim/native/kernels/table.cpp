// How far the allocations of an operator are those of a GPU.
//
// Every operator that is not here runs PyTorch's own CUDA code and is exact: allocations, sizes, order and lifetimes are what that code asks
// for on the simulated GPU, cuBLAS's workspaces, reductions' staging buffers and CUB's temporary storage among them. One thing in
// it is assumed: how many blocks of a kernel a multiprocessor holds (../launches.cpp), which sizes the storage of CUB's reductions and
// selections (nonzero, masked_select, unique, boolean indices). Where values decide a shape, a rehearsal gives the largest that it could be
// (../python/values.h), and the lab refuses (values.cpp).
#include "kernels.h"

#include <cstring>
#include <string_view>

namespace vramlab::dry {
namespace {

enum class Standing {
  // As in the named source.
  kExact,
  // As in the named source, with something taken on trust.
  kAssumed,
  // PyTorch's own code; what the named library takes for itself is unknown, and a rehearsal says so.
  kLibrary,
  // Results only, and as above.
  kNone,
};
struct Row {
  const char* name;
  Standing standing;
  const char* source;
  bool registered = false;
};

// clang-format off
Row table[] = {
    {"_local_scalar_dense", Standing::kExact, "Copy.cu: a copy to host memory and nothing on the device"},
    {"cudnn_convolution", Standing::kExact, "PyTorch's own code, and the workspaces that cuDNN's heuristics choose; with a cuDNN before 9.8 "
     "result and contiguous copies as in Conv_v8.cpp and ConvShared.cpp, and no workspace"},
    {"cudnn_convolution_transpose", Standing::kAssumed, "as cudnn_convolution"},
    {"cudnn_batch_norm", Standing::kAssumed, "BatchNorm.cpp: results; workspace and reserve taken for nothing"},
    {"cudnn_batch_norm_backward", Standing::kAssumed, "as cudnn_batch_norm"},
    {"_scaled_dot_product_cudnn_attention", Standing::kExact, "PyTorch's own code, and the workspaces of the plans that cuDNN's heuristics "
     "choose; with a cuDNN before 9.19 results and random state as in MHA.cpp, and no workspace"},
    {"_scaled_dot_product_cudnn_attention_backward", Standing::kExact, "as _scaled_dot_product_cudnn_attention; of the workspace an fp32 copy "
     "of dQ is most"},
    {"_fft_c2c", Standing::kLibrary, "cuFFT"},
    {"_fft_r2c", Standing::kLibrary, "cuFFT"},
    {"_fft_c2r", Standing::kLibrary, "cuFFT"},
    {"geqrf", Standing::kNone, "cuSOLVER or MAGMA"},
    // By their key and not by name: addmm, mm, mv, bmm, hspmm, sparse_sampled_addmm, triangular_solve of SparseCUDA and SparseCsrCUDA.
    {"products of sparse matrices", Standing::kAssumed, "PyTorch's own code; cuSPARSE's buffers taken for nothing. A sparse result is "
     "refused: values decide its size"},
    {"_cudnn_rnn", Standing::kAssumed, "PyTorch's own code; sizes of what cuDNN keeps and takes by ../rnn.cpp's formulas"},
    {"_cudnn_rnn_backward", Standing::kAssumed, "as _cudnn_rnn"},
    {"_cudnn_rnn_flatten_weight", Standing::kAssumed, "PyTorch's own code, and cuDNN's layout without padding by ../rnn.cpp"},
    {"_cudnn_init_dropout_state", Standing::kAssumed, "PyTorch's own code; 48 bytes for every second thread of the card"},
    {"_cudnn_ctc_loss", Standing::kLibrary, "cuDNN"},
    {"cudnn_grid_sampler", Standing::kExact, "PyTorch's own code; cuDNN takes no workspace for it"},
    {"cudnn_grid_sampler_backward", Standing::kExact, "as cudnn_grid_sampler"},
    {"cudnn_affine_grid_generator", Standing::kExact, "as cudnn_grid_sampler"},
    {"cudnn_affine_grid_generator_backward", Standing::kExact, "as cudnn_grid_sampler"},
    {"cudnn_convolution_relu", Standing::kAssumed, "as cudnn_convolution; with a cuDNN before 9.8 refused"},
    {"cudnn_convolution_add_relu", Standing::kAssumed, "as cudnn_convolution"},
};
// clang-format on

}  // namespace

void mark_registered(const char* name) {
  for (Row& row : table) {
    if (std::strcmp(row.name, name) == 0) {
      row.registered = true;
      return;
    }
  }
  TORCH_CHECK(false, name, " has a kernel and no row in the table of src/sim/native/kernels/table.cpp, which says how far it is exact");
}

const char* uncounted(std::string_view name) {
  const auto base = [](std::string_view of) { return of.substr(0, of.find('.')); };
  constexpr std::string_view kNamespace = "aten::";
  if (name.substr(0, kNamespace.size()) == kNamespace) name.remove_prefix(kNamespace.size());
  for (const Row& row : table)
    if (row.standing >= Standing::kLibrary && base(row.name) == base(name)) return row.source;
  for (const char* own : kLinearAlgebra)
    if (base(own) == base(name)) return "cuSOLVER or MAGMA";
  return nullptr;
}

void check_all_registered() {
  for (const Row& row : table) TORCH_CHECK(row.registered, row.name, " has a row in src/sim/native/kernels/table.cpp and no kernel");
}

}  // namespace vramlab::dry
