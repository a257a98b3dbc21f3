// Nothing of the user's is changed by a rehearsal. Each call of the C library that would write, make, move or remove something below a name
// does so in the session's folder, in a tree that has the names of the real one (`upper`); each that reads finds what is there first. What was
// there before the rehearsal (`lower`) is opened for reading alone:
//
// - A file that is opened for writing is copied first, unless it is emptied by that. One that is moved becomes a link to where it was.
// - What is removed is marked as gone. A folder that is in both trees has the entries of both.
// - Processes share a table of marks by hashes of names, and of the numbers of files that have another in their place. What is read is opened
//   as it is, and only if it is not there or has such a number, or folders or links were moved, is its name looked for in our tree.
//
// Not held back: the folders in `real` (devices, downloads), private folders (mode 0700) made in folders for temporary files, and sockets
// there, which others find by their real names.
//
// Where the kernel has Landlock it refuses what comes another way: a program that is linked statically or makes its own system calls. Where it
// has not, programs that this library cannot be in are not started. Calls go to the kernel directly: this is also run between vfork and exec.
#include "writes.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

namespace {

constexpr size_t kPath = PATH_MAX;
// What the link begins with that stands for a file which was moved: the file's old name follows, so that the kernel finds it, too.
constexpr char kMoved[] = "/./";
constexpr size_t kMovedLength = sizeof kMoved - 1;

// Where what is written is kept, the folder above it, and lists of folders, a line each.
char upper[kPath], folder_of_held[kPath];
size_t upper_length = 0;
const char *real = nullptr, *temporary = nullptr;
// Whether the kernel refuses what is written elsewhere.
bool is_guarded = false;

enum Mark : uint64_t { kTouched = 1, kGone = 2, kReal = 4, kMarks = 7 };
constexpr uint64_t kSlots = 1 << 18;
struct Table {
  // Changes of the marks; whether there was no room for one; whether the disk was full; whether a path can lead elsewhere than it did.
  uint64_t changes, is_full, no_space, has_moved;
  uint64_t slots[kSlots];
};
Table* table = nullptr;

uint64_t added(uint64_t hash, char c) { return (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull; }
constexpr uint64_t kEmpty = 14695981039346656037ull;

uint64_t* slot_of(uint64_t hash) {
  uint64_t at = hash >> 30;
  for (int tries = 0; tries < 4096; tries++, at++) {
    uint64_t* slot = &table->slots[at % kSlots];
    const uint64_t found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (found == 0 || (found & ~kMarks) == (hash & ~kMarks)) return slot;
  }
  return nullptr;
}

void mark(uint64_t hash, uint64_t marks) {
  for (;;) {
    uint64_t* slot = slot_of(hash);
    if (!slot) {
      table->is_full = 1;
      break;
    }
    uint64_t found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (found != 0 && (found & ~kMarks) != (hash & ~kMarks)) continue;
    if ((found & marks) == marks) return;
    if (__atomic_compare_exchange_n(slot, &found, (hash & ~kMarks) | (found & kMarks) | marks, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      break;
    }
  }
  __atomic_add_fetch(&table->changes, 1, __ATOMIC_ACQ_REL);
}

void mark(const char* name, uint64_t marks) {
  uint64_t hash = kEmpty;
  for (const char* c = name; *c; c++) hash = added(hash, *c);
  mark(hash, marks);
}

// By a file's number.
uint64_t hash_of(const struct stat& about) {
  const uint64_t numbers[] = {about.st_dev, about.st_ino};
  const char* bytes = reinterpret_cast<const char*>(numbers);
  uint64_t hash = added(kEmpty, 'n');
  for (size_t i = 0; i < sizeof numbers; i++) hash = added(hash, bytes[i]);
  return hash;
}

bool is_superseded(const struct stat& about) {
  const uint64_t* slot = slot_of(hash_of(about));
  return !slot || (__atomic_load_n(slot, __ATOMIC_ACQUIRE) & kTouched) || table->is_full;
}

struct Marks {
  // By its own name; and by its own or that of a folder above it.
  bool touched, gone, real;
};

Marks marks_of(const char* name) {
  Marks marks = {};
  uint64_t hash = kEmpty;
  for (const char* c = name;; c++) {
    if (c != name && (*c == '/' || !*c)) {
      const uint64_t* slot = slot_of(hash);
      const uint64_t found = slot ? __atomic_load_n(slot, __ATOMIC_ACQUIRE) : 0;
      marks.gone |= (found & kGone) != 0;
      marks.real |= (found & kReal) != 0;
      marks.touched = (found & kTouched) != 0 || table->is_full;
    }
    if (!*c) return marks;
    hash = added(hash, *c);
  }
}

// ---- the kernel's calls --------------------------------------------------------------------------------------------------------------------

int look(const char* path, struct stat* about) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW));
}
int raw_open(const char* path, int flags, mode_t mode = 0) { return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode)); }
int raw_unlink(const char* path, int flags = 0) { return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, flags)); }
int raw_link(const char* target, const char* path) { return static_cast<int>(syscall(SYS_symlinkat, target, AT_FDCWD, path)); }
int raw_rename(const char* from, const char* to) { return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)); }
ssize_t raw_readlink(const char* path, char* to, size_t room) {
  const ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, path, to, room - 1);
  to[length > 0 ? length : 0] = 0;
  return length;
}
bool is_writable(const char* path) { return syscall(SYS_faccessat, AT_FDCWD, path, W_OK) == 0; }

int refused(int error) {
  errno = error;
  return -1;
}

// An error of a call that wrote; that the disk is full is said in the answer.
template <typename Result>
Result written(Result result) {
  if (result < 0 && table && (errno == ENOSPC || errno == EDQUOT)) table->no_space = 1;
  return result;
}

// The path of a file that is open; false, and errno, where it has none.
bool path_of(int file, char* path) {
  char number[40];
  snprintf(number, sizeof number, "/proc/self/fd/%d", file);
  return raw_readlink(number, path, kPath) > 0;
}

// Of a file that is open, which may be another disk's or a device.
ssize_t written(int file, ssize_t result) {
  if (result >= 0 || !table || (errno != ENOSPC && errno != EDQUOT)) return result;
  const int before = errno;
  char path[kPath];
  const bool is_ours = path_of(file, path) && strncmp(path, upper, upper_length) == 0;
  errno = before;
  return is_ours ? written(result) : result;
}

void say(const char* text) {
  if (write(2, text, strlen(text)) < 0) errno = 0;
}

// ---- names ---------------------------------------------------------------------------------------------------------------------------------

bool is_below(const char* name, const char* folder, size_t length) {
  return strncmp(name, folder, length) == 0 && (name[length] == '/' || !name[length]);
}

bool is_in(const char* list, const char* name) {
  for (const char* line = list; line && *line;) {
    const size_t length = strcspn(line, "\n");
    if (length && is_below(name, line, length)) return true;
    line += length + (line[length] == '\n');
  }
  return false;
}

bool is_system(const char* name) {
  return is_below(name, "/proc", 5) || is_below(name, "/sys", 4) || (is_below(name, "/dev", 4) && !is_below(name, "/dev/shm", 8));
}

// Takes a name in our tree for the one that it stands for. Whether it was one.
bool strip(char* name) {
  if (!upper_length || !is_below(name, upper, upper_length)) return false;
  memmove(name, name + upper_length, strlen(name + upper_length) + 1);
  if (!*name) strcpy(name, "/");
  return true;
}

// Where a file is.
struct Place {
  char at[kPath];
  Marks marks;
  // Whether it is (also) in our tree; is in both, as a folder; was moved; is not where its name says.
  bool is_upper, is_both, was_moved, is_elsewhere;
  // Whether it is anywhere; set where `prepare` was asked.
  bool exists;
  struct stat about;
};

bool upper_of(const char* name, char* to) {
  if (upper_length + strlen(name) >= kPath) return refused(ENAMETOOLONG) == 0;
  memcpy(to, upper, upper_length);
  strcpy(to + upper_length, name);
  return true;
}

