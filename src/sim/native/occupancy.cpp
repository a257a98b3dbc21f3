// A file that all processes of a rehearsal map, of words of 64 bits (src/rehearse/src/occupancy.rs reads it): a lock, how many processes have come,
// whether there was room for all of them, how many cards each has figures for, and four zeros; for each card the most that was in use at once and who had it; then the processes. One
// that was killed leaves its row: others find out, and take what it had for free.
//
// A rehearsed process is stopped after its steps, where a real one would go on. What it had stays taken for those that had begun before, since
// they would run beside it; who was started after its end is taken to have waited for that, as a sweep of one trial a process does.
#include "occupancy.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vramlab::occupancy {
namespace {

constexpr int kMostProcesses = 1024, kMostShares = 32;

struct OnCard {
  // Bytes now, its context among them; what it had when it was stopped; the most it ever had; its context; and what of it others than PyTorch's
  // allocator have, now and at most.
  uint64_t used, held, peak, context, outside, outside_peak;
};
struct Process {
  // Nanoseconds since the machine started. `gone` is 1 of one that is known to have ended.
  uint64_t id, parent, started, last, stopped, gone;
  // The library that last took memory outside of PyTorch's allocator.
  char outside[80];
  OnCard cards[kMostCards];
};
struct Peak {
  uint64_t bytes, count;
  struct Share {
    uint64_t process, bytes;
  } shares[kMostShares];
};
struct Board {
  std::atomic<uint64_t> owner;
  // 0 of cards is 16, as a rehearsal has it that was kept before there could be more.
  uint64_t count, crowded, cards, zeros[4];
  Peak peaks[kMostCards];
  Process processes[kMostProcesses];
};
static_assert(sizeof(Process) == 3200 && sizeof(Peak) == 528, "what src/rehearse/src/occupancy.rs reads");

Board alone;
std::atomic<Board*> mapped{nullptr};
Process* own = nullptr;

Board& board() {
  const auto map = []() -> Board* {
    const char* folder = std::getenv("VRAMLAB_REHEARSAL");
    char path[4200];
    if (!folder || std::snprintf(path, sizeof path, "%s/cards", folder) >= int(sizeof path)) return &alone;
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return &alone;
    // A page of a file on a full disk is a bus error when it is written to.
    const bool has_room = posix_fallocate(file, 0, sizeof(Board)) == 0;
    void* const at = has_room ? mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (at == MAP_FAILED) return &alone;
    static_cast<Board*>(at)->cards = kMostCards;
    return static_cast<Board*>(at);
  };
  if (!mapped) mapped = map();
  return *mapped;
}

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_BOOTTIME, &time);
  return uint64_t(time.tv_sec) * 1'000'000'000 + uint64_t(time.tv_nsec);
}

struct Status {
  char state = 0;
  uint64_t started = 0, parent = 0;
  bool runs() const { return state && state != 'Z' && state != 'X'; }
};
Status status_of(uint64_t process) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(process));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  // After its name, which can hold anything: the state, its parent, and as the twentieth the start in ticks.
  const char* at = std::strrchr(text, ')');
  unsigned long long parent = 0, ticks = 0;
  Status status;
  if (!at || std::sscanf(at + 1, " %c %llu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &status.state, &parent,
                         &ticks) != 3) {
    return {};
  }
  status.parent = parent;
  status.started = ticks * (1'000'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
  return status;
}

// One that was killed inside of it gives it up.
struct Locked {
  Locked() {
    const auto me = static_cast<uint64_t>(getpid());
    for (int tries = 1;; tries++) {
      uint64_t owner = 0;
      if (board().owner.compare_exchange_weak(owner, me)) return;
      if (tries % 1000 == 0 && owner && !status_of(owner).runs() && board().owner.compare_exchange_strong(owner, me)) return;
      sched_yield();
    }
  }
  ~Locked() { board().owner.store(0); }
};

void find_out(Process& process) {
  if (&process == own || process.gone) return;
  const Status status = status_of(process.id);
  if (status.runs() && status.started == process.started) return;
  // Where there is no /proc that tells.
  if (!status.state && kill(static_cast<pid_t>(process.id), 0) == 0) return;
  process.gone = 1;
  for (OnCard& card : process.cards) card.used = card.outside = 0;
}

// This process's row; null where there is no room for one more.
Process* row() {
  Board& all = board();
  if (own) return own;
  const auto me = static_cast<uint64_t>(getpid());
  const Status status = status_of(me);
  for (uint64_t i = 0; i < all.count; i++) {
    Process& other = all.processes[i];
    // Those that have ended by now did so before this one had anything.
    find_out(other);
    // Another program in the same process: what it had before is free.
    if (other.id == me && other.started == status.started && !other.gone) {
      other.gone = 1;
      for (OnCard& card : other.cards) card.used = card.outside = 0;
    }
  }
  if (all.count < kMostProcesses) {
    own = &all.processes[all.count++];
  } else {
    // In the place of the one that has ended and had least.
    const auto most_of = [](const Process& process) {
      uint64_t most = 0;
      for (const OnCard& card : process.cards) most = std::max(most, card.peak);
      return most;
    };
    for (Process& other : all.processes)
      if (other.gone && (!own || most_of(other) < most_of(*own))) own = &other;
    if (!own) all.crowded = 1;
    if (!own) return nullptr;
  }
  *own = {};
  own->id = me;
  own->parent = status.parent;
  own->started = status.started;
  return own;
}

