// What the parts of what holds writes back know of each other: marks.cpp, what was changed; overlay.cpp, where a name is; confine.cpp, what the
// kernel refuses; others.cpp, what others would feel; calls.cpp, the C library's names. None of it is seen by programs.
#pragma once
#include "writes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct sockaddr;

#pragma GCC visibility push(hidden)
namespace held {

constexpr size_t kPath = PATH_MAX;

// Where what is written is kept, the folder above it, and two folders of this rehearsal's elsewhere: for temporary files whose names other programs
// are told, and for shared memory.
extern char upper[kPath], folder_of_held[kPath];
extern size_t upper_length;
extern const char *temporary, *shared;
// Whether all else is read-only in this process's namespace.
extern bool is_apart;
// Folders that are written as they are, a line each.
extern const char* real;

// ---- marks ---------------------------------------------------------------------------------------------------------------------------------

enum Mark : uint64_t { kTouched = 1, kGone = 2, kMarks = 7 };
// As many names as can be touched (`SLOTS` in run/held.rs).
constexpr uint64_t kSlots = 1 << 20;
struct Table {
  // Changes of the marks; whether there was no room for one; whether the disk was full; whether a path can lead elsewhere than it did.
  uint64_t changes, is_full, no_space, has_moved;
  uint64_t slots[kSlots];
};
extern Table* table;

struct Marks {
  // By its own name; and by its own or that of a folder above it.
  bool touched, gone;
};

inline bool nothing_changed() { return !table || __atomic_load_n(&table->changes, __ATOMIC_ACQUIRE) == 0; }
void mark(const char* name, uint64_t marks);
Marks marks_of(const char* name);
// By the number of a file that another stands for now.
void mark_superseded(const struct stat& about);
bool is_superseded(const struct stat& about);
// Adds to a list in the folder above our tree; a list that cannot be written is short.
void note(const char* list, const char* text, size_t length);

// ---- the kernel's calls, directly: this is also run between vfork and exec -----------------------------------------------------------------

inline int look(const char* path, struct stat* about) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW));
}
inline int raw_open(const char* path, int flags, mode_t mode = 0) { return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode)); }
inline int raw_unlink(const char* path, int flags = 0) { return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, flags)); }
inline int raw_link(const char* target, const char* path) { return static_cast<int>(syscall(SYS_symlinkat, target, AT_FDCWD, path)); }
inline ssize_t raw_readlink(const char* path, char* to, size_t room) {
  const ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, path, to, room - 1);
  to[length > 0 ? length : 0] = 0;
  return length;
}
// Whether a program would be let write, but for what confines it: a namespace that is read-only.
inline int as_if_alone(int result) { return result < 0 && errno == EROFS && is_apart ? 0 : result; }
inline bool is_writable(const char* path) { return as_if_alone(static_cast<int>(syscall(SYS_faccessat, AT_FDCWD, path, W_OK))) == 0; }
inline int refused(int error) {
  errno = error;
  return -1;
}
inline void say(const char* text) {
  if (write(2, text, strlen(text)) < 0) errno = 0;
}

// An error of a call that wrote; that the disk is full is said in the answer.
template <typename Result>
Result written(Result result) {
  if (result < 0 && table && (errno == ENOSPC || errno == EDQUOT)) table->no_space = 1;
  return result;
}
// Of a file that is open, which may be another disk's or a device.
ssize_t written(int file, ssize_t result);
// The path of a file that is open; false, and errno, where it has none.
bool path_of(int file, char* path);

// ---- where a name is -----------------------------------------------------------------------------------------------------------------------

inline bool is_below(const char* name, const char* folder, size_t length) {
  return strncmp(name, folder, length) == 0 && (name[length] == '/' || !name[length]);
}
// Whether a file or folder is this rehearsal's own.
inline bool is_ours(const char* path) { return is_below(path, upper, upper_length) || is_below(path, temporary, strlen(temporary)); }
bool is_in(const char* list, const char* name);
bool is_system(const char* name);
// Takes a name in our tree for the one that it stands for. Whether it was one.
bool strip(char* name);

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
// By a name without links.
bool locate(const char* name, Place& place);
bool upper_of(const char* name, char* to);
// The name without links that a path stands for; `moved`: it leads over our tree, so that the kernel would not find it by itself.
int resolve(int folder, const char* path, bool follows, char* name, bool& moved);
// For what reads: the path that finds it, and from which folder.
const char* seen(int& folder, const char* path, bool follows, Place& place);
inline const char* seen(const char* path, bool follows, Place& place) {
  int folder = AT_FDCWD;
  return seen(folder, path, follows, place);
}
enum Road { kFailed, kAsItIs, kHeld };
// For what writes: whether it is held back, and what is there now. As it is, `path` may become another name of the same.
Road prepare(int& folder, const char*& path, bool follows, char* name, Place& place);

bool make_parents(const char* name);
// Opens a folder to be read, with the entries of both trees.
DIR* read_folder(const char* name, const Place& place);
bool is_empty(const char* name, const Place& place);
// Has our tree all of a file or folder, files as links to where they are.
bool lift(const char* name);
// What the link begins with that stands for a file which was moved: the file's old name follows, so that the kernel finds it, too.
constexpr char kMoved[] = "/./";
constexpr size_t kMovedLength = sizeof kMoved - 1;
int open_held(int folder, const char* path, int flags, mode_t mode);
int open_any(int folder, const char* path, int flags, mode_t mode);
bool reads_as_it_is();
int make_folder(int folder, const char* path, mode_t mode);
int make_link(const char* target, int folder, const char* path);
int make_node(int folder, const char* path, mode_t mode, dev_t device);
int remove_at(int folder, const char* path, int flags);
int move(int from_folder, const char* from, int to_folder, const char* to, unsigned flags);
int link_at(int from_folder, const char* from, int to_folder, const char* to, int flags);
// For calls that change what is said of a file: where it is to be changed; null where that is not done, or `result` is -1.
const char* changed(int& folder, const char* path, bool follows, Place& place, int& result);
// Whether a file that is open is one that was there before: its mode and times stay.
bool is_kept(int file);
// Zeros that a checkpoint of placeholders is full of: a hole at a file's end. Negative where they are written as they are.
ssize_t leave_hole(int file, const void* bytes, size_t length, off_t at);

// ---- what the kernel and others are asked --------------------------------------------------------------------------------------------------

// Whether a path is a device by which a real GPU is reached, where one is simulated.
bool is_gpu(const char* path);
// The process that all of this rehearsal's descend from; 0 where it is not known.
extern int guard_process;
// Notes whom a socket is connected to, or will be, and what it has sent when it is closed.
void note_connected(int socket, const ::sockaddr* address, bool is_open);

}  // namespace held
#pragma GCC visibility pop

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
