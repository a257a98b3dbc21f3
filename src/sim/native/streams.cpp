// Streams, events, graphs and captures of the simulated runtime: nothing is ever under way.
#include "runtime.h"

#include <cstring>
#include <utility>

namespace vramlab::runtime {
namespace {

// By stream, the capture that is under way on it.
std::map<cudaStream_t, unsigned long long> captures;

// What a graph keeps alive: a function that is called with its data when the last reference is gone. Here a graph and what is instantiated of
// it are one, which lives until both are destroyed.
struct UserObject {
  cudaHostFn_t destroy;
  void* data;
  unsigned references;
};
std::map<cudaUserObject_t, UserObject> user_objects;
struct Graph {
  int owners = 1;
  std::map<cudaUserObject_t, unsigned> retained;
};
std::map<cudaGraph_t, Graph> graphs;

// By the number of its capture.
cudaGraph_t graph_of(unsigned long long capture) { return reinterpret_cast<cudaGraph_t>(capture * 16); }

cudaError_t disown(cudaGraph_t graph) {
  std::map<cudaUserObject_t, unsigned> released;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = graphs.find(graph);
    if (found == graphs.end() || --found->second.owners > 0) return cudaSuccess;
    released = std::move(found->second.retained);
    graphs.erase(found);
  }
  for (const auto& [object, references] : released) cudaUserObjectRelease(object, references);
  return cudaSuccess;
}

// How many launches somebody has waited for, and how many there were when each event was recorded.
std::atomic<uint64_t> waited_for{0};
std::map<cudaEvent_t, uint64_t> recorded;
// When the device comes to an event that can be timed, in predicted seconds; less than 0 where nobody predicts.
std::map<cudaEvent_t, double> times;
// Of each event the stream that it was last recorded on, that one's device, and how far the work had come.
struct Mark {
  uint64_t stream;
  int device;
  uint64_t position;
};
std::map<cudaEvent_t, Mark> marks;

// How often it has waited for the device.
thread_local uint64_t waits = 0;

cudaError_t wait() {
  waits++;
  waited_for = launched.load();
  return cudaSuccess;
}

}  // namespace

uint64_t lag() {
  static const uint64_t asked = setting("VRAMLAB_DRY_LAG", 0);
  return asked;
}

}  // namespace vramlab::runtime

using namespace vramlab::runtime;

extern "C" {

double (*vramlab_dry_clock)(const uint64_t* stream) = nullptr;
// What orders streams: how far their work has come, asked when an event is recorded, and a stream that waits for an event of another one.
uint64_t (*vramlab_dry_position)() = nullptr;
void (*vramlab_dry_order)(uint64_t stream, int device, uint64_t source, int source_device, uint64_t position) = nullptr;
uint64_t vramlab_dry_waits() { return waits; }

// A capture is only known by its stream; what is captured has run as it is, and a launch has nothing left to do.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard<std::mutex> lock(mutex);
  const unsigned long long capture = captures[stream] = next_handle++;
  graphs[graph_of(capture)];
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = captures.find(stream);
  if (found == captures.end()) return last_error = cudaErrorInvalidValue;
  *graph = graph_of(found->second);
  captures.erase(found);
  return cudaSuccess;
}
// CUDA 12's has no list of edges and the suffix _v2; what follows the graph is left alone in both.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = captures.find(stream);
  *status = found != captures.end() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id && found != captures.end()) *id = found->second;
  if (graph && found != captures.end()) *graph = graph_of(found->second);
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t**, size_t*) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) { return cudaStreamGetCaptureInfo(stream, status, nullptr); }
cudaError_t cudaGraphInstantiateWithFlags(void** executable, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  graphs[graph].owners++;
  *executable = graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(void** executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
// A graph without nodes gives a warning that the capture was empty.
int cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return count ? is(count, 1) : 0; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return disown(graph); }
cudaError_t cudaGraphExecDestroy(void* executable) { return disown(static_cast<cudaGraph_t>(executable)); }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned references, unsigned) {
  const std::lock_guard<std::mutex> lock(mutex);
  *object = reinterpret_cast<cudaUserObject_t>(next_handle++ * 16);
  user_objects[*object] = {destroy, data, references};
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned references) {
  UserObject last{};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = user_objects.find(object);
    if (found == user_objects.end() || found->second.references < references) return last_error = cudaErrorInvalidValue;
    if ((found->second.references -= references) > 0) return cudaSuccess;
    last = found->second;
    user_objects.erase(found);
  }
  // What it destroys may call this runtime.
  last.destroy(last.data);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned references, unsigned flags) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = user_objects.find(object);
  const auto of = graphs.find(graph);
  if (found == user_objects.end() || of == graphs.end()) return last_error = cudaErrorInvalidValue;
  if (!(flags & cudaGraphUserObjectMove)) found->second.references += references;
  of->second.retained[object] += references;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  come_up(current_device);
  const std::lock_guard<std::mutex> lock(mutex);
  *stream = reinterpret_cast<cudaStream_t>(next_handle++ * 16);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait(); }
