// The history of PyTorch's CUDA allocator, real or dry, and its snapshot in the form that pytorch.org/memory_viz reads.
//
// Python gathers a stack of Python for each allocation, which no C++ or Rust program has. Here an allocation carries the operation in which
// it was made instead, so the context is one of our own, and the snapshot is written here: libtorch's own writer takes only its own.
#include "allocations.h"
#include "../../../sim/native/guarded.h"

#include <dlfcn.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDACachingAllocator.h>
#define VRAMLAB_HAS_CUDA 1
#endif

#ifdef VRAMLAB_HAS_CUDA
namespace {

using c10::IValue;
using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;
using Dict = c10::Dict<IValue, IValue>;

// libc10_cuda is in the process or not; nothing of it is linked.
Allocator& allocator() {
  auto* found = static_cast<std::atomic<Allocator*>*>(dlsym(RTLD_DEFAULT, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  TORCH_CHECK(found && found->load(),
              "PyTorch's CUDA allocator is not in this process, so it has no history; open a CUDA device, or a dry one, before");
  return *found->load();
}

struct Operation final : c10::GatheredContext {
  explicit Operation(const char* name) : name(name) {}
  const char* name;
};

std::shared_ptr<c10::GatheredContext> gather() {
  const char* name = vramlab::current_operation();
  return std::make_shared<Operation>(name ? name : "outside of any operation");
}

Dict new_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }
c10::List<IValue> new_list() { return c10::List<IValue>(c10::AnyType::get()); }
IValue whole(size_t number) { return static_cast<int64_t>(number); }

// One frame: the operation stands where memory_viz shows a function.
c10::List<IValue> frames(const std::shared_ptr<c10::GatheredContext>& context) {
  auto list = new_list();
  if (const auto* operation = dynamic_cast<const Operation*>(context.get())) {
    Dict frame = new_dict();
    frame.insert("name", operation->name);
    frame.insert("filename", "operation");
    frame.insert("line", whole(0));
    list.push_back(frame);
  }
  return list;
}

Dict segment(const c10::CachingDeviceAllocator::SegmentInfo& info) {
  Dict dict = new_dict();
  dict.insert("device", static_cast<int64_t>(info.device));
  dict.insert("address", whole(info.address));
  dict.insert("total_size", whole(info.total_size));
  dict.insert("allocated_size", whole(info.allocated_size));
  dict.insert("active_size", whole(info.active_size));
  dict.insert("requested_size", whole(info.requested_size));
  dict.insert("stream", reinterpret_cast<int64_t>(info.stream));
  dict.insert("segment_type", info.is_large ? "large" : "small");
  dict.insert("segment_pool_id", std::tuple<int64_t, int64_t>(info.owner_private_pool_id));
  dict.insert("is_expandable", info.is_expandable);
  dict.insert("frames", frames(info.context_when_allocated));
  auto blocks = new_list();
  size_t address = info.address;
  for (const auto& block : info.blocks) {
    Dict entry = new_dict();
    entry.insert("address", whole(address));
    entry.insert("size", whole(block.size));
    entry.insert("requested_size", whole(block.requested_size));
    entry.insert("state", block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive");
    entry.insert("frames", frames(block.context_when_allocated));
    address += block.size;
    blocks.push_back(entry);
  }
  dict.insert("blocks", blocks);
  return dict;
}

const char* name_of(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC: return "alloc";
    case TraceEntry::FREE_REQUESTED: return "free_requested";
    case TraceEntry::FREE_COMPLETED: return "free_completed";
    case TraceEntry::SEGMENT_ALLOC: return "segment_alloc";
    case TraceEntry::SEGMENT_FREE: return "segment_free";
    case TraceEntry::SEGMENT_MAP: return "segment_map";
    case TraceEntry::SEGMENT_UNMAP: return "segment_unmap";
    case TraceEntry::SNAPSHOT: return "snapshot";
    case TraceEntry::OOM: return "oom";
  }
  return "unknown";
}

std::string pickled(const IValue& value) {
  std::string bytes;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { bytes.append(data, size); }, nullptr, nullptr, nullptr, nullptr,
                              false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return bytes;
}

}  // namespace
#endif

extern "C" {

// Begins to keep the last `entries` allocations and frees of all CUDA devices; what was kept before is forgotten.
char* vl_memory_history_begin(uint64_t entries) {
  return guarded([&] {
#ifdef VRAMLAB_HAS_CUDA
    allocator().recordHistory(true, &gather, entries, RecordContext::ALL, /*clearHistory=*/true, {});
    vramlab::name_operations(vramlab::Naming::kHistory, true);
#else
    TORCH_CHECK(false, "this program was built with a libtorch without CUDA, whose allocator alone has a history");
#endif
  });
}

void vl_memory_history_end() {
#ifdef VRAMLAB_HAS_CUDA
  free(guarded([&] {
    vramlab::name_operations(vramlab::Naming::kHistory, false);
    allocator().recordHistory(false, nullptr, 1, RecordContext::NEVER, /*clearHistory=*/true, {});
  }));
#endif
}

// Writes what is held and what was kept, as torch.cuda.memory._snapshot() of PyTorch 2.11 does; gives how many entries were kept and the
// bytes that their allocations asked for.
char* vl_memory_history_save(const char* path, uint64_t* entries, int64_t* allocated) {
  return guarded([&] {
#ifdef VRAMLAB_HAS_CUDA
    const auto snapshot = allocator().snapshot();
    *entries = 0;
    *allocated = 0;
    auto segments = new_list();
    for (const auto& info : snapshot.segments) segments.push_back(segment(info));
    auto traces = new_list();
    for (const auto& of_device : snapshot.device_traces) {
      auto trace = new_list();
      for (const TraceEntry& entry : of_device) {
        // The snapshot itself, which is the last.
        if (entry.action_ == TraceEntry::SNAPSHOT) continue;
        Dict dict = new_dict();
        dict.insert("action", name_of(entry.action_));
        dict.insert(entry.action_ == TraceEntry::OOM ? "device_free" : "addr", whole(entry.addr_));
        dict.insert("size", whole(entry.size_));
        dict.insert("stream", reinterpret_cast<int64_t>(entry.stream_));
        dict.insert("time_us", static_cast<int64_t>(entry.time_.t_));
        dict.insert("frames", frames(entry.context_));
        trace.push_back(dict);
        ++*entries;
        if (entry.action_ == TraceEntry::ALLOC) *allocated += static_cast<int64_t>(entry.size_);
      }
      traces.push_back(trace);
    }
    Dict settings = new_dict();
    settings.insert("PYTORCH_CUDA_ALLOC_CONF", snapshot.config_metadata.last_allocator_settings);
    settings.insert("expandable_segments", snapshot.config_metadata.expandable_segments);
    Dict result = new_dict();
    result.insert("segments", segments);
    result.insert("device_traces", traces);
    result.insert("allocator_settings", settings);
    result.insert("external_annotations", new_list());
    const std::string bytes = pickled(result);
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    TORCH_CHECK(file.good(), "writing ", path, ": ", std::strerror(errno));
#else
    TORCH_CHECK(false, "this program was built with a libtorch without CUDA, whose allocator alone has a history");
#endif
  });
}
}
