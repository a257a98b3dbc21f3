/* A kernel with Landlock of ABI $LANDLOCK_ABI, for whom calls by syscall(): what that version does not know is an error, as there. 0 has none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

long syscall(long number, ...) {
  static long (*kernel)(long, ...);
  /* Rights of files that each version knows; bytes of its attributes; its scopes. */
  static const uint64_t known[] = {0, 13, 14, 15, 15, 16, 16, 16};
  static const size_t sizes[] = {0, 8, 8, 8, 16, 16, 24, 24};
  const char* set = getenv("LANDLOCK_ABI");
  const int abi = set ? atoi(set) : 7;
  long a[6];
  va_list more;
  if (!kernel) kernel = dlsym(RTLD_NEXT, "syscall");
  va_start(more, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
  va_end(more);
  if (number >= 444 && number <= 446 && abi == 0) return errno = EOPNOTSUPP, -1;
  if (number == 444 && a[2] == 1) return abi;
  if (number == 444) {
    uint64_t attributes[3] = {0};
    memcpy(attributes, (const void*)a[0], (size_t)a[1] < sizeof attributes ? (size_t)a[1] : sizeof attributes);
    for (size_t i = sizes[abi] / 8; i < 3; i++) {
      if (attributes[i]) return errno = E2BIG, -1;
    }
    if (attributes[0] >> known[abi] || attributes[2] >> 2) return errno = EINVAL, -1;
  }
  return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