// What is in use of a card for this process, share by share: of others what they have, or had when they were stopped.
template <typename Call>
uint64_t each_share(int card, Call call) {
  Board& all = board();
  const uint64_t me = own ? own->id : static_cast<uint64_t>(getpid());
  uint64_t sum = 0;
  // Of those that were stopped and have ended, the ones that would run at one time: they need not all have run together.
  const Process* held[kMostProcesses];
  int holding = 0;
  const uint64_t started = own ? own->started : status_of(me).started;
  for (uint64_t i = 0; i < all.count; i++) {
    Process& process = all.processes[i];
    OnCard& has = process.cards[card];
    if (!has.used && !has.held) continue;
    find_out(process);
    const bool is_beside = process.stopped > started;
    // A parent that has seen its child end has waited for it.
    const bool is_over = process.gone && process.parent == me && !status_of(process.id).state;
    const uint64_t bytes = process.gone ? 0 : is_beside && &process != own ? std::max(has.used, has.held) : has.used;
    if (bytes) {
      call(process.id, bytes);
      sum += bytes;
    } else if (process.gone && is_beside && !is_over) {
      held[holding++] = &process;
    }
  }
  uint64_t most = 0, when = 0;
  const auto at = [&](const Process* process, uint64_t time) { return process->started <= time && time < process->stopped; };
  for (int i = 0; i < holding; i++) {
    uint64_t together = 0;
    for (int j = 0; j < holding; j++) together += at(held[j], held[i]->started) ? held[j]->cards[card].held : 0;
    if (together > most) most = together, when = held[i]->started;
  }
  for (int i = 0; most && i < holding; i++) {
    if (at(held[i], when)) call(held[i]->id, held[i]->cards[card].held);
  }
  return sum + most;
}

void keep_peak(int card) {
  Peak now_used = {};
  now_used.bytes = each_share(card, [&](uint64_t process, uint64_t bytes) {
    if (now_used.count < kMostShares) now_used.shares[now_used.count++] = {process, bytes};
  });
  if (now_used.bytes > board().peaks[card].bytes) board().peaks[card] = now_used;
}

bool add(int card, uint64_t memory, uint64_t bytes, const char* outside) {
  Process* const process = row();
  if (!process) return true;
  OnCard& has = process->cards[card];
  const uint64_t context = has.context ? 0 : context_bytes();
  if (!bytes && !context) return true;
  const uint64_t in_use = each_share(card, [](uint64_t, uint64_t) {});
  if (in_use > memory || bytes + context > memory - in_use) return false;
  has.used += bytes + context;
  has.context += context;
  has.peak = std::max(has.peak, has.used);
  if (outside) {
    has.outside += bytes;
    has.outside_peak = std::max(has.outside_peak, has.outside);
    std::strncpy(process->outside, outside, sizeof process->outside - 1);
  }
  process->last = now();
  if (in_use + bytes + context > board().peaks[card].bytes) keep_peak(card);
  return true;
}

__attribute__((destructor)) void end() {
  if (own && own->id == static_cast<uint64_t>(getpid())) own->last = now();
}

}  // namespace

uint64_t context_bytes() {
  static const uint64_t bytes = [] {
    const char* set = std::getenv("VRAMLAB_DRY_TAKEN");
    return set ? std::strtoull(set, nullptr, 10) : 0;
  }();
  return bytes;
}

bool take(int card, uint64_t memory, uint64_t bytes, const char* outside) {
  const Locked lock;
  return add(card, memory, bytes, outside);
}

void give(int card, uint64_t bytes, bool outside) {
  const Locked lock;
  if (!own) return;
  OnCard& has = own->cards[card];
  has.used -= std::min(has.used, bytes);
  if (outside) has.outside -= std::min(has.outside, bytes);
  own->last = now();
}

uint64_t used(int card, uint64_t memory) {
  const Locked lock;
  add(card, memory, 0, nullptr);
  return each_share(card, [](uint64_t, uint64_t) {});
}

bool is_up(int card) { return own && own->cards[card].context; }

void each_process(int card, const std::function<void(int process, uint64_t bytes)>& call) {
  const Locked lock;
  each_share(card, [&](uint64_t process, uint64_t bytes) { call(static_cast<int>(process), bytes); });
}

void forked() {
  own = nullptr;
  if (mapped == &alone) std::memset(static_cast<void*>(&alone), 0, sizeof alone);
}

}  // namespace vramlab::occupancy

void vramlab_dry_hold() {
  using namespace vramlab::occupancy;
  const Locked lock;
  if (!own || own->stopped) return;
  own->stopped = now();
  for (OnCard& card : own->cards) card.held = card.used;
}

namespace {

struct Ending {
  pid_t process;
  char path[4200];
} ending;

void tell_status(int status) {
  if (status == 0 || ending.process != getpid()) return;
  const int file = open(ending.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  if (file >= 0) dprintf(file, "%d %lld\n", status, time.tv_sec * 1'000'000'000ll + time.tv_nsec), close(file);
}

}  // namespace

// Has a process that ends with another status than 0 leave that in a file of that name, as far as it ends by exit: by `sys.exit` of Python's. One that
// was forked has another.
void vramlab_dry_tell_status(const char* path) {
  const bool is_known = ending.process != 0;
  ending.process = getpid();
  std::snprintf(ending.path, sizeof ending.path, "%s", path);
  if (!is_known) on_exit([](int status, void*) { tell_status(status); }, nullptr);
}

// Has exit be the end: what libraries give back of their own memory there takes longer than a small script. Called when Python begins to end, so that
// this comes before what they have registered.
void vramlab_dry_leave_at_exit() {
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        tell_status(status);
        vramlab::occupancy::end();
        _exit(status);
      },
      nullptr);
}
