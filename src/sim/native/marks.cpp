// What a rehearsal has changed of what is found by name: a table that all of its processes share, of marks by hashes of names, and of the numbers of
// files that have another in their place. And lists of what happened, for the answer.
#include "held.h"

namespace held {

Table* table = nullptr;

namespace {

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

// By a file's number.
uint64_t hash_of(const struct stat& about) {
  const uint64_t numbers[] = {about.st_dev, about.st_ino};
  const char* bytes = reinterpret_cast<const char*>(numbers);
  uint64_t hash = added(kEmpty, 'n');
  for (size_t i = 0; i < sizeof numbers; i++) hash = added(hash, bytes[i]);
  return hash;
}

}  // namespace

void mark_superseded(const struct stat& about) { mark(hash_of(about), kTouched); }

void mark(const char* name, uint64_t marks) {
  uint64_t hash = kEmpty;
  for (const char* c = name; *c; c++) hash = added(hash, *c);
  mark(hash, marks);
}

bool is_superseded(const struct stat& about) {
  const uint64_t* slot = slot_of(hash_of(about));
  return !slot || (__atomic_load_n(slot, __ATOMIC_ACQUIRE) & kTouched) || table->is_full;
}

Marks marks_of(const char* name) {
  Marks marks = {};
  uint64_t hash = kEmpty;
  for (const char* c = name;; c++) {
    if (c != name && (*c == '/' || !*c)) {
      const uint64_t* slot = slot_of(hash);
      const uint64_t found = slot ? __atomic_load_n(slot, __ATOMIC_ACQUIRE) : 0;
      marks.gone |= (found & kGone) != 0;
      marks.touched = (found & kTouched) != 0 || table->is_full;
    }
    if (!*c) return marks;
    hash = added(hash, *c);
  }
}

void note(const char* list, const char* text, size_t length) {
  char path[kPath + 16];
  const int before = errno;
  snprintf(path, sizeof path, "%s/%s", folder_of_held, list);
  const int file = raw_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) {
    if (syscall(SYS_write, file, text, length) < 0) errno = 0;
    close(file);
  }
  errno = before;
}

}  // namespace held
