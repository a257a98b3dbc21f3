// What c10d's ProcessGroupGloo.hpp names of Gloo. Gloo itself is inside libtorch_cpu, and its headers are not in PyTorch's wheel; c10d's are.
//
// c10d's classes hold Gloo's by pointer alone, so their layout depends on none of Gloo's. Here that is not believed but checked: a type
// that stays incomplete cannot be laid out, copied or called, and a constructor that nobody defines cannot be linked.
#pragma once
#include <chrono>
#include <memory>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

// The header's own code calls this one function; libtorch_cpu has it.
class Context {
 public:
  Context() = delete;
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
