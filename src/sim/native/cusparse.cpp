// A simulated cuSPARSE for dry processes, beside runtime.cpp: what has a result of a known size succeeds and computes nothing. PyTorch's own
// code above it makes its copies and results. What buffer an algorithm takes only cuSPARSE knows, on a GPU; here it takes none. Where the
// result is sparse itself, values decide its size, and the call is refused.
#include "answers.h"

#include <cstddef>

namespace {
// What descriptors point to; nobody looks inside.
char something[64];
// CUSPARSE_STATUS_NOT_SUPPORTED
constexpr int kRefused = 10;
}  // namespace

extern "C" {
const char* cusparseGetErrorString(int status) {
  if (status == 0) return "no error";
  return status == kRefused ? "values decide how many elements the result has, and none are computed" : "there is none";
}

#define CREATE(name) GIVES(name, void*, something)
// clang-format off
CREATE(cusparseCreate) CREATE(cusparseCreateBsrsm2Info) CREATE(cusparseCreateBsrsv2Info) CREATE(cusparseCreateCoo) CREATE(cusparseCreateCsr)
CREATE(cusparseCreateDnMat) CREATE(cusparseCreateDnVec) CREATE(cusparseCreateMatDescr) CREATE(cusparseSpGEMM_createDescr)
CREATE(cusparseSpSM_createDescr) CREATE(cusparseSpSV_createDescr)
// clang-format on

using Any = const void*;
#define NO_BUFFER(name, ...) int name(__VA_ARGS__, size_t* bytes) { return is(bytes, 0); }
NO_BUFFER(cusparseSDDMM_bufferSize, Any, int, int, Any, Any, Any, Any, Any, int, int)
NO_BUFFER(cusparseSpMM_bufferSize, Any, int, int, Any, Any, Any, Any, Any, int, int)
NO_BUFFER(cusparseSpMV_bufferSize, Any, int, Any, Any, Any, Any, Any, int, int)
NO_BUFFER(cusparseSpSM_bufferSize, Any, int, int, Any, Any, Any, Any, int, int, Any)
NO_BUFFER(cusparseSpSV_bufferSize, Any, int, Any, Any, Any, Any, int, int, Any)
NO_BUFFER(cusparseXcoosort_bufferSizeExt, Any, int, int, int, Any, Any)
NO_BUFFER(cusparseXcsrsort_bufferSizeExt, Any, int, int, int, Any, Any)

// Of blocks: int in the place of size_t.
#define OF_BLOCKS(type)                                                                                                                        \
  int cusparse##type##bsrsm2_bufferSize(Any, int, int, int, int, int, int, Any, Any, Any, Any, int, Any, int* bytes) { return is(bytes, 0); } \
  int cusparse##type##bsrsv2_bufferSize(Any, int, int, int, int, Any, Any, Any, Any, int, Any, int* bytes) { return is(bytes, 0); }
OF_BLOCKS(S) OF_BLOCKS(D) OF_BLOCKS(C) OF_BLOCKS(Z)

#define REFUSED(name) ANSWERS(name, kRefused)
#define OF_ALL(answer, name) answer(cusparseS##name) answer(cusparseD##name) answer(cusparseC##name) answer(cusparseZ##name)
// clang-format off
OF_ALL(REFUSED, csrgeam2) OF_ALL(REFUSED, csrgeam2_bufferSizeExt) REFUSED(cusparseSpGEMM_compute) REFUSED(cusparseSpGEMM_copy)
REFUSED(cusparseSpGEMM_workEstimation) REFUSED(cusparseSpMatGetSize) REFUSED(cusparseXcsrgeam2Nnz)
OF_ALL(DONE, bsrmm) OF_ALL(DONE, bsrmv) OF_ALL(DONE, bsrsm2_analysis) OF_ALL(DONE, bsrsm2_solve) OF_ALL(DONE, bsrsv2_analysis)
OF_ALL(DONE, bsrsv2_solve)
DONE(cusparseCreateIdentityPermutation) DONE(cusparseCsrSetPointers) DONE(cusparseCsrSetStridedBatch) DONE(cusparseDestroy)
DONE(cusparseDestroyBsrsm2Info) DONE(cusparseDestroyBsrsv2Info) DONE(cusparseDestroyDnMat) DONE(cusparseDestroyDnVec)
DONE(cusparseDestroyMatDescr) DONE(cusparseDestroySpMat) DONE(cusparseDnMatSetStridedBatch) DONE(cusparseSDDMM)
DONE(cusparseSDDMM_preprocess) DONE(cusparseSetMatDiagType) DONE(cusparseSetMatFillMode) DONE(cusparseSetMatIndexBase)
DONE(cusparseSetMatType) DONE(cusparseSetPointerMode) DONE(cusparseSetStream) DONE(cusparseSpGEMM_destroyDescr) DONE(cusparseSpMM)
DONE(cusparseSpMV) DONE(cusparseSpMatSetAttribute) DONE(cusparseSpSM_analysis) DONE(cusparseSpSM_destroyDescr) DONE(cusparseSpSM_solve)
DONE(cusparseSpSV_analysis) DONE(cusparseSpSV_destroyDescr) DONE(cusparseSpSV_solve) DONE(cusparseXbsrsm2_zeroPivot)
DONE(cusparseXbsrsv2_zeroPivot) DONE(cusparseXcoo2csr) DONE(cusparseXcoosortByRow) DONE(cusparseXcsrsort)
// clang-format on
}
