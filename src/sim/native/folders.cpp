// Reads folders that are in both trees, as programs do.
#include "held.h"

namespace held {

namespace {

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

}  // namespace

DIR* read_folder(const char* name, const Place& place) { return follow_reading(behind(behind_opendir, "opendir")(place.at), name, place); }

bool is_empty(const char* name, const Place& place) {
  DIR* folder = read_folder(name, place);
  if (!folder) return false;
  bool is_empty = true;
  while (const dirent* entry = readdir(folder)) is_empty &= strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
  closedir(folder);
  return is_empty;
}

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

}  // namespace held

using namespace held;

extern "C" {

STANDS_FOR(DIR*, "opendir", open_folder, const char* path) {
  Place place;
  char name[kPath];
  bool moved;
  if (!path || !*path || nothing_changed() ||
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
}
