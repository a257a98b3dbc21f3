// Why scaled_dot_product_attention takes the kernel that keeps its scores: what each of the others wants and does not get, in PyTorch's own words.
#include "recorder.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace vramlab::rehearsal {
namespace {

// PyTorch's, in a library that this one is not linked with.
template <typename Function>
Function* of_pytorch(const char* name) {
  static void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

struct Words : c10::WarningHandler {
  std::string all;
  void process(const c10::Warning& warning) override {
    const std::string said = warning.msg();
    if (said.find("kernel not used because") != std::string::npos || all.find(said) != std::string::npos) return;
    all += (all.empty() ? "" : "; ") + said.substr(0, said.find(" (Triggered"));
  }
};

auto* const choose = of_pytorch<std::remove_pointer_t<at::native::fused_sdp_choice_fn>>(
    "_ZN2at6native22_fused_sdp_choice_cudaERKNS_6TensorES3_S3_RKSt8optionalIS1_EdbS4_IdEb");

int64_t choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
               std::optional<double> scale, bool enable_gqa) {
  const int64_t chosen = choose(q, k, v, mask, dropout, is_causal, scale, enable_gqa);
  if (chosen != static_cast<int64_t>(at::SDPBackend::math)) return chosen;
  tell_unfused([&] {
    using Can = bool(const sdp::sdp_params&, bool);
    const sdp::sdp_params given{q, k, v, mask, dropout, is_causal, enable_gqa};
    std::string why;
    for (const auto& [kernel, name] : {std::pair{"flash", "_ZN3sdp23can_use_flash_attentionERKNS_10sdp_paramsEb"},
                                       std::pair{"memory-efficient", "_ZN3sdp31can_use_mem_efficient_attentionERKNS_10sdp_paramsEb"}}) {
      auto* const can = of_pytorch<Can>(name);
      Words words;
      const c10::WarningUtils::WarningHandlerGuard listens(&words);
      if (can && !can(given, true) && !words.all.empty()) why += (why.empty() ? "" : "\n") + std::string(kernel) + ": " + words.all;
    }
    return why;
  });
  return chosen;
}

}  // namespace

void follow_attention() {
  if (choose) at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choice);
}

}  // namespace vramlab::rehearsal
