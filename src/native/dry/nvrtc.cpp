// A simulated compiler for kernels that PyTorch compiles while it runs (its jiterator): all of them compile to nothing, which driver.cpp
// loads and launches. Built twice, under the sonames of CUDA 12's and 13's.
#include <cstddef>

namespace {
char program;

int size(size_t* bytes) {
  *bytes = 1;
  return 0;
}
int text(char* out) {
  *out = 0;
  return 0;
}
}  // namespace

extern "C" {
int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 0;
  return 0;
}
int nvrtcCreateProgram(void** made, const char*, const char*, int, const char* const*, const char* const*) {
  *made = &program;
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcAddNameExpression(void*, const char*) { return 0; }
int nvrtcGetLoweredName(void*, const char* name, const char** lowered) {
  *lowered = name;
  return 0;
}
int nvrtcGetCUBINSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetPTXSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return size(bytes); }
int nvrtcGetCUBIN(void*, char* out) { return text(out); }
int nvrtcGetPTX(void*, char* out) { return text(out); }
int nvrtcGetProgramLog(void*, char* out) { return text(out); }
const char* nvrtcGetErrorString(int) { return "no error"; }
// cuDNN looks this up and complains on the standard error if it is missing. It would compile a kernel by it before a launch, which never
// comes here: NVRTC_ERROR_INTERNAL_ERROR.
int __nvrtcCPEx(...) { return 11; }
}
