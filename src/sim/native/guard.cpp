// The process that stays above a command: it is the parent of all orphans below, and ends them when vramlab says so, or is gone (start.cpp).
#include "start.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace {

// Sends a signal to all children; those of a child that ends become the guard's own.
void signal_children(int signal) {
  DIR* processes = opendir("/proc");
  if (!processes) return;
  const int own = getpid();
  while (const dirent* entry = readdir(processes)) {
    const int process = atoi(entry->d_name);
    if (process <= 0) continue;
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    // After its name, which can hold anything: state and parent.
    const char* after = strrchr(text, ')');
    int parent = 0;
    if (after && sscanf(after + 1, " %*c %d", &parent) == 1 && parent == own) kill(process, signal);
  }
  closedir(processes);
}

[[noreturn]] void end_as(int status) {
  if (WIFSIGNALED(status)) {
    prctl(PR_SET_DUMPABLE, 0);
    signal(WTERMSIG(status), SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    kill(getpid(), WTERMSIG(status));
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void remove_folder(const char* folder) {
  const auto remove = [](const char* path, const struct stat*, int type, FTW*) {
    syscall(SYS_unlinkat, AT_FDCWD, path, type == FTW_DP || type == FTW_DNR ? AT_REMOVEDIR : 0);
    return 0;
  };
  nftw(folder, remove, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

// Those of a rehearsal whose owner was killed (`Session` in run/session.rs).
void remove_folders() {
  constexpr const char* kNames[] = {"temporary", "shared"};
  for (const char* name : kNames) {
    const char* held = setting("VRAMLAB_REHEARSAL_HELD");
    char path[4096], folder[4096] = {};
    snprintf(path, sizeof path, "%s/%s", held ? held : "", name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, folder, sizeof folder - 1) > 0) remove_folder(folder);
    if (file >= 0) close(file);
  }
  remove_folder(setting("VRAMLAB_REHEARSAL"));
}

[[noreturn]] void guard(pid_t command, pid_t owner) {
  // A Ctrl-C is for the command; vramlab asks for the end by SIGTERM, as the kernel does when vramlab is gone.
  // A signal to vramlab's whole group is for the command, not for who ends what the command leaves.
  setsid();
  sigset_t all, awaited;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  sigaddset(&awaited, SIGTERM);
  prctl(PR_SET_NAME, "vramlab-guard");
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  bool is_ending = getppid() != owner;
  int status = 0, rounds = 0;
  constexpr int kAsked = 20, kMade = 120;
  for (;;) {
    int one = 0;
    pid_t ended;
    while ((ended = waitpid(-1, &one, WNOHANG)) > 0) {
      if (ended != command) continue;
      status = one;
      char path[4096];
      snprintf(path, sizeof path, "%s/command-ended", setting("VRAMLAB_REHEARSAL"));
      const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
      if (file >= 0) close(file);
    }
    if (ended < 0 && errno == ECHILD) {
      if (getppid() != owner) remove_folders();
      end_as(status);
    }
    // First asked, then made. What cannot be ended, because it is another user's, is left.
    if (is_ending && rounds++ > kMade) end_as(status);
    if (is_ending) signal_children(rounds < kAsked ? SIGTERM : SIGKILL);
    if (is_ending) {
      const timespec a_while = {0, 100'000'000};
      nanosleep(&a_while, nullptr);
    } else if (sigwaitinfo(&awaited, nullptr) == SIGTERM) {
      is_ending = true;
    }
  }
}

}  // namespace

bool stand_guard() {
  const char* set = take("VRAMLAB_REHEARSAL_OWNER=");
  if (!set) return false;
  const pid_t owner = atoi(strchr(set, '=') + 1);
  const pid_t before = getpid();
  // Before there is a command: one that leaves at once would leave its children to init. What is forked does not inherit it.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t copy = fork();
  if (copy > 0) guard(copy, owner);
  if (copy < 0) prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (copy == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != before) _exit(2);
  }
  return true;
}
