// PyTorch's own profiler (Kineto), which tch lacks: the one behind Python's torch.profiler.
#include "../../../sim/native/guarded.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// Kineto records for one owner in a process.
std::atomic<bool> running{false};

struct Options {
  int32_t shapes;
  int32_t memory;
  int32_t flops;
  int32_t cuda;
};

struct Event {
  const char* name;
  const char* shapes;
  int64_t start_ns;
  int64_t duration_ns;
  uint64_t thread;
  int64_t bytes;
  uint64_t flops;
  // libkineto's ActivityType.
  int32_t activity;
  // A CUDA device's number; -1 is the CPU.
  int32_t device;
};

struct Profile {
  std::unique_ptr<profiler::ProfilerResult> result;
  std::vector<std::string> names, shapes;
  std::vector<Event> events;
};

std::string shapes_of(const profiler::KinetoEvent& event) {
  std::string text;
  if (!event.hasShapes()) return text;
  for (const std::vector<int64_t>& shape : event.shapes()) {
    text += text.empty() ? "[" : ", [";
    for (size_t i = 0; i < shape.size(); i++) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    text += "]";
  }
  return text;
}

void gather(Profile& profile) {
  const auto& all = profile.result->events();
  // Pointers into these must hold.
  profile.names.reserve(all.size());
  profile.shapes.reserve(all.size());
  for (const profiler::KinetoEvent& event : all) {
    if (event.isHiddenEvent()) continue;
    const bool on_cuda = event.deviceType() == c10::DeviceType::CUDA;
    profile.names.push_back(event.name());
    profile.shapes.push_back(shapes_of(event));
    profile.events.push_back({profile.names.back().c_str(), profile.shapes.back().c_str(), static_cast<int64_t>(event.startNs()),
                              static_cast<int64_t>(event.durationNs()), event.startThreadId(), event.nBytes(), event.flops(),
                              event.activityType(), on_cuda ? event.deviceIndex() : -1});
  }
}

}  // namespace

extern "C" {

// Begins to record on this thread, and on those that run backward passes for it.
char* vl_profiler_begin(const Options* options) {
  return guarded([&] {
    // Kineto looks for a GPU, finds the simulated runtime, and now and then leaves the heap corrupted.
    TORCH_CHECK(!dlsym(RTLD_DEFAULT, "vramlab_dry_memory"),
                "PyTorch's profiler cannot run beside a simulated GPU; record the allocations there instead");
    TORCH_CHECK(!running.exchange(true),
                "a profiler is recording already, and a process has one at a time: end it before the next one begins");
    try {
      const ProfilerConfig config(ProfilerState::KINETO, options->shapes != 0 || options->flops != 0, options->memory != 0,
                                  /*with_stack=*/false, options->flops != 0);
      std::set<ActivityType> activities{ActivityType::CPU};
      if (options->cuda) activities.insert(ActivityType::CUDA);
      profiler::prepareProfiler(config, activities);
      profiler::enableProfiler(config, activities);
    } catch (...) {
      running = false;
      throw;
    }
  });
}

// Ends it, on the thread that began it, and gives what it recorded.
char* vl_profiler_end(Profile** out) {
  return guarded([&] {
    running = false;
    auto profile = std::make_unique<Profile>();
    profile->result = profiler::disableProfiler();
    gather(*profile);
    *out = profile.release();
  });
}

void vl_profile_free(Profile* profile) { delete profile; }

void vl_profile_events(const Profile* profile, void* taker, void (*take)(void*, const Event*, size_t)) {
  take(taker, profile->events.data(), profile->events.size());
}

// Writes the trace as JSON in the Trace Event Format.
char* vl_profile_save(Profile* profile, const char* path) {
  return guarded([&] { profile->result->save(path); });
}

// Begins a named range of this thread, which the profiler shows.
char* vl_range_enter(const char* name, at::RecordFunction** out) {
  return guarded([&] {
    auto range = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (range->isActive()) range->before(std::string(name));
    *out = range.release();
  });
}

void vl_range_leave(at::RecordFunction* range) { delete range; }
}
