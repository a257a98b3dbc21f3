#include "recorder.h"
#include "../card.h"
#include "values.h"
#include "work.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

// The little of Python's C interface that tells where a thread is. Declared by hand: one library serves every CPython.
extern "C" {
struct PyThreadState;
struct PyFrameObject;
struct _object;
using PyObject = _object;
struct PyCodeObject;
PyThreadState* PyGILState_GetThisThreadState();
int PyGILState_Ensure();
int PyGILState_Check();
void PyGILState_Release(int);
PyFrameObject* PyEval_GetFrame();
PyFrameObject* PyFrame_GetBack(PyFrameObject*);
PyCodeObject* PyFrame_GetCode(PyFrameObject*);
int PyFrame_GetLineNumber(PyFrameObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyUnicode_AsEncodedString(PyObject*, const char*, const char*);
char* PyBytes_AsString(PyObject*);
void PyErr_Clear();
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
}

namespace vramlab::rehearsal {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
// In older versions of PyTorch these are CUDA's allocator's own, in newer ones every device's.
using Entry = caching::TraceEntry;

// ---- the two files -----------------------------------------------------------------------------------------------------------------------

constexpr size_t kHeader = 64, kChunk = 4 << 20;

std::mutex mutex;
TraceFile events_file, names_file;
std::string lost_path;
size_t written = kHeader;
char* chunk = nullptr;
size_t chunk_begin = 0;
std::chrono::steady_clock::time_point began;

std::atomic<uint32_t> step{0};
std::atomic<Phase> current_phase{Phase::kLoad};
std::atomic<uint32_t> backward_stack{0};
std::atomic<std::thread::id> backward_thread{};
std::atomic<bool> python_is_there{true};

thread_local uint32_t current_stack = 0, current_origin = 0, current_module = 0, origin_module = 0, current_operator = 0;
// Where this thread's tries stand in the file that were too much, and how many of all threads reached the script.
thread_local std::vector<size_t> ran_out;
std::atomic<uint32_t> script_ran_out{0};

bool is_open() { return events_file.is_open(); }

// A child that was forked writes nothing: it has no device of its own.
void leave_to_the_parent() {
  events_file.leave();
  leave_work();
}

// Gives what `call` gives, which may be interrupted by a signal.
template <typename Call>
int whatever_signals(Call call) {
  int error = call();
  while (error == EINTR) error = call();
  return error;
}

// Room for one record; none where the disk is full, which `cut_trace` learns. Records are multiples of 80 bytes from 64 on, so one can lie across two chunks: each
// chunk is mapped with a page of the next.
Event* room() {
  constexpr size_t kBeyond = 4096;
  if (!chunk || written + sizeof(Event) > chunk_begin + kChunk + kBeyond) {
    if (chunk) munmap(chunk, kChunk + kBeyond);
    chunk = nullptr;
    const size_t begin = written / 4096 * 4096;
    const auto end = static_cast<off_t>(begin + kChunk + kBeyond);
    const int file = events_file.get();
    int error = file < 0 ? errno : whatever_signals([&] { return ftruncate(file, end) == 0 ? 0 : errno; });
    // Reserved now: a page of a file on a full disk is a bus error when it is written to.
    if (!error) error = whatever_signals([&] { return posix_fallocate(file, static_cast<off_t>(begin), kChunk + kBeyond); });
    void* mapped = MAP_FAILED;
    if (!error) {
      mapped = mmap(nullptr, kChunk + kBeyond, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(begin));
      if (mapped == MAP_FAILED) error = errno;
    }
    if (error) {
      cut_trace(error);
      return nullptr;
    }
    chunk = static_cast<char*>(mapped);
    chunk_begin = begin;
  }
  return reinterpret_cast<Event*>(chunk + (written - chunk_begin));
}

// Under the mutex. The kind comes last, so that a record is there whole or not at all.
void write(const Event& event) {
  Event* place = room();
  if (!place) return;
  Event record = event;
  record.kind = Kind::kEnd;
  std::memcpy(static_cast<void*>(place), &record, sizeof record);
  __atomic_store_n(reinterpret_cast<uint8_t*>(place), static_cast<uint8_t>(event.kind), __ATOMIC_RELEASE);
  written += sizeof record;
}

Event now(Kind kind) {
  Event event{};
  event.kind = kind;
  event.phase = current_phase.load();
  event.step = step.load();
  event.nanoseconds = static_cast<uint64_t>((std::chrono::steady_clock::now() - began).count());
  return event;
}

// A line's first name is its kind.
void write_line(const std::string& fields) {
  const std::string line = "{\"kind\":" + fields.substr(1, fields.find(':') - 1) + "," + fields.substr(1);
  if (!is_open()) return;
  // One call, at the end of the file: lines of two writers do not mix.
  const int file = names_file.get();
  ssize_t done = file < 0 ? -1 : ::write(file, line.data(), line.size());
  while (done < 0 && errno == EINTR) done = ::write(file, line.data(), line.size());
  if (done < static_cast<ssize_t>(line.size())) cut_trace(done < 0 ? errno : ENOSPC);
}

std::string quoted(const char* text) {
  std::string result = "\"";
  for (const char* c = text ? text : ""; *c; c++) {
    if (*c == '"' || *c == '\\') {
      result += '\\';
      result += *c;
    } else if (static_cast<unsigned char>(*c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(*c));
      result += code;
    } else {
      result += *c;
    }
  }
  return result + "\"";
}

// ---- Python stacks: numbers of frames, each frame a code object and an instruction ---------------------------------------------------------

struct Frame {
  PyCodeObject* code;
  int at;
  bool operator==(const Frame& other) const { return code == other.code && at == other.at; }
};
struct FrameHash {
  size_t operator()(const Frame& frame) const { return reinterpret_cast<size_t>(frame.code) * 31 + static_cast<size_t>(frame.at); }
};
struct StackHash {
  size_t operator()(const std::vector<uint32_t>& stack) const {
    size_t hash = 14695981039346656037ull;
    for (const uint32_t frame : stack) hash = (hash ^ frame) * 1099511628211ull;
    return hash;
  }
};
std::unordered_map<Frame, uint32_t, FrameHash> frames;
std::unordered_map<std::vector<uint32_t>, uint32_t, StackHash> stacks;
// The same by number, from 1 on: addresses of a map's keys stay.
std::vector<const std::vector<uint32_t>*> by_number;

std::string text_of(PyCodeObject* code, const char* attribute) {
  PyObject* value = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), attribute);
  if (!value) {
    PyErr_Clear();
    return "";
  }
  // A name that is not UTF-8 on disk has surrogates here.
  PyObject* bytes = PyUnicode_AsEncodedString(value, "utf-8", "replace");
  const char* text = bytes ? PyBytes_AsString(bytes) : nullptr;
  if (!text) PyErr_Clear();
  std::string result = text ? text : "";
  if (bytes) Py_DecRef(bytes);
  Py_DecRef(value);
  return result;
}

