// What a process under rehearsal tells the program that started it: two files in a folder of its own that are complete at every moment, so
// that a process that is killed, hangs or leaves by os._exit has written all that it saw.
//
// `events`: the memory trace (../trace.h). The file is longer than what was written: a record of kind 0 is the end. `names`: JSON, an object to a line, written by this library and by Python's half
// (src/rehearse/python); src/rehearse/src/capture/process.rs reads both and says what each line means.
#pragma once
#include "../trace.h"
#include <cstdint>
#include <functional>
#include <string>

// For Python, by ctypes: src/rehearse/python/vramlab_rehearsal/device.py has the types.
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace vramlab::rehearsal {

using trace::Event;
using trace::Kind;
using trace::Label;
using trace::Phase;

// Opens both files in a folder that is there.
void open_recorder(const std::string& folder);
// Something could not be written, by the error's number: nothing more is, and the reader learns why.
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

Phase phase();
void label(uint64_t address, Label category, uint32_t name);
// `is_made_up` where it could be another; else it says that numbers are valid. `size` is what was taken where it decides a shape, and `most`
// what that could be.
void placeholder_read(const char* operator_name, bool is_made_up, int64_t size = 0, int64_t most = 0);
// What the innermost kernel at work is; gives what was before.
uint32_t set_operator(uint32_t name);
// `uncounted` is the library that takes memory of its own for it which nobody knows.
uint32_t operator_number(const char* name, const char* uncounted = nullptr);
// How often memory has run out in this thread; and that an operator which returned has itself dealt with all since so many, as cuDNN's do that
// try another algorithm: nobody has caught those.
size_t times_out_of_memory();
void dealt_with_out_of_memory(size_t since);
// Something of ours failed, which a script must not see: what it is for is missing.
void left_out(const char* what, const std::string& why);
// Attention keeps its scores; `why` is asked once for each place.
void tell_unfused(const std::function<std::string()>& why);
void follow_attention();
// The simulated GPU cannot run an operator.
void refused(const char* operator_name);
uint32_t current_step();
// Where this thread is, by the numbers of an event.
struct Place {
  Phase phase;
  uint32_t step, stack, origin, module;
};
Place look_for_place();

}  // namespace vramlab::rehearsal
