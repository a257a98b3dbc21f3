// Which library calls: by the address of its code or data.
#pragma once
#include <link.h>

#include <cstdint>
#include <cstring>

struct VramlabLibrary {
  uint64_t begin = 0, end = 0;
  // Its file; empty for the program itself.
  char name[512] = "";

  bool has(const void* address) const {
    const auto at = reinterpret_cast<uint64_t>(address);
    return at >= begin && at < end;
  }
  // PyTorch's and NVIDIA's, as their packages lay them out.
  bool is_pytorchs() const { return std::strstr(name, "/torch/lib/") || std::strstr(name, "/nvidia/") || std::strstr(name, "/libcud"); }
};

inline VramlabLibrary vramlab_library_of(const void* address) {
  struct Search {
    uint64_t address;
    VramlabLibrary found;
  } search{reinterpret_cast<uint64_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        VramlabLibrary here;
        here.begin = ~0ull;
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          const uint64_t begin = info->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
          if (begin < here.begin) here.begin = begin;
          if (end > here.end) here.end = end;
        }
        if (search.address < here.begin || search.address >= here.end) return 0;
        std::strncpy(here.name, info->dlpi_name, sizeof here.name - 1);
        search.found = here;
        return 1;
      },
      &search);
  return search.found;
}

// The libraries that somebody has seen, their names a line each.
class VramlabLibraries {
 public:
  // Where it is, or -1 where there is no room for one more. Under the caller's lock.
  int add(const VramlabLibrary& library) {
    for (int i = 0; i < count_; i++) {
      if (all_[i].begin == library.begin) return i;
    }
    if (count_ == kMost) return -1;
    all_[count_] = library;
    __atomic_store_n(&count_, count_ + 1, __ATOMIC_RELEASE);
    return count_ - 1;
  }
  // Without a lock.
  int find(const void* address) const {
    const int count = __atomic_load_n(&count_, __ATOMIC_ACQUIRE);
    for (int i = 0; i < count; i++) {
      if (all_[i].has(address)) return i;
    }
    return -1;
  }
  void mark(int at) {
    if (at >= 0) __atomic_store_n(&marked_[at], true, __ATOMIC_RELAXED);
  }
  const char* marked() {
    text_[0] = 0;
    for (int i = 0; i < count_; i++) {
      if (!__atomic_load_n(&marked_[i], __ATOMIC_RELAXED) || std::strlen(text_) + std::strlen(all_[i].name) + 2 > sizeof text_) continue;
      std::strcat(text_, all_[i].name);
      std::strcat(text_, "\n");
    }
    return text_;
  }

 private:
  static constexpr int kMost = 64;
  VramlabLibrary all_[kMost];
  bool marked_[kMost] = {};
  int count_ = 0;
  char text_[4096] = "";
};
