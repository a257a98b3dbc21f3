// A simulated cuBLAS and cuBLASLt for dry processes, beside runtime.cpp: every product succeeds and nothing is computed. PyTorch's own code
// above it takes the workspaces that it gives to the real one. The functions are those that PyTorch calls.
#include "answers.h"
#include "card.h"

#include <cstddef>
#include <cstring>

namespace {
// What descriptors point to; nobody looks inside.
char something[64];
int create(void** made) { return is(made, something); }
}  // namespace

extern "C" {
// PyTorch keeps a workspace for each handle, so no two are the same; it never gives one back.
int cublasCreate_v2(void** handle) { return is(handle, new char); }
int cublasGetPointerMode_v2(void*, int* mode) { return is(mode, 0); }
int cublasGetMathMode(void*, int* mode) { return is(mode, 0); }
size_t cublasLtGetVersion() { return 130100; }
int cublasLtMatmulDescCreate(void** made, int, int) { return create(made); }
int cublasLtMatrixLayoutCreate(void** made, int, unsigned long long, unsigned long long, long long) { return create(made); }
int cublasLtMatmulPreferenceCreate(void** made) { return create(made); }
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

// clang-format off
DONE(cublasCaxpy_v2) DONE(cublasCcopy_v2) DONE(cublasCdotc_v2) DONE(cublasCdotu_v2) DONE(cublasCgelsBatched) DONE(cublasCgemmBatched)
DONE(cublasCgemmStridedBatched) DONE(cublasCgemm_v2) DONE(cublasCgemv_v2) DONE(cublasCgeqrfBatched) DONE(cublasCgerc_v2)
DONE(cublasCgeru_v2) DONE(cublasCgetrfBatched) DONE(cublasCgetrsBatched) DONE(cublasChemm_v2) DONE(cublasChemv_v2) DONE(cublasCher2_v2)
DONE(cublasCher2k_v2) DONE(cublasCher_v2) DONE(cublasCherk_v2) DONE(cublasCrot_v2) DONE(cublasCrotg_v2) DONE(cublasCscal_v2)
DONE(cublasCsrot_v2) DONE(cublasCsscal_v2) DONE(cublasCswap_v2) DONE(cublasCsymm_v2) DONE(cublasCsymv_v2) DONE(cublasCsyr2_v2)
DONE(cublasCsyr2k_v2) DONE(cublasCsyr_v2) DONE(cublasCsyrk_v2) DONE(cublasCtrmm_v2) DONE(cublasCtrmv_v2) DONE(cublasCtrsmBatched)
DONE(cublasCtrsm_v2) DONE(cublasCtrsv_v2) DONE(cublasDasum_v2) DONE(cublasDaxpy_v2) DONE(cublasDcopy_v2) DONE(cublasDdot_v2)
DONE(cublasDestroy_v2) DONE(cublasDgelsBatched) DONE(cublasDgemmBatched) DONE(cublasDgemmStridedBatched) DONE(cublasDgemm_v2)
DONE(cublasDgemv_v2) DONE(cublasDgeqrfBatched) DONE(cublasDger_v2) DONE(cublasDgetrfBatched) DONE(cublasDgetrsBatched)
DONE(cublasDnrm2_v2) DONE(cublasDotEx) DONE(cublasDrot_v2) DONE(cublasDrotg_v2) DONE(cublasDrotm_v2) DONE(cublasDrotmg_v2)
DONE(cublasDscal_v2) DONE(cublasDswap_v2) DONE(cublasDsymm_v2) DONE(cublasDsymv_v2) DONE(cublasDsyr2_v2) DONE(cublasDsyr2k_v2)
DONE(cublasDsyr_v2) DONE(cublasDsyrk_v2) DONE(cublasDtrmm_v2) DONE(cublasDtrmv_v2) DONE(cublasDtrsmBatched) DONE(cublasDtrsm_v2)
DONE(cublasDtrsv_v2) DONE(cublasDzasum_v2) DONE(cublasDznrm2_v2) DONE(cublasGemmEx) DONE(cublasGemmStridedBatchedEx)
DONE(cublasGetMatrixAsync) DONE(cublasGetVectorAsync) DONE(cublasIcamax_v2) DONE(cublasIcamin_v2) DONE(cublasIdamax_v2)
DONE(cublasIdamin_v2) DONE(cublasIsamax_v2) DONE(cublasIsamin_v2) DONE(cublasIzamax_v2) DONE(cublasIzamin_v2)
DONE(cublasLtMatmulDescDestroy) DONE(cublasLtMatmulDescSetAttribute) DONE(cublasLtMatmulPreferenceDestroy)
DONE(cublasLtMatmulPreferenceSetAttribute) DONE(cublasLtMatrixLayoutDestroy) DONE(cublasLtMatrixLayoutSetAttribute) DONE(cublasSasum_v2)
DONE(cublasSaxpy_v2) DONE(cublasScasum_v2) DONE(cublasScnrm2_v2) DONE(cublasScopy_v2) DONE(cublasSdot_v2) DONE(cublasSetMathMode)
DONE(cublasSetMatrixAsync) DONE(cublasSetPointerMode_v2) DONE(cublasSetStream_v2) DONE(cublasSetVectorAsync)
DONE(cublasSgelsBatched) DONE(cublasSgemmBatched) DONE(cublasSgemmEx) DONE(cublasSgemmStridedBatched) DONE(cublasSgemm_v2)
DONE(cublasSgemv_v2) DONE(cublasSgeqrfBatched) DONE(cublasSger_v2) DONE(cublasSgetrfBatched) DONE(cublasSgetrsBatched)
DONE(cublasSnrm2_v2) DONE(cublasSrot_v2) DONE(cublasSrotg_v2) DONE(cublasSrotm_v2) DONE(cublasSrotmg_v2) DONE(cublasSscal_v2)
DONE(cublasSswap_v2) DONE(cublasSsymm_v2) DONE(cublasSsymv_v2) DONE(cublasSsyr2_v2) DONE(cublasSsyr2k_v2) DONE(cublasSsyr_v2)
DONE(cublasSsyrk_v2) DONE(cublasStrmm_v2) DONE(cublasStrmv_v2) DONE(cublasStrsmBatched) DONE(cublasStrsm_v2) DONE(cublasStrsv_v2)
DONE(cublasZaxpy_v2) DONE(cublasZcopy_v2) DONE(cublasZdotc_v2) DONE(cublasZdotu_v2) DONE(cublasZdrot_v2) DONE(cublasZdscal_v2)
DONE(cublasZgelsBatched) DONE(cublasZgemmBatched) DONE(cublasZgemmStridedBatched) DONE(cublasZgemm_v2) DONE(cublasZgemv_v2)
DONE(cublasZgeqrfBatched) DONE(cublasZgerc_v2) DONE(cublasZgeru_v2) DONE(cublasZgetrfBatched) DONE(cublasZgetrsBatched)
DONE(cublasZhemm_v2) DONE(cublasZhemv_v2) DONE(cublasZher2_v2) DONE(cublasZher2k_v2) DONE(cublasZher_v2) DONE(cublasZherk_v2)
DONE(cublasZrot_v2) DONE(cublasZrotg_v2) DONE(cublasZscal_v2) DONE(cublasZswap_v2) DONE(cublasZsymm_v2) DONE(cublasZsymv_v2)
DONE(cublasZsyr2_v2) DONE(cublasZsyr2k_v2) DONE(cublasZsyr_v2) DONE(cublasZsyrk_v2) DONE(cublasZtrmm_v2) DONE(cublasZtrmv_v2)
DONE(cublasZtrsmBatched) DONE(cublasZtrsm_v2) DONE(cublasZtrsv_v2)
// clang-format on
}
