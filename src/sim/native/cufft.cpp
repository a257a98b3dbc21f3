// A simulated cuFFT for dry processes, beside runtime.cpp: every plan succeeds and nothing is computed. PyTorch's own code above it makes its
// copies and results. What workspace a plan takes only cuFFT knows, on a GPU; here it takes none.
#include "answers.h"

#include <cstddef>

extern "C" {
int cufftCreate(int* plan) { return is(plan, 1); }
int cufftXtMakePlanMany(int, int, long long*, long long*, long long, long long, int, long long*, long long, long long, int, long long,
                        size_t* workspace, int) {
  return is(workspace, 0);
}
// clang-format off
DONE(cufftDestroy) DONE(cufftSetAutoAllocation) DONE(cufftSetStream) DONE(cufftSetWorkArea) DONE(cufftXtExec)
// clang-format on
}
