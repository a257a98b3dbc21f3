// Values under rehearsal: integers are real, floating point is a placeholder.
//
// Memory of the simulated card holds nothing. What a script reads back decides where it goes, so tensors of integers and booleans, and small
// ones of floating point that came from the host, have their values in a shadow on the CPU: an operator whose inputs all have one is run
// there, too. Where a value hangs on numbers that nobody computed, the answer of a healthy run is given, and recorded: `item()`
// 0, `isfinite` and `all` true, `isnan` and `isinf` false, `equal` and `allclose` true, samples 0; `argmax`, `topk` and `sort` choose in turn,
// so that experts have equally many tokens; whole numbers are looked up and written in turn, and where a mask says so every other one; a shape
// that hangs on a mask is the largest that it could be. What a kernel that is not PyTorch's was given is known no more. With
// VRAMLAB_REHEARSAL_OTHER_VALUES made-up values are others: large numbers, the other truth, all tokens at the first expert.
#pragma once
#include "recorder.h"

namespace vramlab::rehearsal {

// Puts a kernel around each of CUDA's; after ../kernels are registered.
void follow_values();
// Leaves large floating-point tensors on the host as they are, whatever is written to them: `--no-init`.
void leave_untouched();
// A block is given back, and what it held with it. Takes no lock but its own.
void forget_values(uint64_t address);
// A kernel that is not PyTorch's was given these addresses, and may have written there.
EXPORTED void vl_lose(const uint64_t* addresses, size_t count);

}  // namespace vramlab::rehearsal
