// The simulated GPU under a user's Python, which has loaded libtorch_cuda over the simulated runtime: the kernels of ../kernels take the
// place of those of PyTorch's that cannot run so, and the recorder follows the allocator. Opened by src/rehearse/python when CUDA comes up;
// built for each version of PyTorch.
#include "../guarded.h"
#include "../kernels/kernels.h"
#include "recorder.h"
#include "values.h"
#include "work.h"

#include <c10/util/Logging.h>
#include <dlfcn.h>

namespace {

void register_all() {
  const vramlab::dry::Quiet quiet{};
  vramlab::dry::register_kernels();
  vramlab::rehearsal::follow_values();
  vramlab::rehearsal::follow_attention();
  auto** const launched = static_cast<void (**)(const uint64_t*, size_t)>(dlsym(RTLD_DEFAULT, "vramlab_dry_launched"));
  if (launched) *launched = &vramlab::rehearsal::vl_lose;
}

}  // namespace

// ---- for Python, by ctypes; the others stand where what they do is told of -----------------------------------------------------------------

// Messages are the caller's, who gives them back to vl_forget.
EXPORTED void vl_forget(char* message) { std::free(message); }

EXPORTED char* vl_open(const char* folder) {
  return guarded([&] {
    TORCH_CHECK(dlsym(RTLD_DEFAULT, "vramlab_dry_memory"), "this process has no simulated CUDA runtime");
    vramlab::rehearsal::open_recorder(folder);
    register_all();
    vramlab::rehearsal::follow_allocator();
    vramlab::rehearsal::gather_stacks(false, 1);
  });
}

// Before CUDA comes up: models are made on the host.
EXPORTED char* vl_leave_untouched() {
  return guarded([] {
    const vramlab::dry::Quiet quiet{};
    vramlab::rehearsal::leave_untouched();
  });
}

EXPORTED char* vl_gather_stacks(int theirs, uint64_t entries) {
  return guarded([&] { vramlab::rehearsal::gather_stacks(theirs != 0, entries); });
}
EXPORTED void vl_refused(const char* what) { vramlab::rehearsal::refused(what); }
// Of each label its address, its category and the number of its tensor's name.
EXPORTED void vl_label(const uint64_t* labels, size_t count) {
  for (size_t i = 0; i < count; i++)
    vramlab::rehearsal::label(labels[3 * i], static_cast<vramlab::rehearsal::Label>(labels[3 * i + 1]), static_cast<uint32_t>(labels[3 * i + 2]));
}
