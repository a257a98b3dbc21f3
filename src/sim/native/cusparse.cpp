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

#define CREATE(name) int name(void** made) { return is(made, something); }
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
// clang-format off
REFUSED(cusparseCcsrgeam2) REFUSED(cusparseCcsrgeam2_bufferSizeExt) REFUSED(cusparseDcsrgeam2) REFUSED(cusparseDcsrgeam2_bufferSizeExt)
REFUSED(cusparseScsrgeam2) REFUSED(cusparseScsrgeam2_bufferSizeExt) REFUSED(cusparseSpGEMM_compute) REFUSED(cusparseSpGEMM_copy)
REFUSED(cusparseSpGEMM_workEstimation) REFUSED(cusparseSpMatGetSize) REFUSED(cusparseXcsrgeam2Nnz) REFUSED(cusparseZcsrgeam2)
REFUSED(cusparseZcsrgeam2_bufferSizeExt)
// clang-format on

// clang-format off
DONE(cusparseCbsrmm) DONE(cusparseCbsrmv) DONE(cusparseCbsrsm2_analysis) DONE(cusparseCbsrsm2_solve) DONE(cusparseCbsrsv2_analysis)
DONE(cusparseCbsrsv2_solve) DONE(cusparseCreateIdentityPermutation) DONE(cusparseCsrSetPointers) DONE(cusparseCsrSetStridedBatch)
DONE(cusparseDbsrmm) DONE(cusparseDbsrmv) DONE(cusparseDbsrsm2_analysis) DONE(cusparseDbsrsm2_solve) DONE(cusparseDbsrsv2_analysis)
DONE(cusparseDbsrsv2_solve) DONE(cusparseDestroy) DONE(cusparseDestroyBsrsm2Info) DONE(cusparseDestroyBsrsv2Info)
DONE(cusparseDestroyDnMat) DONE(cusparseDestroyDnVec) DONE(cusparseDestroyMatDescr) DONE(cusparseDestroySpMat)
DONE(cusparseDnMatSetStridedBatch) DONE(cusparseSDDMM) DONE(cusparseSDDMM_preprocess) DONE(cusparseSbsrmm) DONE(cusparseSbsrmv)
DONE(cusparseSbsrsm2_analysis) DONE(cusparseSbsrsm2_solve) DONE(cusparseSbsrsv2_analysis) DONE(cusparseSbsrsv2_solve)
DONE(cusparseSetMatDiagType) DONE(cusparseSetMatFillMode) DONE(cusparseSetMatIndexBase) DONE(cusparseSetMatType)
DONE(cusparseSetPointerMode) DONE(cusparseSetStream) DONE(cusparseSpGEMM_destroyDescr) DONE(cusparseSpMM) DONE(cusparseSpMV)
DONE(cusparseSpMatSetAttribute) DONE(cusparseSpSM_analysis) DONE(cusparseSpSM_destroyDescr) DONE(cusparseSpSM_solve)
DONE(cusparseSpSV_analysis) DONE(cusparseSpSV_destroyDescr) DONE(cusparseSpSV_solve) DONE(cusparseXbsrsm2_zeroPivot)
DONE(cusparseXbsrsv2_zeroPivot) DONE(cusparseXcoo2csr) DONE(cusparseXcoosortByRow) DONE(cusparseXcsrsort) DONE(cusparseZbsrmm)
DONE(cusparseZbsrmv) DONE(cusparseZbsrsm2_analysis) DONE(cusparseZbsrsm2_solve) DONE(cusparseZbsrsv2_analysis)
DONE(cusparseZbsrsv2_solve)
// clang-format on
}
