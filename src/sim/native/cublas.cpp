// A simulated cuBLAS and cuBLASLt for dry processes, beside runtime.cpp: every product succeeds and nothing is computed. PyTorch's own code
// above it takes the workspaces that it gives to the real one. The functions are those that PyTorch calls.
#include "answers.h"
#include "card.h"

#include <cstddef>
#include <cstring>

namespace {
// What descriptors point to; nobody looks inside.
char something[64];
}  // namespace

extern "C" {
// PyTorch keeps a workspace for each handle, so no two are the same; it never gives one back.
int cublasCreate_v2(void** handle) {
  vramlab_dry_load_code();
  return is(handle, new char);
}
int cublasGetPointerMode_v2(void*, int* mode) { return is(mode, 0); }
int cublasGetMathMode(void*, int* mode) { return is(mode, 0); }
size_t cublasLtGetVersion() { return 130100; }
#define MADE(name) GIVES(name, void*, something)
MADE(cublasLtMatmulDescCreate) MADE(cublasLtMatmulPreferenceCreate) MADE(cublasLtMatrixLayoutCreate)
// One algorithm, which succeeds and needs no more workspace than it is given.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* found) {
  constexpr size_t kResultSize = 96;
  std::memset(results, 0, kResultSize);
  *found = 1;
  return 0;
}

int cublasSetWorkspace_v2(void*, const void* workspace, size_t) {
  if (vramlab_dry_watch && workspace) vramlab_dry_watch(kVramlabWorkspace, workspace);
  return 0;
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
                   const void*, const void* workspace, size_t, void*) {
  return cublasSetWorkspace_v2(nullptr, workspace, 0);
}

// Of numbers of each type, whose letter the name has: S and D are real, C and Z complex.
#define OF_REAL(name) DONE(cublasS##name) DONE(cublasD##name)
#define OF_COMPLEX(name) DONE(cublasC##name) DONE(cublasZ##name)
#define OF_ALL(name) OF_REAL(name) OF_COMPLEX(name)
// clang-format off
OF_ALL(axpy_v2) OF_ALL(copy_v2) OF_ALL(gelsBatched) OF_ALL(gemmBatched) OF_ALL(gemmStridedBatched) OF_ALL(gemm_v2) OF_ALL(gemv_v2)
OF_ALL(geqrfBatched) OF_ALL(getrfBatched) OF_ALL(getrsBatched) OF_ALL(rot_v2) OF_ALL(rotg_v2) OF_ALL(scal_v2) OF_ALL(swap_v2)
OF_ALL(symm_v2) OF_ALL(symv_v2) OF_ALL(syr2_v2) OF_ALL(syr2k_v2) OF_ALL(syr_v2) OF_ALL(syrk_v2) OF_ALL(trmm_v2) OF_ALL(trmv_v2)
OF_ALL(trsmBatched) OF_ALL(trsm_v2) OF_ALL(trsv_v2)
OF_COMPLEX(dotc_v2) OF_COMPLEX(dotu_v2) OF_COMPLEX(gerc_v2) OF_COMPLEX(geru_v2) OF_COMPLEX(hemm_v2) OF_COMPLEX(hemv_v2) OF_COMPLEX(her2_v2)
OF_COMPLEX(her2k_v2) OF_COMPLEX(her_v2) OF_COMPLEX(herk_v2)
OF_REAL(asum_v2) OF_REAL(dot_v2) OF_REAL(ger_v2) OF_REAL(nrm2_v2) OF_REAL(rotm_v2) OF_REAL(rotmg_v2)
DONE(cublasCsrot_v2) DONE(cublasCsscal_v2) DONE(cublasDestroy_v2) DONE(cublasDotEx) DONE(cublasDzasum_v2) DONE(cublasDznrm2_v2)
DONE(cublasGemmEx) DONE(cublasGemmStridedBatchedEx) DONE(cublasGetMatrixAsync) DONE(cublasGetVectorAsync) DONE(cublasIcamax_v2)
DONE(cublasIcamin_v2) DONE(cublasIdamax_v2) DONE(cublasIdamin_v2) DONE(cublasIsamax_v2) DONE(cublasIsamin_v2) DONE(cublasIzamax_v2)
DONE(cublasIzamin_v2) DONE(cublasLtMatmulDescDestroy) DONE(cublasLtMatmulDescSetAttribute) DONE(cublasLtMatmulPreferenceDestroy)
DONE(cublasLtMatmulPreferenceSetAttribute) DONE(cublasLtMatrixLayoutDestroy) DONE(cublasLtMatrixLayoutSetAttribute) DONE(cublasScasum_v2)
DONE(cublasScnrm2_v2) DONE(cublasSetMathMode) DONE(cublasSetMatrixAsync) DONE(cublasSetPointerMode_v2) DONE(cublasSetStream_v2)
DONE(cublasSetVectorAsync) DONE(cublasSgemmEx) DONE(cublasZdrot_v2) DONE(cublasZdscal_v2)
// clang-format on
}