// By a name without links.
bool locate(const char* name, Place& place) {
  place.is_upper = place.is_both = place.was_moved = place.is_elsewhere = place.exists = false;
  place.marks = marks_of(name);
  if (!place.marks.touched && !place.marks.gone) {
    strcpy(place.at, name);
    return true;
  }
  if (!upper_of(name, place.at)) return false;
  place.is_elsewhere = true;
  struct stat lower;
  if (look(place.at, &place.about) != 0) {
    if (place.marks.gone) return true;
    place.is_elsewhere = false;
    strcpy(place.at, name);
    return true;
  }
  place.is_upper = true;
  if (S_ISLNK(place.about.st_mode)) {
    char target[kPath];
    if (raw_readlink(place.at, target, sizeof target) > 0 && strncmp(target, kMoved, kMovedLength) == 0 && target[kMovedLength] == '/') {
      strcpy(place.at, target + kMovedLength);
      place.was_moved = true;
    }
  } else if (S_ISDIR(place.about.st_mode) && !place.marks.gone && look(name, &lower) == 0 && S_ISDIR(lower.st_mode)) {
    // As it was: what has it open goes on to see the same folder.
    strcpy(place.at, name);
    place.is_both = true;
    place.is_elsewhere = false;
  }
  return true;
}

// Appends a part of a path to a name without links. `moved`: it leads over our tree, so that the kernel would not find it by itself.
int walk(char* name, const char* text, size_t text_length, bool follows, bool& moved) {
  char rest[2 * kPath];
  if (text_length >= kPath) return ENAMETOOLONG;
  memcpy(rest, text, text_length);
  rest[text_length] = 0;
  size_t length = strcmp(name, "/") == 0 ? 0 : strlen(name);
  int links = 0;
  for (char* at = rest;;) {
    at += strspn(at, "/");
    const size_t part = strcspn(at, "/");
    if (!part) break;
    char* after = at + part;
    const bool is_last = !after[strspn(after, "/")] && !*after;
    if (part == 1 && *at == '.') {
      at = after;
      continue;
    }
    const size_t parent = length;
    if (part == 2 && at[0] == '.' && at[1] == '.') {
      while (length && name[--length] != '/') {
      }
      name[length] = 0;
      at = after;
      continue;
    }
    if (length + part + 2 >= kPath) return ENAMETOOLONG;
    name[length++] = '/';
    memcpy(name + length, at, part);
    name[length += part] = 0;
    at = after;
    if (is_system(name)) {
      if (length + strlen(at) >= kPath) return ENAMETOOLONG;
      strcpy(name + length, at);
      return 0;
    }
    if (is_last && !follows) break;
    Place place;
    if (!locate(name, place)) return errno;
    char target[kPath];
    const ssize_t target_length = raw_readlink(place.at, target, sizeof target);
    if (target_length <= 0) continue;
    if (++links > 40) return ELOOP;
    moved |= place.is_elsewhere;
    const size_t left = strlen(at);
    if (static_cast<size_t>(target_length) + left + 1 > sizeof rest) return ENAMETOOLONG;
    memmove(rest + target_length, at, left + 1);
    memcpy(rest, target, static_cast<size_t>(target_length));
    at = rest;
    length = *target == '/' ? 0 : parent;
    name[length] = 0;
  }
  if (!length) strcpy(name, "/");
  return 0;
}

// The folder that the last name was in, which is asked for again and again.
thread_local char last_folder[512], last_name[512];
thread_local bool last_moved;
thread_local uint64_t last_changes;

// The name without links that a path stands for.
int resolve(int folder, const char* path, bool follows, char* name, bool& moved) {
  moved = false;
  *name = 0;
  if (*path != '/') {
    if (folder == AT_FDCWD ? syscall(SYS_getcwd, name, kPath) <= 0 : !path_of(folder, name)) return errno;
    if (*name != '/') return ENOENT;
    moved = strip(name);
    if (strcmp(name, "/") == 0) *name = 0;
  }
  const char* slash = strrchr(path, '/');
  const char* last = slash ? slash + 1 : path;
  const size_t before = strlen(name), within = static_cast<size_t>(last - path);
  if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) return walk(name, path, strlen(path), true, moved);
  char key[sizeof last_folder];
  const bool can_be_kept = before + within + 2 < sizeof key;
  if (can_be_kept) {
    memcpy(key, name, before);
    key[before] = '/';
    memcpy(key + before + 1, path, within);
    key[before + 1 + within] = 0;
  }
  const uint64_t changes = __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE);
  if (can_be_kept && last_changes == changes && strcmp(key, last_folder) == 0) {
    strcpy(name, last_name);
    moved |= last_moved;
  } else {
    const int error = walk(name, path, within, true, moved);
    if (error) return error;
    if (can_be_kept && strlen(name) < sizeof last_name) {
      strcpy(last_folder, key);
      strcpy(last_name, name);
      last_moved = moved;
      last_changes = changes;
    }
  }
  return walk(name, last, strlen(last), follows, moved);
}

// For what reads: the path that finds it, and from which folder.
const char* seen(int& folder, const char* path, bool follows, Place& place) {
  if (!table || !path || !*path || __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE) == 0) return path;
  const int before = errno;
  char name[kPath];
  bool moved = false;
  const char* found = path;
  if (resolve(folder, path, follows, name, moved) == 0 && !is_system(name) && !is_in(real, name) && locate(name, place)) {
    if (moved || place.is_elsewhere) {
      folder = AT_FDCWD;
      found = place.at;
    }
  }
  errno = before;
  return found;
}
const char* seen(const char* path, bool follows, Place& place) {
  int folder = AT_FDCWD;
  return seen(folder, path, follows, place);
}

enum Road { kFailed, kAsItIs, kHeld };

// For what writes: whether it is held back, and what is there now. As it is, `path` may become another name of the same.
Road prepare(int& folder, const char*& path, bool follows, char* name, Place& place) {
  if (!table || !path || !*path) return kAsItIs;
  bool moved = false;
  const int error = resolve(folder, path, follows, name, moved);
  if (error) return refused(error), kFailed;
  if (is_system(name) || is_in(real, name)) {
    if (moved) folder = AT_FDCWD, path = name;
    return kAsItIs;
  }
  if (!locate(name, place)) return kFailed;
  const int before = errno;
  place.exists = look(place.at, &place.about) == 0;
  errno = before;
  if (!place.marks.real) return kHeld;
  if (moved) folder = AT_FDCWD, path = name;
  return kAsItIs;
}

// ---- our tree ------------------------------------------------------------------------------------------------------------------------------

bool is_lower(const char* name, const Place& place) {
  struct stat about;
  return !place.marks.gone && look(name, &about) == 0;
}

// Has our tree the folders of a name, where a file may be made there.
bool make_parents(const char* name) {
  char parent[kPath], made[kPath];
  strcpy(parent, name);
  char* slash = strrchr(parent, '/');
  *slash = 0;
  if (slash == parent) return true;
  Place place;
  if (!locate(parent, place)) return false;
  if (look(place.at, &place.about) != 0) return false;
  if (!S_ISDIR(place.about.st_mode)) return refused(ENOTDIR) == 0;
  if (!is_writable(place.at)) return false;
  if (place.is_upper) return true;
  for (char* at = parent; at <= slash; at++) {
    if (at == parent || (*at != '/' && *at)) continue;
    const char kept = *at;
    *at = 0;
    struct stat about;
    if (!upper_of(parent, made)) return false;
    if (look(made, &about) != 0) {
      const mode_t mode = look(parent, &about) == 0 ? about.st_mode & 07777 : 0777;
      if (written(syscall(SYS_mkdirat, AT_FDCWD, made, mode | 0700)) != 0 && errno != EEXIST) return false;
    }
    mark(parent, kTouched);
    *at = kept;
  }
  return true;
}

// What was there before the rehearsal is no longer what its name stands for.
void supersede(const char* name) {
  struct stat about;
  if (look(name, &about) != 0) return;
  if (S_ISLNK(about.st_mode)) table->has_moved = 1;
  else mark(hash_of(about), kTouched);
}