// With Python's lock. A code object that was seen is kept, so that its address stays its own.
uint32_t number_of(PyFrameObject* frame) {
  static auto* const instruction = reinterpret_cast<int (*)(PyFrameObject*)>(dlsym(RTLD_DEFAULT, "PyFrame_GetLasti"));
  PyCodeObject* code = PyFrame_GetCode(frame);
  const Frame key{code, instruction ? instruction(frame) : PyFrame_GetLineNumber(frame)};
  const auto found = frames.find(key);
  if (found != frames.end()) {
    Py_DecRef(reinterpret_cast<PyObject*>(code));
    return found->second;
  }
  const auto number = static_cast<uint32_t>(frames.size() + 1);
  frames.emplace(key, number);
  const std::string file = text_of(code, "co_filename"), function = text_of(code, "co_name");
  write_line("{\"frame\":" + std::to_string(number) + ",\"file\":" + quoted(file.c_str()) +
             ",\"line\":" + std::to_string(PyFrame_GetLineNumber(frame)) + ",\"function\":" + quoted(function.c_str()) + "}\n");
  return number;
}

constexpr size_t kDeepest = 96;

// The stack of Python that this thread is in, innermost first; 0 where it is in none. In a thread of autograd's engine the one that called
// backward() goes on below.
uint32_t gather_stack() {
  if (!python_is_there.load() || !PyGILState_GetThisThreadState()) return 0;
  const int state = PyGILState_Ensure();
  uint32_t number = 0;
  static thread_local std::vector<uint32_t> stack;
  stack.clear();
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame) Py_IncRef(reinterpret_cast<PyObject*>(frame));
  while (frame) {
    if (stack.size() < kDeepest) stack.push_back(number_of(frame));
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DecRef(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  if (const uint32_t below = backward_stack.load(); !stack.empty() && below && torch::autograd::get_current_node() &&
                                                    std::this_thread::get_id() != backward_thread.load()) {
    const auto& frames_below = *by_number[below - 1];
    stack.insert(stack.end(), frames_below.begin(), frames_below.end());
  }
  if (!stack.empty()) {
    const auto found = stacks.find(stack);
    if (found != stacks.end()) {
      number = found->second;
    } else {
      number = static_cast<uint32_t>(stacks.size() + 1);
      by_number.push_back(&stacks.emplace(stack, number).first->first);
      std::string line = "{\"stack\":" + std::to_string(number) + ",\"frames\":[";
      for (size_t i = 0; i < stack.size(); i++) line += (i ? "," : "") + std::to_string(stack[i]);
      write_line(line + "]}\n");
    }
  }
  PyGILState_Release(state);
  return number;
}

// ---- which forward pass a backward pass is of: by the sequence numbers of autograd's nodes --------------------------------------------------

struct Origin {
  uint64_t sequence = ~0ull;
  uint32_t stack = 0, module = 0;
};
std::mutex origins_mutex;
std::array<Origin, 1 << 18> origins;

void remember_origin(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(origins_mutex);
  Origin& origin = origins[sequence % origins.size()];
  // The first allocation after a node was made is its operator's own.
  if (origin.sequence != sequence) origin = {sequence, current_stack, current_module};
}

void find_origin(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(origins_mutex);
  const Origin& origin = origins[sequence % origins.size()];
  current_origin = origin.sequence == sequence ? origin.stack : 0;
  origin_module = origin.sequence == sequence ? origin.module : 0;
}

// Before each allocation, outside of the allocator's lock: inside of it Python's lock must not be asked for.
void capture_python_context() {
  current_stack = gather_stack();
  current_origin = origin_module = 0;
  if (const auto node = torch::autograd::get_current_node()) {
    find_origin(node->sequence_nr());
    if (!current_stack) current_stack = backward_stack.load();
  } else if (const uint64_t next = at::sequence_number::peek(); next > 0) {
    remember_origin(next - 1);
  }
}

std::shared_ptr<c10::GatheredContext> gather_for_us() {
  const OwnTime time;
  capture_python_context();
  // PyTorch's own snapshots take no context but theirs.
  return nullptr;
}
std::shared_ptr<c10::GatheredContext> gather_for_both() {
  const OwnTime time;
  capture_python_context();
  return torch::CapturedTraceback::gather(true, true, false);
}

// ---- what the allocator does ------------------------------------------------------------------------------------------------------------

struct Meter {
  // The last allocation, whose block's size shows at the next event in the sum of all allocations; and that sum before it.
  size_t pending = 0;
  uint64_t pending_address = 0;
  int64_t sum = 0;
};
std::array<Meter, 64> meters;
// Live blocks by address: their bytes, and what was said of them.
struct Live {
  int64_t bytes = 0;
  Label category = Label::kOther;
  uint32_t name = 0;
};
std::unordered_map<uint64_t, Live> live;

// Memory pools beside the ordinary one: of CUDA graphs, or made by the script. By PyTorch's own numbers of them, which are {0, 0} of the ordinary one.
using PoolId = std::pair<uint64_t, uint64_t>;
struct Pool {
  uint32_t number;
  c10::DeviceIndex device;
};
std::map<PoolId, Pool> pools;
uint32_t pools_seen = 0;
// By device, that of the last block.
std::array<uint32_t, 64> pool_now;
// Before PyTorch's entries told it: the pool of the graph that is being captured, which Python knows.
PoolId captured{0, 0};
// Whether this thread's garbage is being collected by Python.
thread_local bool is_collecting = false;

template <typename E>
auto pool_of(const E& entry, int) -> decltype(PoolId(entry.mempool_)) {
  return entry.mempool_;
}
PoolId pool_of(const Entry&, long) { return captured; }

template <typename Allocator>
auto is_released(Allocator* of, c10::DeviceIndex device, const PoolId& pool, int) -> decltype(of->getPoolUseCount(device, pool) == 0) {
  // One of which nothing is left is not known any more.
  try {
    return of->getPoolUseCount(device, pool) == 0;
  } catch (const c10::Error&) {
    return true;
  }
}
bool is_released(caching::CUDAAllocator*, c10::DeviceIndex, const PoolId&, long) { return false; }

// Kind by PyTorch's Action; 0 for what is not kept.
Kind kind_of(Entry::Action action) {
  switch (action) {
    case Entry::ALLOC: return Kind::kAlloc;
    case Entry::FREE_REQUESTED: return Kind::kFreeRequested;
    case Entry::FREE_COMPLETED: return Kind::kFreeCompleted;
    case Entry::SEGMENT_ALLOC: return Kind::kSegmentAlloc;
    case Entry::SEGMENT_FREE: return Kind::kSegmentFree;
    case Entry::SEGMENT_MAP: return Kind::kSegmentMap;
    case Entry::SEGMENT_UNMAP: return Kind::kSegmentUnmap;
    case Entry::OOM: return Kind::kOutOfMemory;
    default: return Kind::kEnd;
  }
}

// Writes an event that `fill` has given what is its own.
template <typename Fill>
void tell_of(Kind kind, Fill fill) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_open()) return;
  Event event = now(kind);
  fill(event);
  write(event);
}

