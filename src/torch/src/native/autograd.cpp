// Inference mode, which tch lacks.
#include <c10/core/InferenceMode.h>

#include "../../../sim/native/guarded.h"

extern "C" {
// Begins a region of inference mode on this thread and gives what ends it.
char* vl_inference_enter(c10::InferenceMode** out) {
  return guarded([&] { *out = new c10::InferenceMode(true); });
}

// Regions end on the thread that began them, in reverse order: the guard puts back the dispatch keys that it found.
void vl_inference_leave(c10::InferenceMode* region) { delete region; }
}
