// What is set in libtorch that changes figures, read by the same code in the lab's programs and in the Python that they are compared with.
#include "../../../sim/native/guarded.h"
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/DefaultDtype.h>
#include <cstdint>
#include <string>

namespace {

const char* truth(bool value) { return value ? "true" : "false"; }

// Whether results below the normal range become zero, in this thread; libtorch sets it and has no way to read it.
const char* denormals() {
#if defined(__x86_64__) || defined(__i386__)
  constexpr uint32_t kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  return truth(__builtin_ia32_stmxcsr() & (kFlushToZero | kDenormalsAreZero));
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return truth(control & (1ull << 24));
#else
  return "unknown";
#endif
}

}  // namespace

extern "C" {

// Tells each setting by its name, in no order.
char* vl_settings(void* taker, void (*take)(void*, const char*, const char*)) {
  return guarded([&] {
    const auto& context = at::globalContext();
    const auto tell = [&](const char* name, const std::string& value) { take(taker, name, value.c_str()); };
    tell("threads", std::to_string(at::get_num_threads()));
    tell("interop threads", std::to_string(at::get_num_interop_threads()));
    tell("vector instructions", at::get_cpu_capability());
    tell("oneDNN", truth(context.userEnabledMkldnn()));
    tell("oneDNN tf32", truth(context.allowTF32OneDNN()));
    tell("fp16 reduction on CPU", truth(context.allowFP16ReductionCPU()));
    tell("denormals to zero", denormals());
    tell("default kind", c10::toString(c10::get_default_dtype_as_scalartype()));
    tell("tf32 matmul", truth(context.allowTF32CuBLAS()));
    tell("tf32 cudnn", truth(context.allowTF32CuDNN()));
    tell("cudnn", truth(context.userEnabledCuDNN()));
    tell("cudnn benchmark", truth(context.benchmarkCuDNN()));
    tell("cudnn deterministic", truth(context.deterministicCuDNN()));
    tell("deterministic", truth(context.deterministicAlgorithms()));
  });
}
}