// An evaluation is over where something is made with gradients on, outside of its modules: the next batch, for instance. Under the mutex.
void leave_pass_without_gradients() {
  const Phase phase = current_phase.load();
  if ((phase != Phase::kEvaluation && phase != Phase::kGeneration) || current_module != 0 || !c10::GradMode::is_enabled()) return;
  current_phase = Phase::kForward;
  write(now(Kind::kMark));
}

void set_rounded(size_t at, int64_t rounded) {
  // Where the record's chunk is mapped no more, the file itself.
  const size_t field = at + offsetof(Event, rounded);
  if (at >= chunk_begin && chunk) {
    std::memcpy(chunk + (field - chunk_begin), &rounded, sizeof rounded);
  } else {
    if (pwrite(events_file.get(), &rounded, sizeof rounded, static_cast<off_t>(field)) != sizeof rounded) cut_trace(errno);
  }
}

// Which pool the next blocks of a device are of; and that a pool's memory is free for others once its blocks are.
void tell_pool(c10::DeviceIndex device, uint32_t number, bool is_free, bool is_of_a_graph = false) {
  Event event = now(Kind::kPool);
  event.device = static_cast<uint16_t>(device);
  event.bytes = number;
  event.rounded = is_free;
  event.origin = is_of_a_graph;
  write(event);
}

