// The script's clocks. The program that rehearses the script predicts them (src/rehearse/src/run/clock.rs): it is sent what each operator has for
// the GPU to do, over a socket, whenever a clock is read, and answers with where host and device are.
#include "work.h"

#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

namespace vramlab::rehearsal {
namespace {

// Before its records.
struct Request {
  uint32_t records;
  uint16_t device;
  // The host waited for the device; it is another stream than the first that is asked about.
  uint8_t has_waited, beside;
  // Since the last record.
  uint64_t host_nanoseconds;
  double idle;
};
static_assert(sizeof(Request) == 24, "what src/rehearse/src/run/clock.rs reads");

std::mutex clock_mutex;
std::string clock_name;
int descriptor = -1;
// When this thread last read it, by the wall's clock and by the processor's.
thread_local double read_wall = 0, read_processor = 0;

double seconds_of(clockid_t which) { return 1e-9 * static_cast<double>(clock_of(which)); }

bool is_there() {
  if (descriptor >= 0) return true;
  if (clock_name.empty() || clock_name.size() + 1 >= sizeof(sockaddr_un::sun_path)) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A name without a file.
  std::memcpy(address.sun_path + 1, clock_name.data(), clock_name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + clock_name.size());
  descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor >= 0 && ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    follow_clock();
    return true;
  }
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
  clock_name.clear();
  return false;
}

template <typename Call>
bool whole(Call call, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t now = call(done);
    if (now <= 0 && !(now < 0 && errno == EINTR)) return false;
    done += static_cast<size_t>(std::max<ssize_t>(now, 0));
  }
  return true;
}

bool sent(const void* data, size_t bytes) {
  return whole([&](size_t at) { return ::send(descriptor, static_cast<const char*>(data) + at, bytes - at, MSG_NOSIGNAL); }, bytes);
}

}  // namespace

double read_clock(const uint64_t* stream, double idle) {
  const uint64_t host = host_time_passed();
  const OwnTime time;
  const std::lock_guard<std::mutex> lock(clock_mutex);
  if (!is_there()) return -1;
  const std::vector<Work> works = take_untold();
  const double wall = seconds_of(CLOCK_MONOTONIC), processor = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  // A loop that waits for something else than the GPU: the time that really passes.
  if (works.empty() && read_wall > 0) idle = std::max(0.0, wall - read_wall - (processor - read_processor));
  read_wall = wall, read_processor = processor;
  const auto device = static_cast<uint16_t>(c10::cuda::getCurrentCUDAStream().device_index());
  const Request request{static_cast<uint32_t>(works.size()), device, has_waited(), stream && *stream != 0, host, idle};
  double answer[2] = {-1, -1};
  const auto read = [&](size_t at) { return ::recv(descriptor, reinterpret_cast<char*>(answer) + at, sizeof answer - at, 0); };
  if (!sent(&request, sizeof request) || !sent(works.data(), works.size() * sizeof(Work)) || !whole(read, sizeof answer)) {
    ::close(descriptor);
    descriptor = -1;
    clock_name.clear();
    return -1;
  }
  return answer[stream ? 1 : 0];
}

EXPORTED double vl_clock(double idle) { return read_clock(nullptr, idle); }

// Whom to ask.
EXPORTED void vl_open_clock(const char* name) {
  clock_name = name;
  auto* const ask = static_cast<double (**)(const uint64_t*)>(dlsym(RTLD_DEFAULT, "vramlab_dry_clock"));
  if (ask) *ask = [](const uint64_t* stream) { return read_clock(stream, 0); };
}

void leave_clock() {
  clock_name.clear();
  descriptor = -1;
}

}  // namespace vramlab::rehearsal
