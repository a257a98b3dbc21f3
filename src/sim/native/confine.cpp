// What the kernel refuses a rehearsal, whatever its programs are: those that are linked statically and those that call the kernel themselves, too.
//
// - Where it lets us, a mount namespace in which all but this rehearsal's own folders is read-only, with a /dev of harmless devices and shared memory of
//   System V of its own. Not an overlay: the library leads what is written elsewhere on every kernel, and rehearsals that are copies of one process
//   begin anew, while a mounted overlay's upper folder must not be changed.
// - Landlock, by the rights that this kernel has. From Linux 6.12 on it also keeps signals from others' processes. Its rules for TCP know ports and no
//   hosts: they could not tell an upload from a download.
// - Where it has neither, programs that the preloaded library cannot be in are not started.
#include "held.h"

#include <elf.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace held {

bool is_apart = false;

namespace {

// The rest of /dev are disks, GPUs and what else a script has no use for.
constexpr char kDevices[] = "/dev/null\n/dev/zero\n/dev/full\n/dev/random\n/dev/urandom\n/dev/tty\n/dev/ptmx\n/dev/pts\n";
constexpr char kGpus[] = "/dev/nvidia\n/dev/dri/\n/dev/kfd\n/dev/dxg\n";
bool hides_gpus = false;

template <typename Do>
bool each_line(const char* list, Do&& act) {
  bool all = true;
  for (const char* line = list; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    char path[kPath];
    snprintf(path, sizeof path, "%.*s", static_cast<int>(strcspn(line, "\n")), line);
    if (*path) all &= act(static_cast<const char*>(path));
  }
  return all;
}

// What this rehearsal may write: its folders, and the files that it was told to print to.
template <typename Do>
bool each_own(Do&& act) {
  bool all = each_line(real, act);
  for (int file = 1; file <= 2; file++) {
    char path[kPath];
    struct stat about;
    if (syscall(SYS_fstat, file, &about) == 0 && S_ISREG(about.st_mode) && about.st_nlink && path_of(file, path)) all &= act(static_cast<const char*>(path));
  }
  return all;
}

// ---- namespaces ----------------------------------------------------------------------------------------------------------------------------

bool write_text(const char* path, const char* text) {
  const int file = raw_open(path, O_WRONLY | O_CLOEXEC);
  const bool is_written = file >= 0 && syscall(SYS_write, file, text, strlen(text)) == static_cast<ssize_t>(strlen(text));
  if (file >= 0) close(file);
  return is_written;
}

// As linux/mount.h has it, which is not on every machine that compiles this.
bool set_read_only(const char* path, bool is_so, int flags = 0) {
  constexpr int kSetAttributes = 442;
  const uint64_t wanted[] = {is_so, !is_so, 0, 0};
  return syscall(kSetAttributes, AT_FDCWD, path, flags, wanted, sizeof wanted) == 0;
}

bool bind(const char* from, const char* to) { return mount(from, to, nullptr, MS_BIND, nullptr) == 0; }

bool mount_devices() {
  char folder[kPath], to[kPath + 300];
  snprintf(folder, sizeof folder, "%s/dev", folder_of_held);
  if ((mkdir(folder, 0755) != 0 && errno != EEXIST) || mount("none", folder, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755") != 0) return false;
  const bool all = each_line(kDevices, [&](const char* device) {
    struct stat about;
    if (stat(device, &about) != 0) return true;
    snprintf(to, sizeof to, "%s%s", folder, device + strlen("/dev"));
    const int made = S_ISDIR(about.st_mode) ? mkdir(to, 0755) : raw_open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (made > 0) close(made);
    return made >= 0 && bind(device, to);
  });
  snprintf(to, sizeof to, "%s/shm", folder);
  if (!all || mkdir(to, 0755) != 0 || (!bind("/dev/shm", to) && errno != ENOENT)) return false;
  constexpr const char* kLinks[][2] = {{"fd", ""}, {"stdin", "/0"}, {"stdout", "/1"}, {"stderr", "/2"}};
  for (const auto& link : kLinks) {
    char target[32];
    snprintf(to, sizeof to, "%s/%s", folder, link[0]);
    snprintf(target, sizeof target, "/proc/self/fd%s", link[1]);
    raw_link(target, to);
  }
  return mount(folder, "/dev", nullptr, MS_BIND | MS_REC, nullptr) == 0;
}

// Rights by which a process could undo this: of modules, of raw devices, of mounts, of restarts, of making devices.
void give_up_rights(bool all) {
  constexpr int kRights[] = {16, 17, 21, 22, 27};
  uint32_t header[] = {0x20080522, 0}, sets[6] = {};
  if (syscall(SYS_capget, header, sets) != 0) return;
  for (int right : kRights) {
    prctl(PR_CAPBSET_DROP, right, 0, 0, 0);
    for (int set = 0; set < 3; set++) sets[set] &= ~(1u << right);
  }
  if (all) memset(sets, 0, sizeof sets);
  syscall(SYS_capset, header, sets);
}

bool enter_namespaces() {
  char text[64];
  const unsigned user = geteuid(), group = getegid();
  // As root it needs no users of its own, to whom others' files would be nobody's.
  const bool has_rights = unshare(CLONE_NEWNS | CLONE_NEWIPC) == 0;
  if (!has_rights) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC) != 0) return false;
    snprintf(text, sizeof text, "%u %u 1", user, user);
    if (!write_text("/proc/self/uid_map", text)) return false;
    snprintf(text, sizeof text, "%u %u 1", group, group);
    if (!write_text("/proc/self/setgroups", "deny") || !write_text("/proc/self/gid_map", text)) return false;
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (!mount_devices() || !set_read_only("/", true, AT_RECURSIVE)) return false;
  const auto open_up = [](const char* path) {
    struct stat about;
    return stat(path, &about) != 0 || (bind(path, path) && set_read_only(path, false));
  };
  if (!each_own(open_up)) return false;
  // Where processes set what is their own, as their names; but for the machine's settings.
  if (bind("/proc/sys", "/proc/sys")) set_read_only("/proc", false);
  char where[kPath];
  // Its folder may be one of those that are mounted anew.
  if (syscall(SYS_getcwd, where, sizeof where) > 0 && *where == '/') syscall(SYS_chdir, where);
  give_up_rights(!has_rights);
  return true;
}

// A failure half way would leave a process in between, so that a child tries it first.
bool can_enter_namespaces() {
  const pid_t child = fork();
  if (child == 0) _exit(enter_namespaces() ? 0 : 1);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && status == 0;
}

// ---- Landlock ------------------------------------------------------------------------------------------------------------------------------

// As linux/landlock.h has it.
struct LandlockRules {
  uint64_t files, ports, scoped;
};
struct LandlockPath {
  uint64_t allowed;
  int file;
} __attribute__((packed));
constexpr int kCreateRules = 444, kAddRule = 445, kRestrict = 446;
// Of a file: to write and to empty it; and to command a device.
constexpr uint64_t kWrite = 1 << 1, kTruncate = 1 << 14, kCommand = 1 << 15, kOfFiles = kWrite | kTruncate | kCommand;
// Of a folder: to remove from it and to make each kind of file in it; and to move files between folders, which the first version always refuses.
constexpr uint64_t kMake = 0x1ff << 4, kMove = 1 << 13;

void allow(int rules, uint64_t rights, const char* path) {
  LandlockPath rule = {rights, raw_open(path, O_PATH | O_CLOEXEC)};
  if (rule.file < 0) return;
  struct stat about;
  if (syscall(SYS_fstat, rule.file, &about) == 0 && !S_ISDIR(about.st_mode)) rule.allowed &= kOfFiles;
  syscall(kAddRule, rules, 1, &rule, 0);
  close(rule.file);
}

// Gives the version that restricts; 0 where none does.
long restrict_by_landlock() {
  const long version = syscall(kCreateRules, nullptr, 0, 1);
  if (version < 1) return 0;
  LandlockRules handled = {kWrite | kMake, 0, 0};
  if (version >= 2) handled.files |= kMove;
  if (version >= 3) handled.files |= kTruncate;
  if (version >= 5 && hides_gpus) handled.files |= kCommand;
  // Signals reach what is restricted alike, which are this rehearsal's processes.
  if (version >= 6) handled.scoped = 1 << 1;
  const int rules = static_cast<int>(syscall(kCreateRules, &handled, sizeof handled, 0));
  if (rules < 0) return 0;
  const auto may_write = [&](const char* path) { return allow(rules, handled.files & ~kCommand, path), true; };
  each_own(may_write);
  may_write("/proc");
  each_line(hides_gpus ? kDevices : "/dev", [&](const char* device) { return allow(rules, handled.files & kOfFiles, device), true; });
  const bool is_done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(kRestrict, rules, 0) == 0;
  close(rules);
  return is_done ? version : 0;
}

// What confines this process, as `HeldBy` in capture/held.rs has it; null where nothing does.
const char* confine() {
  // For tests: the strongest that is tried.
  const char* most = getenv("VRAMLAB_HELD_BY");
  // A real GPU that is measured has all that it was tried with.
  const bool tries_mounts = hides_gpus && (!most || strcmp(most, "namespace") == 0), tries_landlock = !most || strcmp(most, "library") != 0;
  is_apart = tries_mounts && can_enter_namespaces() && enter_namespaces();
  // Where all is read-only, the first version would only be in the way of moving files.
  const bool has_move = syscall(kCreateRules, nullptr, 0, 1) >= 2;
  const long version = tries_landlock && (has_move || !is_apart) ? restrict_by_landlock() : 0;
  if (is_apart) return "\"namespace\"";
  if (version) return version >= 3 ? "\"landlock\"" : "\"landlock-without-truncation\"";
  return nullptr;
}

// Where files are that this process was started with, open for writing, are copied, too.
void hold_open_files() {
  for (int file = 3; file < 256; file++) {
    const int flags = fcntl(file, F_GETFL), closes = fcntl(file, F_GETFD);
    struct stat about;
    char path[kPath];
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || syscall(SYS_fstat, file, &about) != 0 || !S_ISREG(about.st_mode) || !about.st_nlink) continue;
    if (!path_of(file, path) || is_ours(path) || is_in(real, path)) continue;
    const off_t at = lseek(file, 0, SEEK_CUR);
    const int held = open_held(AT_FDCWD, path, flags & (O_ACCMODE | O_APPEND), 0);
    const int instead = held >= 0 ? held : raw_open("/dev/null", O_RDWR);
    lseek(instead, at, SEEK_SET);
    dup3(instead, file, closes & FD_CLOEXEC ? O_CLOEXEC : 0);
    close(instead);
  }
}