void follow_pools(const Entry& entry, Kind kind) {
  if (kind == Kind::kSegmentAlloc || kind == Kind::kSegmentMap || kind == Kind::kOutOfMemory) {
    for (auto each = pools.begin(); each != pools.end();) {
      const bool is_gone = each->second.device == entry.device_ && is_released(caching::get(), entry.device_, each->first, 0);
      if (is_gone) tell_pool(entry.device_, each->second.number, true);
      each = is_gone ? pools.erase(each) : std::next(each);
    }
  }
  if (kind != Kind::kSegmentAlloc && kind != Kind::kSegmentMap && kind != Kind::kAlloc) return;
  const PoolId pool = pool_of(entry, 0);
  uint32_t number = 0;
  if (pool != PoolId{0, 0}) {
    const auto [found, is_new] = pools.emplace(pool, Pool{pools_seen + 1, entry.device_});
    pools_seen += is_new;
    number = found->second.number;
  }
  uint32_t& last = pool_now[static_cast<size_t>(entry.device_) % pool_now.size()];
  auto status = cudaStreamCaptureStatusNone;
  if (last != number) cudaStreamIsCapturing(static_cast<cudaStream_t>(entry.stream_), &status);
  if (last != number) tell_pool(entry.device_, number, false, status != cudaStreamCaptureStatusNone);
  last = number;
}