cudaError_t cudaDeviceSynchronize() {
  come_up(current_device);
  return wait();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  come_up(current_device);
  const std::lock_guard<std::mutex> lock(mutex);
  *event = reinterpret_cast<cudaEvent_t>(next_handle++ * 16);
  if (!(flags & kDisableTiming)) times[*event] = -1;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, SharedMemory) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex);
  recorded.erase(event);
  times.erase(event);
  marks.erase(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!lag()) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = recorded.find(event);
  const bool is_over = found == recorded.end() || found->second <= waited_for || launched - found->second >= lag();
  return is_over ? cudaSuccess : last_error = cudaErrorNotReady;
}
std::atomic<uint64_t> events_recorded{0};
uint64_t vramlab_dry_events() { return events_recorded; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  events_recorded++;
  const uint64_t position = vramlab_dry_position ? vramlab_dry_position() : 0;
  std::unique_lock<std::mutex> lock(mutex);
  if (vramlab_dry_position) marks[event] = {reinterpret_cast<uint64_t>(stream), current_device, position};
  if (lag()) recorded[event] = launched;
  if (!vramlab_dry_clock || !times.count(event)) return cudaSuccess;
  lock.unlock();
  const auto handle = reinterpret_cast<uint64_t>(stream);
  const double time = vramlab_dry_clock(&handle);
  lock.lock();
  times[event] = time;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!vramlab_dry_order) return cudaSuccess;
  std::unique_lock<std::mutex> lock(mutex);
  const auto found = marks.find(event);
  if (found == marks.end()) return cudaSuccess;
  const Mark mark = found->second;
  lock.unlock();
  const auto waiting = reinterpret_cast<uint64_t>(stream);
  if (waiting != mark.stream || (!waiting && current_device != mark.device))
    vramlab_dry_order(waiting, current_device, mark.stream, mark.device, mark.position);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return wait(); }
std::atomic<uint64_t> timed{0}, untimed{0};
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  // What times algorithms to choose one, as cudnn.benchmark has PyTorch do, must choose the same each time: the host's noise is in the clock.
  const void* const caller = __builtin_return_address(0);
  static VramlabLibrary chooser;
  if (!chooser.end) {
    const VramlabLibrary library = vramlab_library_of(caller);
    if (std::strstr(library.name, "/libtorch_cuda")) chooser = library;
  }
  if (chooser.has(caller)) {
    *milliseconds = 0.01f;
    return cudaSuccess;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto from = times.find(begin), to = times.find(end);
  const bool is_known = from != times.end() && to != times.end() && from->second >= 0 && to->second >= 0;
  (is_known ? timed : untimed)++;
  // There are programs that divide by it.
  *milliseconds = is_known ? static_cast<float>(1e3 * (to->second - from->second)) : 0.01f;
  return cudaSuccess;
}
// How often the script asked for a time, and for one that there is none of.
uint64_t vramlab_dry_timed() { return timed; }
uint64_t vramlab_dry_untimed() { return untimed; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, void (*callback)(cudaStream_t, cudaError_t, void*), void* data, unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*callback)(void*), void* data) {
  callback(data);
  return cudaSuccess;
}

}  // extern "C"