// Marks it as gone, and notes its name.
void mark_gone(const char* name) {
  supersede(name);
  char path[kPath + 16];
  snprintf(path, sizeof path, "%s/removed", folder_of_held);
  const int file = raw_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const size_t length = strlen(name);
  memcpy(path, name, length);
  path[length] = 0;
  if (file >= 0) {
    if (syscall(SYS_write, file, path, length + 1) < 0) errno = 0;
    close(file);
  }
  mark(name, kGone);
}

// Copies a file into our tree, to be written there.
bool copy_up(const char* name, Place& place) {
  if (place.is_upper && !place.was_moved) return true;
  char to[kPath], made[kPath + 40], text[kPath + 100];
  if (!is_writable(place.at) || !make_parents(name) || !upper_of(name, to)) return false;
  constexpr off_t kLarge = 1 << 30;
  if (place.about.st_size > kLarge) {
    snprintf(text, sizeof text, "vramlab: %s is opened for writing; it is copied first (%.1f GiB), so that it stays as it is\n", name,
             static_cast<double>(place.about.st_size) / (1 << 30));
    say(text);
  }
  snprintf(made, sizeof made, "%s.%ld~", to, static_cast<long>(syscall(SYS_gettid)));
  const int from = raw_open(place.at, O_RDONLY | O_CLOEXEC);
  if (from < 0) return false;
  const int file = raw_open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool is_whole = file >= 0;
  bool in_kernel = true;
  char* buffer = nullptr;
  while (is_whole) {
    constexpr size_t kPart = 1 << 20;
    ssize_t length = in_kernel ? syscall(SYS_copy_file_range, from, nullptr, file, nullptr, size_t{1} << 30, 0) : 0;
    if (in_kernel && length < 0 && errno != ENOSPC && errno != EDQUOT) in_kernel = false;
    if (!in_kernel) {
      if (!buffer) buffer = static_cast<char*>(mmap(nullptr, kPart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      length = syscall(SYS_read, from, buffer, kPart);
      for (ssize_t done = 0, more; length > 0 && done < length; done += more) {
        more = syscall(SYS_write, file, buffer + done, length - done);
        if (more < 0) length = -1;
      }
    }
    if (length == 0) break;
    is_whole = length > 0;
  }
  if (buffer) munmap(buffer, 1 << 20);
  const int error = errno;
  close(from);
  if (is_whole) {
    const timespec times[] = {place.about.st_atim, place.about.st_mtim};
    syscall(SYS_fchmod, file, (place.about.st_mode & 07777) | 0200);
    syscall(SYS_utimensat, file, nullptr, times, 0);
    mark(name, kTouched);
    supersede(name);
    // Another process may have been faster; what it has written since stays.
    const bool is_late = !place.was_moved && (syscall(SYS_linkat, AT_FDCWD, made, AT_FDCWD, to, 0) == 0 || errno == EEXIST);
    const bool is_put = (is_late ? raw_unlink(made) : raw_rename(made, to)) == 0;
    close(file);
    place.is_upper = place.is_elsewhere = true;
    place.was_moved = false;
    strcpy(place.at, to);
    return is_put;
  }
  if (file >= 0) close(file), raw_unlink(made);
  errno = error;
  return written(-1) == 0;
}

// Opens what may be written.
int open_held(int folder, const char* path, int flags, mode_t mode) {
  char name[kPath];
  Place place;
  const bool is_new = (flags & O_CREAT) && (flags & O_EXCL), is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  const Road road = prepare(folder, path, !is_new && !(flags & O_NOFOLLOW), name, place);
  if (road == kFailed) return -1;
  if (road == kAsItIs) return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  if (is_unnamed) {
    // In the folder of one that is not there.
    const size_t length = strlen(name);
    if (length + 3 >= kPath) return refused(ENAMETOOLONG);
    strcpy(name + length, "/~");
    if (!make_parents(name)) return -1;
    name[length] = 0;
    if (!upper_of(name, place.at)) return -1;
    return static_cast<int>(written(raw_open(place.at, flags, mode)));
  }
  if (place.exists && is_new) return refused(EEXIST);
  const bool only_reads = (flags & O_ACCMODE) == O_RDONLY && !(flags & O_TRUNC);
  if (place.exists && (only_reads || !S_ISREG(place.about.st_mode) || (place.is_upper && !place.was_moved))) {
    return static_cast<int>(written(raw_open(place.at, flags, mode)));
  }
  if (place.exists && !(flags & O_TRUNC)) {
    return copy_up(name, place) ? raw_open(place.at, flags, mode) : -1;
  }
  if (!place.exists && !(flags & O_CREAT)) return refused(ENOENT);
  if (place.exists && !is_writable(place.at)) return -1;
  char to[kPath];
  if (!make_parents(name) || !upper_of(name, to)) return -1;
  if (place.was_moved) raw_unlink(to);
  const int file = static_cast<int>(written(raw_open(to, flags | O_CREAT, place.exists ? place.about.st_mode & 07777 : mode)));
  if (file >= 0) mark(name, kTouched);
  if (file >= 0 && place.exists) supersede(name);
  return file;
}

// Whether changes can only be seen by the numbers of files.
bool reads_as_it_is() {
  return !table || __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE) == 0 || !__atomic_load_n(&table->has_moved, __ATOMIC_ACQUIRE);
}

int open_any(int folder, const char* path, int flags, mode_t mode) {
  if (table && !(flags & O_PATH) && ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)))) {
    return open_held(folder, path, flags, mode);
  }
  int file = -1;
  if (reads_as_it_is()) {
    file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
    struct stat about;
    if (!table || (file >= 0 && syscall(SYS_fstat, file, &about) == 0 && !is_superseded(about))) return file;
  }
  const int error = errno;
  Place place;
  const char* found = seen(folder, path, !(flags & O_NOFOLLOW), place);
  if (found == path && file < 0 && reads_as_it_is()) return refused(error);
  if (found == path && file >= 0) return file;
  if (file >= 0) close(file);
  return static_cast<int>(syscall(SYS_openat, folder, found, flags, mode));
}

// ---- folders -------------------------------------------------------------------------------------------------------------------------------

DIR* (*behind_opendir)(const char*);
DIR* (*behind_fdopendir)(int);
dirent* (*behind_readdir)(DIR*);
void (*behind_rewinddir)(DIR*);
int (*behind_closedir)(DIR*);

// A folder that is being read and has entries in our tree. `first` is that tree's, which may be the folder itself.
struct Reading {
  DIR *folder, *first;
  bool in_second;
  char name[kPath];
};
Reading* readings[256];
int readings_count = 0;

Reading* reading_of(DIR* folder) {
  if (!__atomic_load_n(&readings_count, __ATOMIC_ACQUIRE)) return nullptr;
  for (Reading*& each : readings) {
    Reading* one = __atomic_load_n(&each, __ATOMIC_ACQUIRE);
    if (one && one->folder == folder) return one;
  }
  return nullptr;
}