void follow(const Entry& entry) {
  const OwnTime time;
  const Kind kind = kind_of(entry.action_);
  if (kind == Kind::kFreeRequested) forget_values(entry.addr_);
  if (kind == Kind::kEnd || !is_open()) return;
  const auto stats = caching::get()->getDeviceStats(entry.device_);
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_open()) return;
  if (kind == Kind::kAlloc) leave_pass_without_gradients();
  follow_pools(entry, kind);
  Event event = now(kind);
  event.device = static_cast<uint16_t>(entry.device_);
  event.address = entry.addr_;
  event.bytes = static_cast<int64_t>(entry.size_);
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  event.allocated = stats.allocated_bytes[0].current;
  event.reserved = stats.reserved_bytes[0].current;
  Meter& meter = meters[static_cast<size_t>(entry.device_) % meters.size()];
  const int64_t sum = stats.allocated_bytes[0].allocated;
  // The script may have set the sum to zero in between: then the block has at least what was asked for.
  if (meter.pending && sum > meter.sum) {
    live[meter.pending_address].bytes = sum - meter.sum;
    set_rounded(meter.pending, sum - meter.sum);
  }
  meter.pending = 0;
  // Of a block that another stream may use the allocator records an event before it frees it; of others it frees them at once.
  static auto* const events = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "vramlab_dry_events"));
  static std::pair<uint64_t, uint64_t> requested;
  const uint64_t recorded = events ? events() : 0;
  if (kind == Kind::kFreeRequested) requested = {event.address, recorded};
  if (kind == Kind::kFreeCompleted) event.rounded = requested != std::pair<uint64_t, uint64_t>{event.address, recorded};
  if (kind == Kind::kFreeRequested) {
    event.origin = is_collecting;
    const auto found = live.find(event.address);
    if (found != live.end()) {
      event.rounded = found->second.bytes;
      live.erase(found);
    }
  }
  if (kind == Kind::kAlloc || kind == Kind::kOutOfMemory) {
    event.stack = current_stack;
    event.origin = current_origin;
    event.module = current_module ? current_module : origin_module;
    event.operator_ = current_operator;
  }
  if (kind == Kind::kAlloc) {
    event.rounded = (event.bytes + 511) / 512 * 512;
    live.erase(event.address);
    meter = {written, event.address, sum};
  } else if (kind == Kind::kOutOfMemory) {
    ran_out.push_back(written);
    script_ran_out++;
  }
  write(event);
}

static void taken_outside(int device, uint64_t address, int64_t bytes, const char* library) {
  const uint32_t stack = bytes > 0 ? gather_stack() : 0, name = operator_number(library);
  tell_of(Kind::kOutside, [&](Event& event) {
    event.device = static_cast<uint16_t>(device);
    event.address = address;
    event.bytes = bytes;
    event.stack = stack ? stack : backward_stack.load();
    event.module = current_module;
    event.operator_ = name;
  });
}

