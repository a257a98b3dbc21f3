// The memory trace: the record that every recorder writes. src/sim/src/trace.rs reads it and says what each field means.
#pragma once
#include <cstdint>

namespace vramlab::trace {

constexpr char kMagic[8] = {'V', 'L', 'T', 'R', 'A', 'C', 'E', '1'};

enum class Kind : uint8_t {
  kEnd = 0,
  // Of a block: what PyTorch's allocator tells its trace trackers. `bytes` as asked for, `rounded` what the block has.
  kAlloc = 1,
  kFreeRequested = 2,
  // `rounded` is 1 where another stream might still use it when it was given back.
  kFreeCompleted = 3,
  // Of a segment, or of pages of an expandable one: `bytes` is its size.
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  // `bytes` were asked for, `address` is what the card had free; `rounded` is 1 where an operator dealt with it, and the script was not told.
  kOutOfMemory = 8,
  // A phase or step begins: `phase` and `step` are the new ones.
  kMark = 9,
  // The block that `address` lies in is for `bytes` (a Label), `module` names its tensor (0: nothing).
  kLabel = 10,
  // A value was asked for that comes from numbers nobody computed: `bytes` is 1 where it is made up, and 0 where it says that they are valid,
  // `operator_` what asked. Where it decided a size, `rounded` is the one that was taken, and `address` the largest that it could be.
  kPlaceholder = 11,
  // The script is ended: `bytes` is 1 where enough steps were seen, 2 where one more of ours follows, 0 where Python ended by itself.
  kEnded = 12,
  // `bytes` that others than PyTorch's allocator took (fewer than 0: gave back), at `address`; `operator_` is their library.
  kOutside = 13,
  // A forward pass of an outermost module with parameters begins: `module` is that module, `bytes` the pass's number from 1 on, `rounded` what it
  // is, as a sum of PassFlag.
  kPass = 14,
};

enum PassFlag : int64_t { kWithGradients = 1, kInTraining = 2, kBeginsGeneration = 4 };

enum class Label : int64_t {
  kOther = 0,
  kParameter = 1,
  kGradient = 2,
  kOptimizerState = 3,
  kBuffer = 4,
  kData = 5,
  kWorkspace = 6,
  kKeyValueCache = 7,
  kWeightCopy = 8,
  // What the block is for stays as it was said; `module` names the script's variable that holds it. At address 0 what was said so far is over.
  kVariable = 9,
};

enum class Phase : uint8_t { kLoad = 0, kForward = 1, kBackward = 2, kOptimizer = 3, kEvaluation = 4, kGeneration = 5 };

struct Event {
  Kind kind;
  Phase phase;
  uint16_t device;
  // Optimizer steps that have ended before.
  uint32_t step;
  uint64_t address;
  int64_t bytes;
  int64_t rounded;
  // The allocator's meter before the event: a free has left `allocated` already.
  int64_t allocated;
  int64_t reserved;
  uint64_t stream;
  // Numbers of names: the Python stack; the stack of the forward pass whose node of autograd is at work; the innermost module; the operator.
  uint32_t stack;
  uint32_t origin;
  uint32_t module;
  uint32_t operator_;
  // Since the recorder began.
  uint64_t nanoseconds;
};
static_assert(sizeof(Event) == 80, "a record's layout is what src/sim/src/trace.rs reads");

}  // namespace vramlab::trace