// ---- where the kernel refuses nothing ------------------------------------------------------------------------------------------------------

bool is_guarded = false;

// Whether this library is in a program once it is started: one for this processor that the C library's own loader starts, with no more rights.
bool is_followed(const char* path) {
  const int file = raw_open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  alignas(Elf64_Ehdr) char head[4096];
  const ssize_t length = syscall(SYS_read, file, head, sizeof head);
  struct stat about = {};
  syscall(SYS_fstat, file, &about);
  close(file);
  if (length < static_cast<ssize_t>(sizeof(Elf64_Ehdr)) || memcmp(head, ELFMAG, SELFMAG) != 0) return true;
  if ((about.st_mode & S_ISUID) && about.st_uid != geteuid()) return false;
  Elf64_Ehdr header;
  memcpy(&header, head, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return false;
  for (int i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr part;
    const size_t at = header.e_phoff + static_cast<size_t>(i) * header.e_phentsize;
    if (at + sizeof part > static_cast<size_t>(length)) break;
    memcpy(&part, head + at, sizeof part);
    if (part.p_type != PT_INTERP || part.p_offset + part.p_filesz > static_cast<size_t>(length) || !part.p_filesz) continue;
    head[part.p_offset + part.p_filesz - 1] = 0;
    return !strstr(head + part.p_offset, "musl");
  }
  return false;
}

char* whole_text(const char* name) {
  char path[kPath + 16];
  snprintf(path, sizeof path, "%s/%s", folder_of_held, name);
  const int file = raw_open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  if (file < 0 || syscall(SYS_fstat, file, &about) != 0) return nullptr;
  auto* text = static_cast<char*>(malloc(static_cast<size_t>(about.st_size) + 1));
  const ssize_t length = text ? syscall(SYS_read, file, text, about.st_size) : -1;
  close(file);
  if (length < 0) return nullptr;
  text[length] = 0;
  return text;
}

}  // namespace