// Pages of PyTorch's allocator that an engine gives back (fewer than 0 bytes) or takes again, which the allocator is not told of.
EXPORTED void vl_pages(int device, uint64_t address, int64_t bytes, int sleeps) {
  const uint32_t stack = gather_stack();
  tell_of(Kind::kOutside, [&](Event& event) {
    event.device = static_cast<uint16_t>(device);
    event.address = address;
    event.bytes = bytes;
    event.rounded = sleeps ? 1 : 2;
    event.stack = stack;
  });
}

// Pages that an engine takes again, for which there is no room.
EXPORTED void vl_ran_out(int device, int64_t bytes, uint64_t free) {
  const uint32_t stack = gather_stack();
  const auto stats = caching::get()->getDeviceStats(static_cast<c10::DeviceIndex>(device));
  tell_of(Kind::kOutOfMemory, [&](Event& event) {
    event.device = static_cast<uint16_t>(device);
    event.address = free;
    event.bytes = bytes;
    event.stack = stack;
    event.allocated = stats.allocated_bytes[0].current;
    event.reserved = stats.reserved_bytes[0].current;
    ran_out.push_back(written);
    script_ran_out++;
  });
}

// The allocator asks with its lock, when Python's must not be asked for, unless this thread has it.
static void asked(int device, uint64_t free, uint64_t total, bool is_allocator) {
  if (!python_is_there.load() || (is_allocator && !PyGILState_Check())) return;
  const uint32_t stack = gather_stack();
  if (!stack) return;
  tell_of(Kind::kAsked, [&](Event& event) {
    event.device = static_cast<uint16_t>(device);
    event.address = free;
    event.bytes = static_cast<int64_t>(total);
    event.stack = stack;
  });
}

// recordHistory has other parameters in other versions of PyTorch.
template <typename... More>
void call_record_history(void (caching::CUDAAllocator::*record)(bool, caching::CreateContextFn, size_t, caching::RecordContext, More...),
                         std::shared_ptr<c10::GatheredContext> (*gather)(), uint64_t entries, caching::RecordContext when) {
  (caching::get()->*record)(true, gather, entries, when, std::decay_t<More>{}...);
}

}  // namespace

