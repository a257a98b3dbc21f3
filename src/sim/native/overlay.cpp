// Where a name leads while what is written is held back. What a program would write, make, move or remove is done in the session's folder, in a tree
// that has the names of the real one (`upper`); each call that reads finds what is there first. What was there before the rehearsal (`lower`) is
// opened for reading alone:
//
// - A file that is opened for writing is copied first, unless it is emptied by that. One that is moved becomes a link to where it was.
// - What is removed is marked as gone. A folder that is in both trees has the entries of both.
// - What is read is opened as it is, and only if it is not there or has the number of a file that another stands for, or folders or links were
//   moved, is its name looked for in our tree.
#include "held.h"

#include <sys/mman.h>

namespace held {

char upper[kPath], folder_of_held[kPath];
size_t upper_length = 0;
const char *temporary = nullptr, *shared = nullptr, *real = nullptr;

int raw_rename(const char* from, const char* to) { return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)); }

ssize_t written(int file, ssize_t result) {
  if (result >= 0 || !table || (errno != ENOSPC && errno != EDQUOT)) return result;
  const int before = errno;
  char path[kPath];
  const bool is_held = path_of(file, path) && is_ours(path);
  errno = before;
  return is_held ? written(result) : result;
}

bool path_of(int file, char* path) {
  char number[40];
  snprintf(number, sizeof number, "/proc/self/fd/%d", file);
  return raw_readlink(number, path, kPath) > 0;
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
    char target[kPath];
    Place place = {};
    ssize_t target_length = 0;
    if (is_system(name)) {
      // A folder or a file that a process has open is where it is, and not there; what it was told to print to is written as it is.
      const char* end = name + length - (length > 5 ? 5 : length);
      const bool is_output = strcmp(end, "/fd/1") == 0 || strcmp(end, "/fd/2") == 0;
      const bool leads = is_below(name, "/proc", 5) && !is_output && (!is_last || follows);
      if (leads) target_length = raw_readlink(name, target, sizeof target);
      struct stat about;
      if (target_length <= 0 || *target != '/' || look(target, &about) != 0) {
        if (leads && !is_last) continue;
        if (length + strlen(at) >= kPath) return ENAMETOOLONG;
        strcpy(name + length, at);
        return 0;
      }
    } else {
      if (is_last && !follows) break;
      if (!locate(name, place)) return errno;
      target_length = raw_readlink(place.at, target, sizeof target);
    }
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
  if (!path || !*path || nothing_changed()) return path;
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
  return kHeld;
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
  else mark_superseded(about);
}

// Marks it as gone, and notes its name.
void mark_gone(const char* name) {
  supersede(name);
  note("removed", name, strlen(name) + 1);
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
  return nothing_changed() || !__atomic_load_n(&table->has_moved, __ATOMIC_ACQUIRE);
}

int open_any(int folder, const char* path, int flags, mode_t mode) {
  if (path && is_gpu(path)) return refused(ENOENT);
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

int make_folder(int folder, const char* path, mode_t mode) { MADE(SYS_mkdirat, folder, path, mode); }
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

bool is_kept(int file) {
  char path[kPath], name[kPath];
  if (!table || !path_of(file, path) || *path != '/' || is_ours(path)) return false;
  Place place;
  int folder = AT_FDCWD;
  const char* given = path;
  return prepare(folder, given, false, name, place) == kHeld && place.exists && (S_ISREG(place.about.st_mode) || S_ISDIR(place.about.st_mode));
}

ssize_t leave_hole(int file, const void* bytes, size_t length, off_t at) {
  constexpr size_t kLeast = 1 << 16;
  const char* text = static_cast<const char*>(bytes);
  if (!table || length < kLeast || text[0] || memcmp(text, text + 1, length - 1) != 0) return -1;
  char path[kPath];
  struct stat about;
  if (!path_of(file, path) || !is_ours(path)) return -1;
  if (syscall(SYS_fstat, file, &about) != 0 || !S_ISREG(about.st_mode)) return -1;
  const bool moves = at < 0;
  if (moves) at = (fcntl(file, F_GETFL) & O_APPEND) ? about.st_size : syscall(SYS_lseek, file, 0, SEEK_CUR);
  const off_t end = at + static_cast<off_t>(length);
  if (at < about.st_size || syscall(SYS_ftruncate, file, end) != 0) return -1;
  if (moves) syscall(SYS_lseek, file, end, SEEK_SET);
  return static_cast<ssize_t>(length);
}

}  // namespace held