// The entries of a folder, as they are now: those of our tree, and those below it that are neither there nor gone.
dirent* next_entry(Reading& reading) {
  // By which whoever reads tells the end from an error.
  const int before = errno;
  for (;;) {
    errno = before;
    dirent* entry = behind(behind_readdir, "readdir")(reading.in_second ? reading.folder : reading.first);
    if (!entry && !reading.in_second && reading.first != reading.folder) {
      reading.in_second = true;
      continue;
    }
    if (!entry) return nullptr;
    char path[kPath];
    errno = before;
    if (!reading.in_second) {
      if (entry->d_type == DT_LNK && syscall(SYS_readlinkat, dirfd(reading.first), entry->d_name, path, sizeof path) > 3 &&
          strncmp(path, kMoved, kMovedLength) == 0 && path[kMovedLength] == '/') {
        entry->d_type = DT_REG;
      }
      errno = before;
      return entry;
    }
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    struct stat about;
    if (syscall(SYS_newfstatat, dirfd(reading.first), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0) continue;
    snprintf(path, sizeof path, "%s/%s", strcmp(reading.name, "/") == 0 ? "" : reading.name, entry->d_name);
    if (marks_of(path).gone) continue;
    errno = before;
    return entry;
  }
}

// `folder` was opened by where the place says it is.
DIR* follow_reading(DIR* folder, const char* name, const Place& place) {
  if (!folder || !place.is_upper) return folder;
  auto* reading = static_cast<Reading*>(malloc(sizeof(Reading)));
  char path[kPath];
  if (!reading || !upper_of(name, path)) return folder;
  reading->folder = folder;
  reading->first = place.is_both ? behind(behind_opendir, "opendir")(path) : folder;
  reading->in_second = false;
  strcpy(reading->name, name);
  for (Reading*& each : readings) {
    Reading* none = nullptr;
    if (reading->first && __atomic_compare_exchange_n(&each, &none, reading, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      __atomic_add_fetch(&readings_count, 1, __ATOMIC_ACQ_REL);
      return folder;
    }
  }
  if (reading->first && reading->first != folder) behind(behind_closedir, "closedir")(reading->first);
  free(reading);
  return folder;
}

DIR* read_folder(const char* name, const Place& place) { return follow_reading(behind(behind_opendir, "opendir")(place.at), name, place); }

bool is_empty(const char* name, const Place& place) {
  DIR* folder = read_folder(name, place);
  if (!folder) return false;
  bool is_empty = true;
  while (const dirent* entry = readdir(folder)) is_empty &= strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
  closedir(folder);
  return is_empty;
}

// Has our tree all of a file or folder, files as links to where they are.
bool lift(const char* name) {
  Place place;
  char to[kPath], text[kPath + kMovedLength];
  if (!locate(name, place) || look(place.at, &place.about) != 0 || !upper_of(name, to)) return false;
  if (S_ISDIR(place.about.st_mode)) {
    snprintf(text, sizeof text, "%s/~", name);
    // The folder itself.
    if (!place.is_upper && (!make_parents(name) || (written(syscall(SYS_mkdirat, AT_FDCWD, to, place.about.st_mode | 0700)) != 0 && errno != EEXIST))) {
      return false;
    }
    mark(name, kTouched);
    if (place.is_upper && !place.is_both) return true;
    if (!locate(name, place)) return false;
    DIR* folder = read_folder(name, place);
    if (!folder) return false;
    bool is_whole = true;
    while (const dirent* entry = is_whole ? readdir(folder) : nullptr) {
      if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
      snprintf(text, sizeof text, "%s/%s", name, entry->d_name);
      is_whole = lift(text);
    }
    closedir(folder);
    return is_whole;
  }
  if (place.is_upper) return true;
  if (!make_parents(name)) return false;
  if (S_ISLNK(place.about.st_mode)) {
    if (raw_readlink(place.at, text, sizeof text) <= 0) return false;
  } else if (S_ISREG(place.about.st_mode)) {
    snprintf(text, sizeof text, "%s%s", kMoved, place.at);
  } else {
    return refused(EXDEV) == 0;
  }
  if (written(raw_link(text, to)) != 0 && errno != EEXIST) return false;
  mark(name, kTouched);
  return true;
}

// ---- what makes, moves and removes ---------------------------------------------------------------------------------------------------------

// Where something new is made; null where it cannot be, or `road` says that it is made as it is.
const char* new_place(int& folder, const char*& path, char* name, Place& place, Road& road) {
  road = prepare(folder, path, false, name, place);
  if (road != kHeld) return nullptr;
  if (place.exists) return refused(EEXIST), nullptr;
  if (!make_parents(name) || !upper_of(name, place.at)) return nullptr;
  mark(name, kTouched);
  return place.at;
}
#define MADE(name_of_call, ...)                                                                  \
  char name[kPath];                                                                              \
  Place place;                                                                                   \
  Road road = kAsItIs;                                                                           \
  const char* to = new_place(folder, path, name, place, road);                                   \
  if (!to && road != kAsItIs) return -1;                                                         \
  if (to) folder = AT_FDCWD, path = to;                                                          \
  return static_cast<int>(written(syscall(name_of_call, __VA_ARGS__)))

bool is_temporary(const char* name) {
  const char* slash = strrchr(name, '/');
  for (const char* line = temporary; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    if (strcspn(line, "\n") == static_cast<size_t>(slash - name) && strncmp(line, name, static_cast<size_t>(slash - name)) == 0) return true;
  }
  return false;
}

// Private ones for temporary files hold sockets, too, which others look for there.
bool is_private_folder(int folder, const char* path, mode_t mode, char* name) {
  Place place;
  return (mode & 077) == 0 && prepare(folder, path, false, name, place) == kHeld && !place.exists && is_temporary(name) && !place.marks.gone;
}

int make_folder(int folder, const char* path, mode_t mode) {
  char own_name[kPath];
  if (is_private_folder(folder, path, mode, own_name)) {
    const int made = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, own_name, mode));
    if (made == 0) mark(own_name, kReal);
    return made;
  }
  MADE(SYS_mkdirat, folder, path, mode);
}
int make_link(const char* target, int folder, const char* path) { MADE(SYS_symlinkat, target, folder, path); }
int make_node(int folder, const char* path, mode_t mode, dev_t device) { MADE(SYS_mknodat, folder, path, mode, device); }

int remove_at(int folder, const char* path, int flags) {
  char name[kPath], held[kPath];
  Place place;
  const Road road = prepare(folder, path, false, name, place);
  if (road == kFailed) return -1;
  if (road == kAsItIs) return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
  if (!place.exists) return refused(ENOENT);
  const bool is_folder = S_ISDIR(place.about.st_mode);
  if (is_folder != ((flags & AT_REMOVEDIR) != 0)) return refused(is_folder ? EISDIR : ENOTDIR);
  if (is_folder && !is_empty(name, place)) return refused(ENOTEMPTY);
  if (!make_parents(name) || !upper_of(name, held)) return -1;
  if (is_lower(name, place)) mark_gone(name);
  return place.is_upper ? raw_unlink(held, flags) : 0;
}

int move(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  char from_name[kPath], to_name[kPath], from_path[kPath], to_path[kPath];
  Place source, target;
  const Road from_road = prepare(from_folder, from, false, from_name, source), to_road = prepare(to_folder, to, false, to_name, target);
  if (from_road == kFailed || to_road == kFailed) return -1;
  if (from_road == kAsItIs && to_road == kAsItIs) return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (from_road != to_road) return refused(EXDEV);
  constexpr unsigned kNoReplace = 1;
  if (flags & ~kNoReplace) return refused(EINVAL);
  if (!source.exists) return refused(ENOENT);
  if (strcmp(from_name, to_name) == 0) return 0;
  const bool is_folder = S_ISDIR(source.about.st_mode);
  if (target.exists) {
    if (flags & kNoReplace) return refused(EEXIST);
    const bool is_target_folder = S_ISDIR(target.about.st_mode);
    if (is_folder != is_target_folder) return refused(is_folder ? ENOTDIR : EISDIR);
    if (is_folder && !is_empty(to_name, target)) return refused(ENOTEMPTY);
  }
  if (is_folder && is_below(to_name, from_name, strlen(from_name))) return refused(EINVAL);
  if (!make_parents(from_name) || !make_parents(to_name) || !lift(from_name)) return -1;
  if (!upper_of(from_name, from_path) || !upper_of(to_name, to_path)) return -1;
  // What was there is gone with all that is in it, and what comes has nothing below it.
  if (is_folder) target.exists && is_lower(to_name, target) ? mark_gone(to_name) : mark(to_name, kGone);
  mark(to_name, kTouched);
  if (target.exists) supersede(to_name);
  if (is_folder && is_lower(from_name, source)) table->has_moved = 1;
  const int moved = static_cast<int>(written(raw_rename(from_path, to_path)));
  if (moved == 0 && is_lower(from_name, source)) mark_gone(from_name);
  return moved;
}