// Into a file whose bytes were reserved at the start.
void cut_trace(int error) {
  events_file.leave();
  const int file = open(lost_path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  const std::string number = std::to_string(error) + "\n";
  const ssize_t done = pwrite(file, number.data(), number.size(), 0);
  (void)done;
  close(file);
}

bool TraceFile::open(const std::string& path, int flags) {
  path_ = path;
  flags_ = flags & ~(O_CREAT | O_TRUNC);
  descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  struct stat about;
  if (descriptor_ < 0 || fstat(descriptor_, &about) != 0) return false;
  device_ = about.st_dev;
  inode_ = about.st_ino;
  return true;
}

int TraceFile::get() {
  struct stat about;
  const auto is_ours = [&] { return fstat(descriptor_, &about) == 0 && about.st_dev == device_ && about.st_ino == inode_; };
  if (descriptor_ < 0 || is_ours()) return descriptor_;
  const int before = descriptor_;
  descriptor_ = ::open(path_.c_str(), flags_ | O_CLOEXEC);
  if (descriptor_ >= 0 && is_ours()) return descriptor_;
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = before;
  errno = ENOENT;
  return -1;
}

void open_recorder(const std::string& folder) {
  began = std::chrono::steady_clock::now();
  lost_path = folder + "/lost";
  TORCH_CHECK(names_file.open(folder + "/names", O_WRONLY | O_CREAT | O_APPEND), "writing ", folder, "/names: ", std::strerror(errno));
  TraceFile file;
  TORCH_CHECK(file.open(folder + "/events", O_RDWR | O_CREAT | O_TRUNC), "writing ", folder, "/events: ", std::strerror(errno));
  struct Header {
    char magic[8];
    uint32_t record, pid;
  } header{{}, sizeof(Event), static_cast<uint32_t>(getpid())};
  std::memcpy(header.magic, trace::kMagic, sizeof trace::kMagic);
  TORCH_CHECK(pwrite(file.get(), &header, sizeof header, 0) == sizeof header, "writing ", folder, "/events: ", std::strerror(errno));
  TORCH_CHECK(pthread_atfork(nullptr, nullptr, leave_to_the_parent) == 0, "following forks");
  events_file = file;
  open_work(folder);
}

void follow_allocator() {
  caching::get()->attachAllocatorTraceTracker(&follow);
  auto** const watch = static_cast<void (**)(int, const void*)>(dlsym(RTLD_DEFAULT, "vramlab_dry_watch"));
  if (watch) {
    *watch = [](int use, const void* address) {
      label(reinterpret_cast<uint64_t>(address), use == kVramlabWorkspace ? Label::kWorkspace : Label::kData, 0);
    };
  }
  auto* const outside = static_cast<decltype(&vramlab_dry_outside)>(dlsym(RTLD_DEFAULT, "vramlab_dry_outside"));
  if (outside) *outside = &taken_outside;
  auto* const asks = static_cast<decltype(&vramlab_dry_asked)>(dlsym(RTLD_DEFAULT, "vramlab_dry_asked"));
  if (asks) *asks = &asked;
}

void gather_stacks(bool theirs, uint64_t entries) {
  using When = caching::RecordContext;
  if (theirs) {
    call_record_history(&caching::CUDAAllocator::recordHistory, &gather_for_both, entries, When::ALL);
  } else {
    call_record_history(&caching::CUDAAllocator::recordHistory, &gather_for_us, 1, When::ALLOC);
  }
}

// Gives the phase that was before.
EXPORTED int vl_enter(int phase) {
  const auto next = static_cast<Phase>(phase), before = current_phase.exchange(next);
  if (before != next && is_open()) tell_of(Kind::kMark, [](Event&) {});
  return static_cast<int>(before);
}

// A forward pass of an outermost module begins; within a backward pass or an optimizer's step it is none of its own.
EXPORTED void vl_begin_pass(int next, int64_t flags, uint32_t module) {
  static std::atomic<int64_t> passes{0};
  const Phase before = current_phase.load();
  if (before == Phase::kBackward || before == Phase::kOptimizer) return;
  vl_enter(next);
  begin_pass_of_work(flags & trace::kBeginsGeneration);
  tell_of(Kind::kPass, [&](Event& event) {
    event.bytes = ++passes;
    event.rounded = flags;
    event.module = module;
  });
}

Phase phase() { return current_phase.load(); }

EXPORTED void vl_end_step() {
  flush_work();
  step++;
  current_phase = Phase::kForward;
  tell_of(Kind::kMark, [](Event&) {});
}

uint32_t current_step() { return step.load(); }

Place look_for_place() {
  capture_python_context();
  return {current_phase.load(), step.load(), current_stack, current_origin, current_module ? current_module : origin_module};
}

// The pool that a capture which begins has; none at its end.
EXPORTED void vl_set_pool(uint64_t one, uint64_t other) { captured = {one, other}; }
EXPORTED void vl_set_collecting(int is) { is_collecting = is != 0; }

EXPORTED void vl_set_module(uint32_t module) { current_module = module; }

EXPORTED void vl_set_backward_stack() {
  backward_stack = gather_stack();
  backward_thread = std::this_thread::get_id();
}

void label(uint64_t address, Label category, uint32_t name) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_open()) return;
  if (category != Label::kVariable) {
    // Once is enough; the address of a part of a block has nobody who forgets it with the block.
    Live& block = live[address];
    if (block.category == category && (name == 0 || (block.name == name && block.bytes > 0))) return;
    block.category = category;
    block.name = name;
  }
  Event event = now(Kind::kLabel);
  event.address = address;
  event.bytes = static_cast<int64_t>(category);
  event.module = name;
  write(event);
}

