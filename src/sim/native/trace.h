// The memory trace: the record that every recorder writes. src/sim/src/trace.rs reads it and says what each field, kind and label means.
#pragma once
#include <cstdint>

namespace vramlab::trace {

constexpr char kMagic[8] = {'V', 'L', 'T', 'R', 'A', 'C', 'E', '1'};

enum class Kind : uint8_t {
  kEnd = 0,
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  kOutOfMemory = 8,
  kMark = 9,
  kLabel = 10,
  kPlaceholder = 11,
  kEnded = 12,
  kOutside = 13,
  kPass = 14,
  kPool = 15,
  kAsked = 16,
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
  kVariable = 9,
  kFrozen = 10,
  kDroppable = 11,
};

enum class Phase : uint8_t { kLoad = 0, kForward = 1, kBackward = 2, kOptimizer = 3, kEvaluation = 4, kGeneration = 5 };

struct Event {
  Kind kind;
  Phase phase;
  uint16_t device;
  uint32_t step;
  uint64_t address;
  int64_t bytes;
  int64_t rounded;
  int64_t allocated;
  int64_t reserved;
  uint64_t stream;
  uint32_t stack;
  uint32_t origin;
  uint32_t module;
  uint32_t operator_;
  uint64_t nanoseconds;
};
static_assert(sizeof(Event) == 80, "a record's layout is what src/sim/src/trace.rs reads");

}  // namespace vramlab::trace