int link_at(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  char from_name[kPath], to_name[kPath], text[kPath + kMovedLength];
  Place source, target;
  Road road = kAsItIs;
  const Road from_road = prepare(from_folder, from, flags & AT_SYMLINK_FOLLOW, from_name, source);
  const char* made = from_road == kFailed ? nullptr : new_place(to_folder, to, to_name, target, road);
  if (from_road == kFailed || road == kFailed || (road == kHeld && !made)) return -1;
  if (from_road == kHeld && road == kAsItIs) return refused(EXDEV);
  if (made) to_folder = AT_FDCWD, to = made;
  if (from_road == kAsItIs) return static_cast<int>(syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
  if (!source.exists) return refused(ENOENT);
  if (source.is_upper && !source.was_moved) return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, source.at, AT_FDCWD, to, 0));
  if (!S_ISREG(source.about.st_mode)) return refused(EXDEV);
  snprintf(text, sizeof text, "%s%s", kMoved, source.at);
  return static_cast<int>(written(raw_link(text, to)));
}

// For calls that change what is said of a file: where it is to be changed; null where that is not done, or `result` is -1.
const char* changed(int& folder, const char* path, bool follows, Place& place, int& result) {
  char name[kPath];
  result = 0;
  const Road road = prepare(folder, path, follows, name, place);
  if (road == kAsItIs) return path == name ? strcpy(place.at, name) : path;
  if (road == kHeld && !place.exists) errno = ENOENT;
  if (road == kFailed || !place.exists) return result = -1, nullptr;
  folder = AT_FDCWD;
  if (place.is_upper && !place.was_moved && !place.is_both) return place.at;
  if (!S_ISREG(place.about.st_mode)) return nullptr;
  if (copy_up(name, place)) return place.at;
  return result = -1, nullptr;
}
#define CHANGE(follows, call)                                      \
  Place place;                                                     \
  int result = 0;                                                  \
  const char* at = changed(folder, path, follows, place, result);  \
  return at ? static_cast<int>(written(call)) : result

// Whether a file that is open is one that was there before: its mode and times stay.
bool is_kept(int file) {
  char path[kPath], name[kPath];
  if (!table || !path_of(file, path) || *path != '/' || is_below(path, upper, upper_length)) return false;
  Place place;
  int folder = AT_FDCWD;
  const char* given = path;
  return prepare(folder, given, false, name, place) == kHeld && place.exists && (S_ISREG(place.about.st_mode) || S_ISDIR(place.about.st_mode));
}

// Zeros that a checkpoint of placeholders is full of: a hole at a file's end, in our tree. Negative where they are written as they are.
ssize_t leave_hole(int file, const void* bytes, size_t length, off_t at) {
  constexpr size_t kLeast = 1 << 16;
  const char* text = static_cast<const char*>(bytes);
  if (!table || length < kLeast || text[0] || memcmp(text, text + 1, length - 1) != 0) return -1;
  char path[kPath];
  struct stat about;
  if (!path_of(file, path) || !is_below(path, upper, upper_length)) return -1;
  if (syscall(SYS_fstat, file, &about) != 0 || !S_ISREG(about.st_mode)) return -1;
  const bool moves = at < 0;
  if (moves) at = (fcntl(file, F_GETFL) & O_APPEND) ? about.st_size : syscall(SYS_lseek, file, 0, SEEK_CUR);
  const off_t end = at + static_cast<off_t>(length);
  if (at < about.st_size || syscall(SYS_ftruncate, file, end) != 0) return -1;
  if (moves) syscall(SYS_lseek, file, end, SEEK_SET);
  return static_cast<ssize_t>(length);
}

// ---- what comes another way ----------------------------------------------------------------------------------------------------------------

// Landlock's, as linux/landlock.h has it, which is not on every machine that compiles this.
struct LandlockRules {
  uint64_t files;
};
struct LandlockFolder {
  uint64_t allowed;
  int folder;
} __attribute__((packed));
constexpr int kCreateRules = 444, kAddRule = 445, kRestrict = 446;
// Writing and truncating a file, removing, making of each kind, and moving between folders.
constexpr uint64_t kWrite = 1 << 1 | 0x1ff << 4 | 1 << 13, kTruncate = 1 << 14, kOfFiles = 1 << 1 | kTruncate;

void allow(int rules, uint64_t rights, const char* path) {
  char at[kPath];
  snprintf(at, sizeof at, "%s", path);
  LandlockFolder rule = {rights, raw_open(at, O_PATH | O_CLOEXEC)};
  // A folder for downloads that is not there yet.
  for (char* slash; rule.folder < 0 && (slash = strrchr(at, '/')) && slash != at; rule.folder = raw_open(at, O_PATH | O_CLOEXEC)) *slash = 0;
  struct stat about;
  if (rule.folder < 0) return;
  if (syscall(SYS_fstat, rule.folder, &about) == 0 && !S_ISDIR(about.st_mode)) rule.allowed &= kOfFiles;
  syscall(kAddRule, rules, 1, &rule, 0);
  close(rule.folder);
}

// What guards, as `HeldBy` in capture/held.rs has it; null where nothing does.
const char* restrict_writes() {
  const long version = syscall(kCreateRules, nullptr, 0, 1);
  // The first could not allow a file to be moved to another folder.
  if (version < 2) return nullptr;
  const LandlockRules handled = {version >= 3 ? kWrite | kTruncate : kWrite};
  const int rules = static_cast<int>(syscall(kCreateRules, &handled, sizeof handled, 0));
  if (rules < 0) return nullptr;
  const char* const lists[] = {real, temporary, "/proc\n/dev\n/sys"};
  for (const char* list : lists) {
    for (const char* line = list; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
      char path[kPath];
      snprintf(path, sizeof path, "%.*s", static_cast<int>(strcspn(line, "\n")), line);
      if (*path) allow(rules, handled.files, path);
    }
  }
  const bool is_done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(kRestrict, rules, 0) == 0;
  close(rules);
  if (!is_done) return nullptr;
  return version >= 3 ? "\"landlock\"" : "\"landlock-without-truncation\"";
}

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

void hold_writes(const char* folder, bool is_first) {
  snprintf(folder_of_held, sizeof folder_of_held, "%s", folder);
  snprintf(upper, sizeof upper, "%s/files", folder);
  real = whole_text("real");
  temporary = whole_text("temporary");
  char path[kPath + 16];
  snprintf(path, sizeof path, "%s/table", folder);
  const int file = raw_open(path, O_RDWR | O_CLOEXEC);
  void* mapped = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (!real || !temporary || mapped == MAP_FAILED) {
    say("vramlab: what this process would write could not be held back, so it is not started; --writes lets it write\n");
    _exit(2);
  }
  close(file);
  upper_length = strlen(upper);
  // Whether the kernel guards is known by a file that the first process leaves.
  snprintf(path, sizeof path, "%s/guarded", folder);
  const char* wanted = getenv("VRAMLAB_LANDLOCK");
  const char* by = is_first && !(wanted && strcmp(wanted, "0") == 0) ? restrict_writes() : nullptr;
  if (by) {
    const int made = raw_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (made < 0 || syscall(SYS_write, made, by, strlen(by)) < 0) errno = 0;
    if (made >= 0) close(made);
  }
  struct stat about;
  is_guarded = look(path, &about) == 0;
  table = static_cast<Table*>(mapped);
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

// ---- the C library's names -----------------------------------------------------------------------------------------------------------------

// A function that programs find by this name in place of the C library's. Not declared as such, since headers differ in what they say of it.
#define STANDS_FOR(result, symbol, alias, ...)     \
  result alias(__VA_ARGS__) asm(symbol);           \
  result alias(__VA_ARGS__)
// And with 64 bits, which is the same.
#define STANDS_FOR_64(result, symbol, alias, arguments, ...) \
  result alias##_64 arguments asm(symbol "64");              \
  result alias##_64 arguments { __VA_ARGS__ }                \
  result alias arguments asm(symbol);                        \
  result alias arguments { __VA_ARGS__ }
#define BEHIND(result, symbol, ...)              \
  static result (*behind_it)(__VA_ARGS__) = nullptr; \
  behind(behind_it, symbol)
#define MODE(mode, flags)                                        \
  mode_t mode = 0;                                               \
  if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list more;                                                \
    va_start(more, flags);                                       \
    mode = va_arg(more, mode_t);                                 \
    va_end(more);                                                \
  }