EXPORTED void vl_ended(int enough_seen) {
  flush_work();
  tell_of(Kind::kEnded, [&](Event& event) {
    event.bytes = enough_seen;
    const auto stats = caching::get()->getDeviceStats(0);
    event.allocated = stats.allocated_bytes[0].current;
    event.reserved = stats.reserved_bytes[0].current;
  });
}

// A loop that waits for a value which never changes allocates, at most, what it gave back before: it differs from a slow script by how often.
void tell_of_endless(uint32_t stack) {
  constexpr uint32_t kMany = 10000;
  static std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>> seen;
  auto& [in_step, times] = seen[stack];
  if (in_step != step.load()) times = 0;
  in_step = step.load();
  if (++times != kMany) return;
  constexpr const char* said = "the same line has read 10,000 values that nobody computed in one step: a loop that waits for such a value never ends "
                               "(the most frequent line below; --timeout ends the script)";
  write_line(std::string("{\"note\":") + quoted(said) + "}\n");
  std::fprintf(stderr, "vramlab: %s\n", said);
}

void placeholder_read(const char* what, bool is_made_up, int64_t size, int64_t most) {
  const uint32_t stack = gather_stack(), name = operator_number(what);
  tell_of(Kind::kPlaceholder, [&](Event& event) {
    tell_of_endless(stack);
    event.bytes = is_made_up;
    event.rounded = size;
    event.address = static_cast<uint64_t>(most);
    event.stack = stack ? stack : backward_stack.load();
    event.module = current_module;
    event.operator_ = name;
  });
}

uint32_t set_operator(uint32_t name) {
  const uint32_t before = current_operator;
  current_operator = name;
  return before;
}

size_t times_out_of_memory() { return ran_out.size(); }
// How often the script was told that memory has run out.
EXPORTED uint32_t vl_out_of_memory() { return script_ran_out.load(); }

void dealt_with_out_of_memory(size_t since) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = since; i < ran_out.size() && is_open(); i++) set_rounded(ran_out[i], 1);
  script_ran_out -= static_cast<uint32_t>(ran_out.size() - since);
  ran_out.resize(since);
}

void refused(const char* name) {
  const uint32_t stack = gather_stack();
  write_line("{\"refused_operator\":" + quoted(name) + ",\"stack\":" + std::to_string(stack ? stack : backward_stack.load()) + "}\n");
}

void tell_unfused(const std::function<std::string()>& why) {
  static std::mutex told_mutex;
  static std::set<uint32_t> told;
  const uint32_t stack = gather_stack();
  const std::lock_guard<std::mutex> lock(told_mutex);
  if (stack && told.insert(stack).second) write_line("{\"unfused\":" + quoted(why().c_str()) + ",\"stack\":" + std::to_string(stack) + "}\n");
}

void left_out(const char* what, const std::string& why) {
  static std::atomic<uint64_t> times{0};
  const uint64_t now = ++times;
  if (now & (now - 1)) return;
  write_line("{\"left_out\":" + quoted(what) + ",\"times\":" + std::to_string(now) + ",\"why\":" + quoted(why.substr(0, why.find('\n')).c_str()) + "}\n");
}

uint32_t operator_number(const char* name, const char* uncounted) {
  static std::mutex names_mutex;
  static std::unordered_map<std::string, uint32_t> numbers;
  const std::lock_guard<std::mutex> lock(names_mutex);
  const auto [found, is_new] = numbers.emplace(name, static_cast<uint32_t>(numbers.size() + 1));
  const std::string more = uncounted ? ",\"uncounted\":" + quoted(uncounted) : "";
  if (is_new) write_line("{\"operator\":" + std::to_string(found->second) + ",\"name\":" + quoted(name) + more + "}\n");
  return found->second;
}

// Nothing of Python is asked for any more.
EXPORTED void vl_close_python() { python_is_there = false; }

}  // namespace vramlab::rehearsal
