// A simulated compiler for kernels that PyTorch compiles while it runs (its jiterator): all of them compile to nothing, which driver.cpp
// loads and launches. Built twice, under the sonames of CUDA 12's and 13's.
#include "answers.h"

#include <dlfcn.h>

#include <cstddef>

namespace {
char program;
}  // namespace

extern "C" {
// That of the CUDA runtime, as cuDNN wants it.
int nvrtcVersion(int* major, int* minor) {
  int version = 12000;
  if (auto* const runtime = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "cudaRuntimeGetVersion"))) runtime(&version);
  *major = version / 1000;
  *minor = version % 1000 / 10;
  return 0;
}
GIVES(nvrtcCreateProgram, void*, &program)
int nvrtcGetLoweredName(void*, const char* name, const char** lowered) { return is(lowered, name); }
// Empty texts, of the zero at their end alone.
#define EMPTY(name) \
  int name##Size(void*, size_t* bytes) { return is(bytes, 1); } \
  int name(void*, char* out) { return is(out, 0); }
EMPTY(nvrtcGetCUBIN) EMPTY(nvrtcGetPTX) EMPTY(nvrtcGetProgramLog)
DONE(nvrtcAddNameExpression) DONE(nvrtcCompileProgram) DONE(nvrtcDestroyProgram)
const char* nvrtcGetErrorString(int) { return "no error"; }
// By this cuDNN compiles attention's kernels when it builds a plan, which tells its workspace and is never run.
int __nvrtcCPEx(...) { return 0; }
}