bool is_gpu(const char* path) {
  return hides_gpus && strncmp(path, "/dev/", 5) == 0 && !each_line(kGpus, [&](const char* gpu) { return strncmp(path, gpu, strlen(gpu)) != 0; });
}

}  // namespace held

using namespace held;

void hide_gpus() { hides_gpus = true; }

void hold_writes(const char* folder, bool is_first) {
  snprintf(folder_of_held, sizeof folder_of_held, "%s", folder);
  snprintf(upper, sizeof upper, "%s/files", folder);
  real = whole_text("real");
  temporary = whole_text("temporary");
  shared = whole_text("shared");
  char path[kPath + 16], text[32];
  snprintf(path, sizeof path, "%s/table", folder);
  const int file = raw_open(path, O_RDWR | O_CLOEXEC);
  void* mapped = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (!real || !temporary || !shared || mapped == MAP_FAILED) {
    say("vramlab: what this process would write could not be held back, so it is not started; --writes lets it write\n");
    _exit(2);
  }
  close(file);
  upper_length = strlen(upper);
  table = static_cast<Table*>(mapped);
  // What the first process leaves for the others: whose children all of them are, and whether the kernel guards.
  if (is_first) {
    note("guard", text, static_cast<size_t>(snprintf(text, sizeof text, "%d", getppid())));
    hold_open_files();
    if (const char* by = confine()) note("guarded", by, strlen(by));
  }
  char* by = whole_text("guarded");
  is_guarded = by;
  is_apart = by && strstr(by, "namespace");
  free(by);
  char* guard = whole_text("guard");
  guard_process = guard ? atoi(guard) : 0;
  free(guard);
}

const char* held_path(const char* path) {
  static thread_local char kept[kPath];
  Place place;
  if (!path || !strchr(path, '/')) return path;
  const char* found = seen(path, true, place);
  return found == path ? path : strcpy(kept, found);
}

bool may_start(const char* program, bool looks_in_path) {
  if (!table || is_guarded || !program) return true;
  char path[kPath];
  snprintf(path, sizeof path, "%s", program);
  const char* folders = looks_in_path && !strchr(program, '/') ? getenv("PATH") : nullptr;
  for (bool is_found = !folders; folders && *folders && !is_found;) {
    const size_t length = strcspn(folders, ":");
    snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(length), folders, program);
    is_found = syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0;
    folders += length + (folders[length] == ':');
  }
  if (is_followed(path)) return true;
  char text[kPath + 300];
  snprintf(text, sizeof text,
           "vramlab: %s is not started: it is linked statically, for another C library or has another user's rights, so what it writes could not "
           "be held back; vramlab rehearse --writes lets the script and its programs write\n", path);
  say(text);
  return refused(EACCES) == 0;
}
