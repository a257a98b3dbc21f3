// What others would feel of a rehearsal: signals to their processes, shared memory that is theirs, and what is sent to them.
#include "held.h"

#include <netdb.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <arpa/inet.h>

namespace held {

int guard_process = 0;

namespace {

// ---- processes -----------------------------------------------------------------------------------------------------------------------------

int parent_of(int process) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  const int file = raw_open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  // After its name, which can hold anything: state and parent.
  const char* after = strrchr(text, ')');
  int parent = 0;
  return after && sscanf(after + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

// Whether a process is this rehearsal's: orphans become children of its guard.
bool is_of_this_job(int process) {
  if (!table || !guard_process || process == getpid()) return true;
  for (int tries = 0; process > 1 && tries < 256; tries++) {
    process = parent_of(process);
    if (process == guard_process) return true;
  }
  return false;
}

// To one process or to a group of them, as `kill` has it; 0 asks whether it is there.
int send(int to, int signal) {
  const auto raw = [&](int process) { return static_cast<int>(syscall(SYS_kill, process, signal)); };
  if (!table || signal == 0 || (to > 0 && is_of_this_job(to))) return raw(to);
  // One that is not there is not refused.
  if (to > 0) return syscall(SYS_kill, to, 0) == 0 ? refused(EPERM) : -1;
  const int group = to == 0 ? getpgrp() : -to, own = getpid();
  int found = 0, sent = 0, error = ESRCH;
  DIR* processes = opendir("/proc");
  while (const dirent* entry = processes ? readdir(processes) : nullptr) {
    const int process = atoi(entry->d_name);
    if (process <= 0 || process == own || (to != -1 && getpgid(process) != group)) continue;
    found++;
    if (!is_of_this_job(process)) error = EPERM;
    else if (raw(process) == 0) sent++;
  }
  if (processes) closedir(processes);
  // Last, since it may end by it; it gets none of those that are for all others.
  if (to != -1 && getpgrp() == group) found++, sent += raw(own) == 0;
  return sent ? 0 : refused(found ? error : ESRCH);
}

// ---- shared memory -------------------------------------------------------------------------------------------------------------------------

// By a name that other jobs' objects do not have, in a folder of this rehearsal's.
bool shared_path(const char* name, const char* before, char* path) {
  name += strspn(name, "/");
  if (!*name || strchr(name, '/')) return refused(EINVAL) == 0;
  const int length = snprintf(path, kPath, "%s/%s%s", shared, before, name);
  return static_cast<size_t>(length) < kPath - 32 || refused(ENAMETOOLONG) == 0;
}

sem_t* map_semaphore(int file) {
  void* at = mmap(nullptr, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return static_cast<sem_t*>(at);
}

sem_t* open_semaphore(const char* path, int flags, mode_t mode, unsigned value) {
  char made[kPath];
  for (;;) {
    const int file = flags & O_CREAT && flags & O_EXCL ? refused(ENOENT) : raw_open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file >= 0) return map_semaphore(file);
    if (errno != ENOENT || !(flags & O_CREAT)) return SEM_FAILED;
    // Others find it whole, or not at all.
    snprintf(made, sizeof made, "%s.%ld~", path, static_cast<long>(syscall(SYS_gettid)));
    const int fresh = raw_open(made, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fresh < 0) return SEM_FAILED;
    if (ftruncate(fresh, sizeof(sem_t)) != 0) return close(fresh), raw_unlink(made), SEM_FAILED;
    sem_t* semaphore = map_semaphore(fresh);
    if (semaphore == MAP_FAILED) return raw_unlink(made), SEM_FAILED;
    const bool is_put = sem_init(semaphore, 1, value) == 0 && syscall(SYS_linkat, AT_FDCWD, made, AT_FDCWD, path, 0) == 0;
    const int error = errno;
    raw_unlink(made);
    if (is_put) return semaphore;
    munmap(semaphore, sizeof(sem_t));
    if (error != EEXIST || flags & O_EXCL) return errno = error, SEM_FAILED;
  }
}

// ---- the network ---------------------------------------------------------------------------------------------------------------------------

// Connections of this process by their numbers.
uint8_t is_connected[1 << 16];

// Address and port as text; false of what is no stream of the internet.
bool address_of(int socket, const sockaddr* address, char* text, size_t room, bool only_port) {
  int kind = 0;
  socklen_t length = sizeof kind;
  if (!address || getsockopt(socket, SOL_SOCKET, SO_TYPE, &kind, &length) != 0 || kind != SOCK_STREAM) return false;
  char name[INET6_ADDRSTRLEN];
  const auto* four = reinterpret_cast<const sockaddr_in*>(address);
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  const bool is_four = address->sa_family == AF_INET;
  if (!is_four && address->sa_family != AF_INET6) return false;
  const void* bytes = is_four ? static_cast<const void*>(&four->sin_addr) : &six->sin6_addr;
  if (!inet_ntop(address->sa_family, bytes, name, sizeof name)) return false;
  const int port = ntohs(is_four ? four->sin_port : six->sin6_port);
  only_port ? snprintf(text, room, "%d", port) : snprintf(text, room, "%s %d", name, port);
  return true;
}

void note_line(const char* kind, const char* text) {
  char line[600];
  const int length = snprintf(line, sizeof line, "%s %s\n", kind, text);
  if (static_cast<size_t>(length) < sizeof line) note("network", line, static_cast<size_t>(length));
}

// What was sent to whom; before its end.
void note_sent(int socket) {
  if (!table || socket < 0 || socket >= static_cast<int>(sizeof is_connected) || !is_connected[socket]) return;
  is_connected[socket] = 0;
  const int before = errno;
  // Of linux/tcp.h's tcp_info, the bytes that the other side has, and those that were sent, which Linux has since 4.19.
  constexpr size_t kReceived = 120, kSent = 200;
  alignas(8) char about[256] = {}, text[128];
  socklen_t length = sizeof about, room = sizeof(sockaddr_in6);
  sockaddr_in6 address = {};
  if (getsockopt(socket, IPPROTO_TCP, 11, about, &length) == 0 && getpeername(socket, reinterpret_cast<sockaddr*>(&address), &room) == 0 &&
      address_of(socket, reinterpret_cast<const sockaddr*>(&address), text, sizeof text, false)) {
    uint64_t sent;
    memcpy(&sent, about + (length >= kSent + sizeof sent ? kSent : kReceived), sizeof sent);
    snprintf(text + strlen(text), sizeof text - strlen(text), " %llu", static_cast<unsigned long long>(sent));
    if (sent) note_line("sent", text);
  }
  errno = before;
}

__attribute__((destructor)) void note_all_sent() {
  for (size_t i = 0; table && i < sizeof is_connected; i++) note_sent(static_cast<int>(i));
}

}  // namespace

void note_connected(int socket, const sockaddr* address, bool is_open) {
  char text[128];
  if (!table || socket < 0 || socket >= static_cast<int>(sizeof is_connected) || !address_of(socket, address, text, sizeof text, false)) return;
  is_connected[socket] = 1;
  // Whose process may be ended before it is closed.
  if (is_open) note_line("open", text);
}

}  // namespace held

using namespace held;

extern "C" {

STANDS_FOR(int, "kill", kill_of, pid_t to, int signal) { return send(to, signal); }
STANDS_FOR(int, "killpg", kill_group, pid_t group, int signal) { return group < 0 ? refused(EINVAL) : send(group == 1 ? -getpgrp() : -group, signal); }

STANDS_FOR(int, "shm_open", open_shared, const char* name, int flags, mode_t mode) {
  BEHIND(int, "shm_open", const char*, int, mode_t);
  char path[kPath];
  if (!table) return behind_it(name, flags, mode);
  return shared_path(name, "", path) ? raw_open(path, flags | O_NOFOLLOW | O_CLOEXEC, mode) : -1;
}
STANDS_FOR(int, "shm_unlink", unlink_shared, const char* name) {
  BEHIND(int, "shm_unlink", const char*);
  char path[kPath];
  if (!table) return behind_it(name);
  return shared_path(name, "", path) ? raw_unlink(path) : -1;
}
STANDS_FOR(sem_t*, "sem_open", open_semaphore_of, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  const unsigned value = flags & O_CREAT ? va_arg(more, unsigned) : 0;
  va_end(more);
  BEHIND(sem_t*, "sem_open", const char*, int, ...);
  char path[kPath];
  if (!table) return behind_it(name, flags, mode, value);
  return shared_path(name, "sem.", path) ? open_semaphore(path, flags, mode, value) : SEM_FAILED;
}
STANDS_FOR(int, "sem_unlink", unlink_semaphore, const char* name) {
  BEHIND(int, "sem_unlink", const char*);
  char path[kPath];
  if (!table) return behind_it(name);
  return shared_path(name, "sem.", path) ? raw_unlink(path) : -1;
}
STANDS_FOR(int, "sem_close", close_semaphore, sem_t* semaphore) {
  BEHIND(int, "sem_close", sem_t*);
  return table ? munmap(semaphore, sizeof(sem_t)) : behind_it(semaphore);
}
// Of System V: another's is not removed.
STANDS_FOR(int, "shmctl", control_shared, int number, int command, shmid_ds* about) {
  BEHIND(int, "shmctl", int, int, shmid_ds*);
  shmid_ds found = {};
  if (table && command == IPC_RMID && behind_it(number, IPC_STAT, &found) == 0 && !is_of_this_job(found.shm_cpid)) return refused(EPERM);
  return behind_it(number, command, about);
}

STANDS_FOR(int, "listen", listen_at, int socket, int most) {
  const int done = static_cast<int>(syscall(SYS_listen, socket, most));
  sockaddr_in6 address = {};
  socklen_t length = sizeof address;
  char port[16];
  // What connects to it stays in this job.
  if (table && done == 0 && getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      address_of(socket, reinterpret_cast<const sockaddr*>(&address), port, sizeof port, true)) {
    note_line("listens", port);
  }
  return done;
}
STANDS_FOR(int, "getaddrinfo", addresses_of, const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  BEHIND(int, "getaddrinfo", const char*, const char*, const addrinfo*, addrinfo**);
  const int failed = behind_it(name, service, hints, found);
  const int before = errno;
  for (const addrinfo* one = failed || !table || !name ? nullptr : *found; one; one = one->ai_next) {
    char number[INET6_ADDRSTRLEN], text[512];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, number, sizeof number, nullptr, 0, NI_NUMERICHOST) != 0 || strcmp(number, name) == 0) continue;
    snprintf(text, sizeof text, "%s %.255s", number, name);
    note_line("name", text);
  }
  errno = before;
  return failed;
}
STANDS_FOR(int, "close", close_file, int file) {
  note_sent(file);
  return static_cast<int>(syscall(SYS_close, file));
}
[[noreturn]] void end_at_once(int status) asm("_exit");
void end_at_once(int status) {
  note_all_sent();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
}
