/* Changes a folder's file `f` or what is beside it by one call of the kernel, past the C library: raw KIND FOLDER. Linked statically, and not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AT AT_FDCWD

static char f[4096], d[4096], n[4096];

static int done(long result) {
  if (result < 0) fprintf(stderr, "%s\n", strerror(errno));
  return result < 0;
}
static long open_raw(const char* path, int flags) { return syscall(SYS_openat, AT, path, flags, 0600); }
static int and_write(long file) { return file < 0 ? done(file) : done(syscall(SYS_write, file, "changed", 7)); }

static int by_ring(void) {
  struct io_uring_params p = {0};
  const long ring = syscall(SYS_io_uring_setup, 4, &p);
  if (ring < 0) return 77;
  char* at = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe) + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQ_RING);
  struct io_uring_sqe* entries = mmap(0, p.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQES);
  const struct io_uring_sqe opens = {.opcode = IORING_OP_OPENAT, .fd = AT, .addr = (uintptr_t)f, .open_flags = O_WRONLY | O_TRUNC};
  entries[0] = opens;
  ((unsigned*)(at + p.sq_off.array))[0] = 0;
  *(volatile unsigned*)(at + p.sq_off.tail) = 1;
  syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
  const int opened = ((struct io_uring_cqe*)(at + p.cq_off.cqes))[0].res;
  if (opened < 0) errno = -opened;
  return done(opened < 0 ? -1 : 0);
}

int main(int count, char** words) {
  const char* kind = count > 2 ? words[1] : "";
  struct timespec times[2] = {{5, 0}, {5, 0}};
  struct { uint64_t flags, mode, resolve; } how = {O_WRONLY | O_TRUNC, 0, 0};
  snprintf(f, sizeof f, "%s/f", words[2]);
  snprintf(d, sizeof d, "%s/d", words[2]);
  snprintf(n, sizeof n, "%s/n", words[2]);
#define IS(name) if (strcmp(kind, name) == 0)
  IS("write") return and_write(open_raw(f, O_WRONLY));
  IS("empty") return done(open_raw(f, O_WRONLY | O_TRUNC));
  IS("empty-reading") return done(open_raw(f, O_RDONLY | O_TRUNC));
  IS("append") return and_write(open_raw(f, O_WRONLY | O_APPEND));
  IS("make") return and_write(open_raw(n, O_WRONLY | O_CREAT));
  IS("openat2") return done(syscall(437, AT, f, &how, sizeof how));
  IS("truncate") return done(syscall(SYS_truncate, f, 1));
  IS("unlink") return done(syscall(SYS_unlinkat, AT, f, 0));
  IS("rmdir") return done(syscall(SYS_unlinkat, AT, strcat(d, "/e"), AT_REMOVEDIR));
  IS("rename") return done(syscall(SYS_renameat2, AT, f, AT, n, 0));
  IS("rename-folder") return done(syscall(SYS_renameat2, AT, d, AT, n, 0));
  IS("exchange") return done(syscall(SYS_renameat2, AT, f, AT, strcat(d, "/x"), 2));
  IS("link") return done(syscall(SYS_linkat, AT, f, AT, n, 0));
  IS("symlink") return done(syscall(SYS_symlinkat, "f", AT, n));
  IS("mkdir") return done(syscall(SYS_mkdirat, AT, n, 0700));
  IS("mkfifo") return done(syscall(SYS_mknodat, AT, n, S_IFIFO | 0600, 0));
  IS("chmod") return done(syscall(SYS_fchmodat, AT, f, 0600));
  IS("fchmod") return done(syscall(SYS_fchmod, open_raw(f, O_RDONLY), 0600));
  IS("utimes") return done(syscall(SYS_utimensat, AT, f, times, 0));
  IS("setxattr") return done(syscall(SYS_setxattr, f, "user.k", "v", 1, 0));
  IS("uring") return by_ring();
  IS("device") return access("/dev/kmsg", W_OK) ? 77 : done(open_raw("/dev/kmsg", O_WRONLY));
  IS("kill") return done(syscall(SYS_kill, atoi(words[2]), SIGKILL));
  return 77;
}
