// The C library's names by which programs write, and read what was written.
#include "held.h"

#include <spawn.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <utime.h>

using namespace held;

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
  if (!path || !*path || nothing_changed()) return behind_it(path, to);
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
    const int result = static_cast<int>(syscall(call, socket, address, length));
    if (!binds && (result == 0 || errno == EINPROGRESS)) note_connected(socket, address, result == 0);
    return result;
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
  if (binds && (!make_parents(name) || !upper_of(name, place.at))) return -1;
  sockaddr_un shorter = {};
  shorter.sun_family = AF_UNIX;
  if (strlen(place.at) < sizeof shorter.sun_path) {
    strcpy(shorter.sun_path, place.at);
    const int result = static_cast<int>(syscall(call, socket, &shorter, sizeof shorter));
    if (binds && result == 0) mark(name, kTouched);
    return result;
  }
  char* slash = strrchr(place.at, '/');
  *slash = 0;
  const int parent = raw_open(place.at, O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int done = snprintf(shorter.sun_path, sizeof shorter.sun_path, "/proc/self/fd/%d/%s", parent, slash + 1);
  const bool is_short = parent >= 0 && static_cast<size_t>(done) < sizeof shorter.sun_path;
  const int result = is_short ? static_cast<int>(syscall(call, socket, &shorter, sizeof shorter)) : refused(ENAMETOOLONG);
  if (parent >= 0) close(parent);
  if (binds && result == 0) mark(name, kTouched);
  return result;
}
}  // namespace

#define CHANGE(follows, call)                                      \
  Place place;                                                     \
  int result = 0;                                                  \
  const char* at = changed(folder, path, follows, place, result);  \
  return at ? static_cast<int>(written(call)) : result

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
STANDS_FOR(int, "faccessat", faccessat_of, int folder, const char* path, int mode, int flags) {
  READS(folder, path, !(flags & AT_SYMLINK_NOFOLLOW));
  BEHIND(int, "faccessat", int, const char*, int, int);
  return as_if_alone(behind_it(folder, path, mode, flags));
}
STANDS_FOR(int, "access", access_of, const char* path, int mode) { return faccessat_of(AT_FDCWD, path, mode, 0); }
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
STANDS_FOR(int, "getsockname", name_of_socket, int socket, sockaddr* address, socklen_t* length) {
  const socklen_t room = *length;
  const int result = static_cast<int>(syscall(SYS_getsockname, socket, address, length));
  char text[sizeof(sockaddr_un) + 1] = {};
  if (!table || result != 0 || room < sizeof(sockaddr_un) || address->sa_family != AF_UNIX || *length <= offsetof(sockaddr_un, sun_path)) return result;
  auto* given = reinterpret_cast<sockaddr_un*>(address);
  memcpy(text, given->sun_path, *length - offsetof(sockaddr_un, sun_path));
  if (strip(text)) strcpy(given->sun_path, text), *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(text) + 1);
  return result;
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
