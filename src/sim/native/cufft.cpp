// A simulated cuFFT for dry processes, beside runtime.cpp: every plan succeeds and nothing is computed. PyTorch's own code above it makes its
// copies and results. What workspace a plan takes only cuFFT knows, on a GPU; here it takes none.
#include <cstddef>

extern "C" {
int cufftCreate(int* plan) {
  *plan = 1;
  return 0;
}
int cufftXtMakePlanMany(int, int, long long*, long long*, long long, long long, int, long long*, long long, long long, int, long long,
                        size_t* workspace, int) {
  *workspace = 0;
  return 0;
}
int cufftDestroy() { return 0; }
int cufftSetAutoAllocation() { return 0; }
int cufftSetStream() { return 0; }
int cufftSetWorkArea() { return 0; }
int cufftXtExec() { return 0; }
}