#define READS(folder, path, follows) \
  Place place;                       \
  path = seen(folder, path, follows, place)
#define READS_HERE(path, follows) \
  int here = AT_FDCWD;            \
  READS(here, path, follows)

// A function that reads what `path` stands for now.
#define READS_BY(result, symbol, alias, arguments, follows, ...) \
  result alias arguments asm(symbol);                            \
  result alias arguments {                                       \
    READS_HERE(path, follows);                                   \
    return static_cast<result>(syscall(__VA_ARGS__));            \
  }

namespace {
FILE* open_stream(const char* path, const char* mode) {
  const bool writes = *mode != 'r' || strchr(mode, '+');
  if (!table || !writes) {
    READS_HERE(path, true);
    BEHIND(FILE*, "fopen", const char*, const char*);
    return behind_it(path, mode);
  }
  int flags = strchr(mode, '+') ? O_RDWR : O_WRONLY;
  if (*mode != 'r') flags |= O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
  if (strchr(mode, 'x')) flags |= O_EXCL;
  if (strchr(mode, 'e')) flags |= O_CLOEXEC;
  const int file = open_held(AT_FDCWD, path, flags, 0666);
  FILE* stream = file < 0 ? nullptr : fdopen(file, mode);
  if (file >= 0 && !stream) close(file);
  return stream;
}

FILE* open_stream_again(const char* path, const char* mode, FILE* stream) {
  char number[40];
  int file = -1;
  Place place;
  if (table && path) {
    const bool writes = *mode != 'r' || strchr(mode, '+');
    if (writes && (file = open_held(AT_FDCWD, path, O_WRONLY | (*mode == 'r' ? 0 : O_CREAT) | O_CLOEXEC, 0666)) < 0) return nullptr;
    snprintf(number, sizeof number, "/proc/self/fd/%d", file);
    path = writes ? number : seen(path, true, place);
  }
  BEHIND(FILE*, "freopen", const char*, const char*, FILE*);
  FILE* again = behind_it(path, mode, stream);
  if (file >= 0) close(file);
  return again;
}

int look_at(int folder, const char* path, struct stat* about, int flags) {
  if (reads_as_it_is()) {
    const int found = static_cast<int>(syscall(SYS_newfstatat, folder, path, about, flags));
    if (!table || (found == 0 && !is_superseded(*about))) return found;
  }
  READS(folder, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, about, flags));
}

char* path_without_links(const char* path, char* to) {
  BEHIND(char*, "realpath", const char*, char*);
  if (!table || !path || !*path || __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE) == 0) return behind_it(path, to);
  char name[kPath];
  bool moved;
  Place place;
  const int error = resolve(AT_FDCWD, path, true, name, moved);
  if (error) return errno = error, nullptr;
  if (is_system(name)) return behind_it(path, to);
  if (!locate(name, place) || look(place.at, &place.about) != 0) return nullptr;
  return to ? strcpy(to, name) : strdup(name);
}

ssize_t read_link(int folder, const char* path, char* to, size_t room) {
  READS(folder, path, false);
  char text[kPath];
  const ssize_t length = syscall(SYS_readlinkat, folder, path, text, sizeof text - 1);
  if (length < 0) return length;
  text[length] = 0;
  strip(text);
  const size_t given = strlen(text) < room ? strlen(text) : room;
  memcpy(to, text, given);
  return static_cast<ssize_t>(given);
}

// Makes a new file or folder of a name that ends with XXXXXX, and another after it.
int make_unique(char* pattern, int after, int flags, bool is_folder) {
  const size_t length = strlen(pattern);
  if (after < 0 || length < static_cast<size_t>(after) + 6) return refused(EINVAL);
  char* letters = pattern + length - after - 6;
  if (strncmp(letters, "XXXXXX", 6) != 0) return refused(EINVAL);
  for (int tries = 0; tries < 10000; tries++) {
    uint64_t number = 0;
    if (syscall(SYS_getrandom, &number, sizeof number, 0) != sizeof number) return -1;
    for (int i = 0; i < 6; i++, number /= 62) letters[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 62];
    const int made = is_folder ? make_folder(AT_FDCWD, pattern, 0700) : open_held(AT_FDCWD, pattern, flags | O_RDWR | O_CREAT | O_EXCL, 0600);
    if (made >= 0 || errno != EEXIST) return made;
  }
  return refused(EEXIST);
}

// A socket's name: where others of this job find it, by a path that is short enough.
int with_address(int socket, const sockaddr* address, socklen_t length, bool binds) {
  const long call = binds ? SYS_bind : SYS_connect;
  const auto* given = reinterpret_cast<const sockaddr_un*>(address);
  constexpr size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (!table || !address || address->sa_family != AF_UNIX || length <= kBefore || !given->sun_path[0]) {
    return static_cast<int>(syscall(call, socket, address, length));
  }
  char text[sizeof given->sun_path + 1] = {}, name[kPath];
  memcpy(text, given->sun_path, length - kBefore < sizeof given->sun_path ? length - kBefore : sizeof given->sun_path);
  int folder = AT_FDCWD;
  const char* path = text;
  Place place;
  const Road road = prepare(folder, path, !binds, name, place);
  if (road == kFailed) return -1;
  if (road == kAsItIs || (!binds && !place.is_elsewhere)) return static_cast<int>(syscall(call, socket, address, length));
  if (binds && place.exists) return refused(EADDRINUSE);
  if (binds && is_temporary(name) && !place.marks.gone) {
    const int bound = static_cast<int>(syscall(call, socket, address, length));
    if (bound == 0) mark(name, kReal);
    return bound;
  }
  if (binds && (!make_parents(name) || !upper_of(name, place.at))) return -1;
  char* slash = strrchr(place.at, '/');
  *slash = 0;
  const int parent = raw_open(place.at, O_PATH | O_DIRECTORY | O_CLOEXEC);
  sockaddr_un shorter = {};
  shorter.sun_family = AF_UNIX;
  const int done = snprintf(shorter.sun_path, sizeof shorter.sun_path, "/proc/self/fd/%d/%s", parent, slash + 1);
  const bool is_short = parent >= 0 && static_cast<size_t>(done) < sizeof shorter.sun_path;
  const int result = is_short ? static_cast<int>(syscall(call, socket, &shorter, sizeof shorter)) : refused(ENAMETOOLONG);
  if (parent >= 0) close(parent);
  if (binds && result == 0) mark(name, kTouched);
  return result;
}
}  // namespace

