// A simulated compiler for kernels that PyTorch compiles while it runs (its jiterator): all of them compile to nothing, which driver.cpp
// loads and launches. Built twice, under the sonames of CUDA 12's and 13's.
#include "answers.h"

#include <dlfcn.h>

#include <cstddef>

namespace {
char program;

int size(size_t* bytes) { return is(bytes, 1); }
int text(char* out) { return is(out, 0); }
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
int nvrtcCreateProgram(void** made, const char*, const char*, int, const char* const*, const char* const*) { return is(made, &program); }
int nvrtcGetLoweredName(void*, const char* name, const char** lowered) { return is(lowered, name); }
int nvrtcGetCUBINSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetPTXSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetCUBIN(void*, char* out) { return text(out); }
int nvrtcGetPTX(void*, char* out) { return text(out); }
int nvrtcGetProgramLog(void*, char* out) { return text(out); }
DONE(nvrtcAddNameExpression) DONE(nvrtcCompileProgram) DONE(nvrtcDestroyProgram)
const char* nvrtcGetErrorString(int) { return "no error"; }
// By this cuDNN compiles attention's kernels when it builds a plan, which tells its workspace and is never run.
int __nvrtcCPEx(...) { return 0; }
}
