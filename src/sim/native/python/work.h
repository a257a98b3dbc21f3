// What the operators of a step have for the GPU to do: the file `work` of a process's folder, beside those of recorder.h.
//
// A header of 64 bytes (kWorkMagic, bytes of a record; zeros), then records of type Work in the order in which kernels were launched. Told of
// the first steps only, and written at the end of each; src/rehearse/src/capture/work.rs reads it and says what each field means.
#pragma once
#include "recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <time.h>

#include <vector>

namespace vramlab::rehearsal {

// Calls with a tensor, or those of a list, which may be undefined; others have none.
template <typename Function>
void each_tensor(const c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    function(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& one : value.toListRef())
      if (one.isTensor()) function(one.toTensor());
  }
}

constexpr char kWorkMagic[8] = {'V', 'L', 'W', 'O', 'R', 'K', '0', '3'};

enum class WorkKind : uint8_t {
  kPointwise = 0,
  kMatmul = 1,
  kAttention = 2,
  kAttentionBackward = 3,
  kConvolution = 4,
  kReduction = 5,
  kIndex = 6,
  kOptimizer = 7,
  // Between host and device, or two devices.
  kCopy = 8,
  kRecurrent = 9,
  // Kernels that torch.compile wrote.
  kCompiled = 10,
  // What ranks of a job move between each other.
  kCollective = 11,
  // A stream waits for another one.
  kOrder = 12,
};
enum class Precision : uint8_t { kHalf = 0, kSingle = 1, kTf32 = 2, kDouble = 3 };

constexpr uint8_t kWaitsAfter = 1, kWaitedBefore = 2, kChangesLayout = 4, kOfGraph = 8, kIsChannelsLast = 16, kIsTransposed = 32,
                  kIsVolume = 64, kOfBatch = 128;
// What of it a replay has as well.
constexpr uint8_t kOfShape = kChangesLayout | kIsChannelsLast | kIsTransposed | kIsVolume | kOfBatch;

// Of a convolution's backward pass either or both; of others the first. Beside them: the first of a forward pass, and one that begins a generation.
constexpr uint8_t kForward = 0, kBackwardOfInput = 1, kBackwardOfWeights = 2, kBackward = kBackwardOfInput, kBeginsPass = 64,
                  kBeginsGeneration = 128;

struct Work {
  WorkKind kind;
  Precision precision;
  Phase phase;
  uint8_t flags;
  uint16_t device;
  uint16_t alignment;
  uint32_t step;
  uint32_t launches;
  double flops;
  double bytes;
  uint32_t m, n, k, batch;
  uint64_t stream;
  uint32_t stack, origin, module, operator_;
  uint64_t host_nanoseconds;
  uint32_t groups;
  uint16_t taps;
  uint8_t direction;
  uint8_t stride;
};
static_assert(sizeof(Work) == 88, "a record's layout is what src/rehearse/src/capture/work.rs reads");

void open_work(const std::string& folder);
// What is recorded of a step, or of a forward pass, is written.
void flush_work();
// A process that was forked writes nothing.
void leave_work();
void begin_pass_of_work(bool generation);
// Nanoseconds of a clock.
uint64_t clock_of(clockid_t which);
// Time that a real run would not take: of this thread, in nanoseconds.
void own_time(uint64_t nanoseconds);

// The script's clocks: what they have not counted yet, processor time of this thread since its last record, and whether it has waited for the
// device since. `follow_clock` has everything sent from then on.
void follow_clock();
std::vector<Work> take_untold();
uint64_t host_time_passed();
bool has_waited();
// Predicted seconds since the clock began: the host's, or, at an event of a stream, when the device comes to it. -1 where nobody predicts. The
// script has slept for `idle` seconds meanwhile.
double read_clock(const uint64_t* stream, double idle);
// A process that was forked asks nobody.
void leave_clock();

// Adds its life to the rehearsal's own time; what of it is the script's is taken out by `pause`.
class OwnTime {
 public:
  OwnTime();
  ~OwnTime();
  void pause();
  void go_on();

 private:
  uint64_t since;
};

// What is known of an operator by its schema.
struct WorkOf {
  WorkKind kind = WorkKind::kPointwise;
  uint8_t direction = 0;
  // Its kernels are a library's, whose launches are not seen.
  bool is_library = false;
  bool overwrites = false;
  // Of a library's own, and not PyTorch's.
  bool is_custom = false;
  std::string name;
  explicit WorkOf(const c10::FunctionSchema& schema, bool overwrites);
};

struct Given;

// Around an operator's kernel: sees whether it launches anything that no operator inside of it did.
class WorkScope {
 public:
  WorkScope(const WorkOf& of, const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  // With the operator's results on the stack.
  void ends(const torch::jit::Stack& stack, uint32_t number);

 private:
  void count_bytes(const Given& given);
  void see_matmul(const Given& given);
  void see_convolution(const Given& given);
  void see_recurrent(const Given& given);
  void see_attention(const Given& given);
  void see_reduction(const Given& given);
  void see_copy(const Given& given);

  const WorkOf& of;
  const c10::OperatorHandle& op;
  bool is_on;
  uint64_t launches_before = 0, written_before = 0, library_records_before = 0;
  double read = 0, written = 0;
  // Of its first tensor on a card; -1 where none is known, for which PyTorch takes the current one.
  c10::DeviceIndex card = -1;
  // Of a forward convolution.
  at::Tensor input, weight;
  Work work{};
};

}  // namespace vramlab::rehearsal