extern "C" {

STANDS_FOR_64(int, "open", open_file, (const char* path, int flags, ...), MODE(mode, flags) return open_any(AT_FDCWD, path, flags, mode);)
STANDS_FOR_64(int, "openat", open_file_at, (int folder, const char* path, int flags, ...),
              MODE(mode, flags) return open_any(folder, path, flags, mode);)
STANDS_FOR_64(int, "creat", create_file, (const char* path, mode_t mode), return open_any(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);)
// Of programs that are compiled with checks.
STANDS_FOR(int, "__open_2", open_file_2, const char* path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
STANDS_FOR(int, "__open64_2", open_file_64_2, const char* path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
STANDS_FOR(int, "__openat_2", open_file_at_2, int folder, const char* path, int flags) { return open_any(folder, path, flags, 0); }
STANDS_FOR(int, "__openat64_2", open_file_at_64_2, int folder, const char* path, int flags) { return open_any(folder, path, flags, 0); }
STANDS_FOR_64(FILE*, "fopen", open_stream_by, (const char* path, const char* mode), return open_stream(path, mode);)
STANDS_FOR_64(FILE*, "freopen", open_stream_by_again, (const char* path, const char* mode, FILE* stream),
              return open_stream_again(path, mode, stream);)
STANDS_FOR_64(int, "mkstemp", make_file, (char* pattern), return make_unique(pattern, 0, 0, false);)
STANDS_FOR_64(int, "mkostemp", make_file_with, (char* pattern, int flags), return make_unique(pattern, 0, flags, false);)
STANDS_FOR_64(int, "mkstemps", make_file_before, (char* pattern, int after), return make_unique(pattern, after, 0, false);)
STANDS_FOR_64(int, "mkostemps", make_file_before_with, (char* pattern, int after, int flags), return make_unique(pattern, after, flags, false);)
STANDS_FOR(char*, "mkdtemp", make_private_folder, char* pattern) { return make_unique(pattern, 0, 0, true) < 0 ? nullptr : pattern; }

// The C library's headers before 2.33 call the second kind of names.
STANDS_FOR_64(int, "stat", stat_of, (const char* path, struct stat* about), return look_at(AT_FDCWD, path, about, 0);)
STANDS_FOR_64(int, "lstat", lstat_of, (const char* path, struct stat* about), return look_at(AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW);)
STANDS_FOR_64(int, "fstatat", fstatat_of, (int folder, const char* path, struct stat* about, int flags),
              return look_at(folder, path, about, flags);)
STANDS_FOR_64(int, "__xstat", xstat_of, (int, const char* path, struct stat* about), return look_at(AT_FDCWD, path, about, 0);)
STANDS_FOR_64(int, "__lxstat", lxstat_of, (int, const char* path, struct stat* about),
              return look_at(AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW);)
STANDS_FOR_64(int, "__fxstatat", fxstatat_of, (int, int folder, const char* path, struct stat* about, int flags),
              return look_at(folder, path, about, flags);)
STANDS_FOR(int, "statx", statx_of, int folder, const char* path, int flags, unsigned mask, void* about) {
  READS(folder, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, about));
}
READS_BY(int, "access", access_of, (const char* path, int mode), true, SYS_faccessat, here, path, mode)
STANDS_FOR(int, "faccessat", faccessat_of, int folder, const char* path, int mode, int flags) {
  READS(folder, path, !(flags & AT_SYMLINK_NOFOLLOW));
  BEHIND(int, "faccessat", int, const char*, int, int);
  return behind_it(folder, path, mode, flags);
}
STANDS_FOR(int, "eaccess", eaccess_of, const char* path, int mode) { return faccessat_of(AT_FDCWD, path, mode, AT_EACCESS); }
STANDS_FOR(int, "euidaccess", euidaccess_of, const char* path, int mode) { return faccessat_of(AT_FDCWD, path, mode, AT_EACCESS); }
STANDS_FOR(ssize_t, "readlink", readlink_of, const char* path, char* to, size_t room) { return read_link(AT_FDCWD, path, to, room); }
STANDS_FOR(ssize_t, "readlinkat", readlinkat_of, int folder, const char* path, char* to, size_t room) {
  return read_link(folder, path, to, room);
}
STANDS_FOR(ssize_t, "__readlink_chk", readlink_checked, const char* path, char* to, size_t room, size_t) {
  return read_link(AT_FDCWD, path, to, room);
}
STANDS_FOR(ssize_t, "__readlinkat_chk", readlinkat_checked, int folder, const char* path, char* to, size_t room, size_t) {
  return read_link(folder, path, to, room);
}
STANDS_FOR(char*, "realpath", realpath_of, const char* path, char* to) { return path_without_links(path, to); }
STANDS_FOR(char*, "__realpath_chk", realpath_checked, const char* path, char* to, size_t) { return path_without_links(path, to); }
STANDS_FOR(char*, "canonicalize_file_name", canonical_of, const char* path) { return path_without_links(path, nullptr); }
READS_BY(int, "chdir", enter, (const char* path), true, SYS_chdir, path)
STANDS_FOR(char*, "getcwd", where, char* to, size_t room) {
  BEHIND(char*, "getcwd", char*, size_t);
  char* found = behind_it(to, room);
  if (found) strip(found);
  return found;
}
STANDS_FOR(char*, "__getcwd_chk", where_checked, char* to, size_t room, size_t) { return where(to, room); }
STANDS_FOR(char*, "get_current_dir_name", where_now) { return where(nullptr, 0); }
STANDS_FOR_64(int, "statfs", disk_of, (const char* path, void* about), READS_HERE(path, true);
              BEHIND(int, "statfs64", const char*, void*); return behind_it(path, about);)
STANDS_FOR_64(int, "statvfs", disk_of_v, (const char* path, void* about), READS_HERE(path, true);
              BEHIND(int, "statvfs64", const char*, void*); return behind_it(path, about);)
READS_BY(ssize_t, "getxattr", attribute_of, (const char* path, const char* key, void* to, size_t room), true, SYS_getxattr, path, key, to, room)
READS_BY(ssize_t, "lgetxattr", attribute_of_link, (const char* path, const char* key, void* to, size_t room), false, SYS_lgetxattr, path, key, to, room)
READS_BY(ssize_t, "listxattr", attributes_of, (const char* path, char* to, size_t room), true, SYS_listxattr, path, to, room)
READS_BY(ssize_t, "llistxattr", attributes_of_link, (const char* path, char* to, size_t room), false, SYS_llistxattr, path, to, room)

STANDS_FOR(DIR*, "opendir", open_folder, const char* path) {
  Place place;
  char name[kPath];
  bool moved;
  if (!table || !path || !*path || __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE) == 0 ||
      resolve(AT_FDCWD, path, true, name, moved) != 0 || is_system(name) || is_in(real, name) || !locate(name, place)) {
    return behind(behind_opendir, "opendir")(path);
  }
  return read_folder(name, place);
}
STANDS_FOR(DIR*, "fdopendir", open_folder_of, int file) {
  char name[kPath];
  Place place;
  DIR* folder = behind(behind_fdopendir, "fdopendir")(file);
  if (!folder || !table || !path_of(file, name) || *name != '/') return folder;
  strip(name);
  return locate(name, place) ? follow_reading(folder, name, place) : folder;
}
STANDS_FOR_64(dirent*, "readdir", next_of, (DIR* folder), Reading* reading = reading_of(folder);
              return reading ? next_entry(*reading) : behind(behind_readdir, "readdir")(folder);)
STANDS_FOR_64(int, "readdir_r", next_of_into, (DIR* folder, dirent* to, dirent** next), const int before = errno; errno = 0;
              const dirent* found = readdir(folder); const int error = errno; errno = before; *next = found ? to : nullptr;
              if (found) memcpy(to, found, found->d_reclen); return found ? 0 : error;)
STANDS_FOR(void, "rewinddir", begin_again, DIR* folder) {
  behind(behind_rewinddir, "rewinddir")(folder);
  if (Reading* reading = reading_of(folder)) {
    behind(behind_rewinddir, "rewinddir")(reading->first);
    reading->in_second = false;
  }
}
STANDS_FOR(int, "closedir", close_folder, DIR* folder) {
  for (Reading*& each : readings) {
    Reading* reading = readings_count ? __atomic_load_n(&each, __ATOMIC_ACQUIRE) : nullptr;
    if (!reading || reading->folder != folder) continue;
    __atomic_store_n(&each, static_cast<Reading*>(nullptr), __ATOMIC_RELEASE);
    __atomic_sub_fetch(&readings_count, 1, __ATOMIC_ACQ_REL);
    if (reading->first != folder) behind(behind_closedir, "closedir")(reading->first);
    free(reading);
    break;
  }
  return behind(behind_closedir, "closedir")(folder);
}

STANDS_FOR(int, "mkdir", mkdir_of, const char* path, mode_t mode) { return make_folder(AT_FDCWD, path, mode); }
STANDS_FOR(int, "mkdirat", mkdirat_of, int folder, const char* path, mode_t mode) { return make_folder(folder, path, mode); }
STANDS_FOR(int, "mkfifo", mkfifo_of, const char* path, mode_t mode) { return make_node(AT_FDCWD, path, mode | S_IFIFO, 0); }
STANDS_FOR(int, "mkfifoat", mkfifoat_of, int folder, const char* path, mode_t mode) { return make_node(folder, path, mode | S_IFIFO, 0); }
STANDS_FOR(int, "mknod", mknod_of, const char* path, mode_t mode, dev_t device) { return make_node(AT_FDCWD, path, mode, device); }
STANDS_FOR(int, "mknodat", mknodat_of, int folder, const char* path, mode_t mode, dev_t device) { return make_node(folder, path, mode, device); }
STANDS_FOR(int, "symlink", symlink_of, const char* target, const char* path) { return make_link(target, AT_FDCWD, path); }
STANDS_FOR(int, "symlinkat", symlinkat_of, const char* target, int folder, const char* path) { return make_link(target, folder, path); }
STANDS_FOR(int, "link", link_of, const char* from, const char* to) { return link_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
STANDS_FOR(int, "linkat", linkat_of, int from_folder, const char* from, int to_folder, const char* to, int flags) {
  return link_at(from_folder, from, to_folder, to, flags);
}
STANDS_FOR(int, "unlink", unlink_of, const char* path) { return remove_at(AT_FDCWD, path, 0); }
STANDS_FOR(int, "unlinkat", unlinkat_of, int folder, const char* path, int flags) { return remove_at(folder, path, flags); }
STANDS_FOR(int, "rmdir", rmdir_of, const char* path) { return remove_at(AT_FDCWD, path, AT_REMOVEDIR); }
STANDS_FOR(int, "remove", remove_of, const char* path) {
  const int removed = remove_at(AT_FDCWD, path, 0);
  return removed < 0 && errno == EISDIR ? remove_at(AT_FDCWD, path, AT_REMOVEDIR) : removed;
}
STANDS_FOR(int, "rename", rename_of, const char* from, const char* to) { return move(AT_FDCWD, from, AT_FDCWD, to, 0); }
STANDS_FOR(int, "renameat", renameat_of, int from_folder, const char* from, int to_folder, const char* to) {
  return move(from_folder, from, to_folder, to, 0);
}
STANDS_FOR(int, "renameat2", renameat2_of, int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return move(from_folder, from, to_folder, to, flags);
}

STANDS_FOR_64(int, "truncate", truncate_of, (const char* path, off_t length), int folder = AT_FDCWD;
              CHANGE(true, syscall(SYS_truncate, at, length));)
STANDS_FOR(int, "fchmodat", fchmodat_of, int folder, const char* path, mode_t mode, int flags) {
  CHANGE(!(flags & AT_SYMLINK_NOFOLLOW), syscall(SYS_fchmodat, folder, at, mode));
}
STANDS_FOR(int, "chmod", chmod_of, const char* path, mode_t mode) { return fchmodat_of(AT_FDCWD, path, mode, 0); }
STANDS_FOR(int, "fchmod", fchmod_of, int file, mode_t mode) { return is_kept(file) ? 0 : static_cast<int>(syscall(SYS_fchmod, file, mode)); }
STANDS_FOR(int, "fchownat", fchownat_of, int folder, const char* path, uid_t user, gid_t group, int flags) {
  CHANGE(!(flags & AT_SYMLINK_NOFOLLOW), syscall(SYS_fchownat, folder, at, user, group, flags));
}
STANDS_FOR(int, "chown", chown_of, const char* path, uid_t user, gid_t group) { return fchownat_of(AT_FDCWD, path, user, group, 0); }
STANDS_FOR(int, "lchown", lchown_of, const char* path, uid_t user, gid_t group) {
  return fchownat_of(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
}
STANDS_FOR(int, "fchown", fchown_of, int file, uid_t user, gid_t group) {
  return is_kept(file) ? 0 : static_cast<int>(syscall(SYS_fchown, file, user, group));
}
STANDS_FOR(int, "utimensat", utimensat_of, int folder, const char* path, const timespec* times, int flags) {
  if (!path) return static_cast<int>(syscall(SYS_utimensat, folder, path, times, flags));
  CHANGE(!(flags & AT_SYMLINK_NOFOLLOW), syscall(SYS_utimensat, folder, at, times, flags));
}
STANDS_FOR(int, "futimens", futimens_of, int file, const timespec* times) {
  return is_kept(file) ? 0 : static_cast<int>(syscall(SYS_utimensat, file, nullptr, times, 0));
}
STANDS_FOR(int, "futimesat", futimesat_of, int folder, const char* path, const timeval* given) {
  timespec times[2] = {};
  for (int i = 0; given && i < 2; i++) times[i] = {given[i].tv_sec, given[i].tv_usec * 1000};
  return utimensat_of(folder, path, given ? times : nullptr, 0);
}
STANDS_FOR(int, "utimes", utimes_of, const char* path, const timeval* given) { return futimesat_of(AT_FDCWD, path, given); }
STANDS_FOR(int, "utime", utime_of, const char* path, const utimbuf* given) {
  const timespec times[] = {{given ? given->actime : 0, 0}, {given ? given->modtime : 0, 0}};
  return utimensat_of(AT_FDCWD, path, given ? times : nullptr, 0);
}
STANDS_FOR(int, "setxattr", set_attribute, const char* path, const char* key, const void* value, size_t length, int flags) {
  int folder = AT_FDCWD;
  CHANGE(true, syscall(SYS_setxattr, at, key, value, length, flags));
}
STANDS_FOR(int, "lsetxattr", set_attribute_of_link, const char* path, const char* key, const void* value, size_t length, int flags) {
  int folder = AT_FDCWD;
  CHANGE(false, syscall(SYS_lsetxattr, at, key, value, length, flags));
}
STANDS_FOR(int, "removexattr", remove_attribute, const char* path, const char* key) {
  int folder = AT_FDCWD;
  CHANGE(true, syscall(SYS_removexattr, at, key));
}
STANDS_FOR(int, "fsetxattr", set_attribute_of, int file, const char* key, const void* value, size_t length, int flags) {
  return is_kept(file) ? 0 : static_cast<int>(syscall(SYS_fsetxattr, file, key, value, length, flags));
}

STANDS_FOR(ssize_t, "write", write_to, int file, const void* bytes, size_t length) {
  const ssize_t hole = leave_hole(file, bytes, length, -1);
  return hole < 0 ? written(file, syscall(SYS_write, file, bytes, length)) : hole;
}
STANDS_FOR_64(ssize_t, "pwrite", write_to_at, (int file, const void* bytes, size_t length, off_t at),
              const ssize_t hole = leave_hole(file, bytes, length, at);
              return hole < 0 ? written(file, syscall(SYS_pwrite64, file, bytes, length, at)) : hole;)
STANDS_FOR(ssize_t, "writev", write_parts, int file, const iovec* parts, int count) {
  // What a stream had kept, and what it is given.
  if (!table || count < 1 || parts[count - 1].iov_len < 1 << 16) return written(file, syscall(SYS_writev, file, parts, count));
  const ssize_t before = count > 1 ? written(file, syscall(SYS_writev, file, parts, count - 1)) : 0;
  size_t wanted = 0;
  for (int i = 0; i + 1 < count; i++) wanted += parts[i].iov_len;
  if (before < 0 || static_cast<size_t>(before) < wanted) return before;
  const ssize_t last = write_to(file, parts[count - 1].iov_base, parts[count - 1].iov_len);
  return last >= 0 ? before + last : before ? before : last;
}
STANDS_FOR(int, "bind", bind_to, int socket, const sockaddr* address, socklen_t length) { return with_address(socket, address, length, true); }
STANDS_FOR(int, "connect", connect_to, int socket, const sockaddr* address, socklen_t length) {
  return with_address(socket, address, length, false);
}
STANDS_FOR(int, "posix_spawn_file_actions_addopen", open_in_child, posix_spawn_file_actions_t* actions, int file, const char* path, int flags,
           mode_t mode) {
  BEHIND(int, "posix_spawn_file_actions_addopen", posix_spawn_file_actions_t*, int, const char*, int, mode_t);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
  // Made or copied now; the child opens it where it is then.
  const int opened = table && writes ? open_held(AT_FDCWD, path, (flags & ~O_TRUNC & ~O_EXCL) | O_CLOEXEC, mode) : -1;
  if (opened >= 0) close(opened);
  Place place;
  return behind_it(actions, file, seen(path, true, place), flags, mode);
}
}
