// What a process under rehearsal tells the program that started it: two files in a folder of its own that are complete at every moment, so
// that a process that is killed, hangs or leaves by os._exit has told all that it saw.
//
// `events`: a header of 64 bytes (kMagic, bytes of a record, process id; zeros), then records of type Event. The file is longer than what
// was written: a record of kind 0 is the end. `names`: JSON, an object to a line, written by this library and by Python's half
// (src/rehearse/python); src/rehearse/src/trace.rs reads both and says what each line means.
#pragma once
#include <cstdint>
#include <string>

namespace vramlab::rehearsal {

constexpr char kMagic[8] = {'V', 'L', 'T', 'R', 'A', 'C', 'E', '1'};

enum class Kind : uint8_t {
  kEnd = 0,
  // Of a block: what PyTorch's allocator tells its trace trackers. `bytes` as asked for, `rounded` what the block has.
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  // Of a segment, or of pages of an expandable one: `bytes` is its size.
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  // `bytes` were asked for, `address` is what the card had free.
  kOutOfMemory = 8,
  // A phase or step begins: `phase` and `step` are the new ones.
  kMark = 9,
  // The block that `address` lies in is for `bytes` (a Category), `module` names its tensor (0: nothing).
  kLabel = 10,
  // A value was asked for that comes from numbers nobody computed: `bytes` is how often here, `operator_` what asked. Where it decided a size,
  // `rounded` is the one that was taken, and `address` the largest that it could be.
  kImagined = 11,
  // What follows is not the script's own: `bytes` is 1 where enough steps were seen, 0 where Python ended by itself.
  kEnded = 12,
};

enum class Category : int64_t { kOther = 0, kParameter = 1, kGradient = 2, kOptimizerState = 3, kBuffer = 4, kData = 5, kWorkspace = 6 };

enum class Phase : uint8_t { kLoad = 0, kForward = 1, kBackward = 2, kOptimizer = 3 };

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
static_assert(sizeof(Event) == 80, "a record's layout is what src/rehearse/src/trace.rs reads");

// Opens both files in a folder that is there.
void open_recorder(const std::string& folder);
// Something could not be written, by the error's number: nothing more is, and the reader is told why.
void cut_trace(int error);

// A file of the trace. A script may close every descriptor there is, as daemons do; the number is then another file's, which is not ours to
// write to.
class TraceFile {
 public:
  // False, and errno, where it cannot be opened.
  bool open(const std::string& path, int flags);
  // Its descriptor, opened anew where the old one is no longer its; -1, and errno, where that cannot be.
  int get();
  bool is_open() const { return descriptor_ >= 0; }
  // Nothing more is written.
  void leave() { descriptor_ = -1; }

 private:
  std::string path_;
  int flags_ = 0, descriptor_ = -1;
  uint64_t device_ = 0, inode_ = 0;
};
// Has PyTorch's allocator tell what it does; after its device is there.
void follow_allocator();
// Takes PyTorch's history of the allocator for stacks; with `theirs` a user has it too, who gets what PyTorch gathers.
void gather_stacks(bool theirs, uint64_t entries);

void enter(Phase phase);
Phase phase();
void end_step();
void set_module(uint32_t module);
void set_backward_stack();
void label(uint64_t address, Category category, uint32_t name);
void ended(bool enough_seen);
// `size` is what was taken where it decides a shape, and `most` what that could be.
void imagined(const char* operator_name, int64_t size = 0, int64_t most = 0);
// What the innermost kernel at work is; gives what was before.
uint32_t set_operator(uint32_t name);
// `uncounted` is the library that takes memory of its own for it which nobody knows.
uint32_t operator_number(const char* name, const char* uncounted = nullptr);
uint32_t current_step();
// Where this thread is, by the numbers of an event.
struct Place {
  Phase phase;
  uint32_t step, stack, origin, module;
};
Place look_for_place();
// Nothing of Python is asked for any more.
void close_python();

}  // namespace vramlab::rehearsal
