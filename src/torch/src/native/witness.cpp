// The witness of a step: a digest of what it asks for, in order. Whoever asks for the same gives it again, whatever the sources look like.
// Of each operator its name, the types and shapes of its tensors, whole numbers and flags; of the device's allocations their bytes. No
// addresses, no values, no frees.
#include "allocations.h"
#include "../../../sim/native/guarded.h"
#include <ATen/record_function.h>
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

namespace {

std::mutex rows_mutex;
std::vector<std::string> rows;
at::CallbackHandle handle = 0;

void describe(std::string& row, const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      row += " -";
      return;
    }
    row += std::string(" ") + c10::toString(tensor.scalar_type());
    if (tensor.layout() != c10::kStrided || tensor.is_nested()) return;
    for (const auto size : tensor.sizes()) row += "," + std::to_string(size);
  } else if (value.isInt() || value.isBool()) {
    row += " " + std::to_string(value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool()));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) describe(row, item);
  }
}

std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
  std::string row = function.name();
  for (const c10::IValue& input : function.inputs()) describe(row, input);
  const std::lock_guard<std::mutex> lock(rows_mutex);
  rows.push_back(std::move(row));
  return nullptr;
}

uint64_t fnv(uint64_t hash, const std::string& text) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}
constexpr uint64_t kOffset = 0xcbf29ce484222325;
// Places in the order of rows, and groups of names, that have a byte each, by which a difference is found.
constexpr size_t kBytes = 32;

std::string name_of(const std::string& row) { return row.substr(0, row.find(' ')); }
size_t group_of(const std::string& row) { return fnv(kOffset, name_of(row)) % kBytes; }

struct Digest {
  uint64_t hash = kOffset;
  std::string order, names;

  // The order's bytes stand at each `every` rows.
  Digest(const std::vector<std::string>& rows, size_t every) {
    std::vector<uint64_t> groups(kBytes, kOffset);
    for (size_t at = 0; at < rows.size(); ++at) {
      hash = fnv(hash, rows[at] + "\n");
      auto& group = groups[group_of(rows[at])];
      group = fnv(group, rows[at] + "\n");
      if ((at + 1) % every == 0 || at + 1 == rows.size()) append(order, hash);
    }
    for (const auto group : groups) append(names, group);
  }

  static void append(std::string& text, uint64_t hash) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>((hash ^ hash >> 32) & 0xff));
    text += digits;
  }
};

size_t spread(size_t rows) { return std::max<size_t>(1, (rows + kBytes - 1) / kBytes); }

std::string text_of(const Digest& digest, size_t count) {
  char head[40];
  std::snprintf(head, sizeof head, "%016llx %zu ", static_cast<unsigned long long>(digest.hash), count);
  return head + digest.order + " " + digest.names;
}

// The first operator of these rows that is not as in a witness of before, as a sentence; empty where all is the same.
std::string difference(const std::string& known) {
  char order[2 * kBytes + 3] = "", names[2 * kBytes + 3] = "";
  unsigned long long hash = 0;
  size_t count = 0;
  const int found = std::sscanf(known.c_str(), "%16llx %zu %66s %66s", &hash, &count, order, names);
  if (found < 2) return "";
  const size_t every = spread(count);
  const Digest now(rows, every);
  if (now.hash == hash) return "";
  if (found < 4) return name_of(rows.front()) + ", where nothing was asked for";
  const std::string before = order;
  size_t same = 0;
  while (same < before.size() && now.order.compare(same, 2, before, same, 2) == 0) same += 2;
  const size_t begin = std::min(same / 2 * every, rows.size()), end = std::min(begin + every, rows.size());
  const auto differs = [&](const std::string& row) { return now.names.compare(2 * group_of(row), 2, names, 2 * group_of(row), 2) != 0; };
  const auto first = std::find_if(rows.begin() + begin, rows.begin() + end, differs);
  const std::string where = " (of rows " + std::to_string(begin + 1) + " to " + std::to_string(end) + " of " + std::to_string(rows.size()) +
                            ", before " + std::to_string(count) + ")";
  return (first == rows.begin() + end ? "an operator is no longer there" : name_of(*first)) + where;
}

}  // namespace

namespace vramlab {

void witnessed(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(rows_mutex);
  rows.push_back("allocation " + std::to_string(bytes));
}

}  // namespace vramlab

extern "C" {

// Begins the witness of what runs from here on: of all operators, and of the allocations of the CPU (-1) or of a CUDA device (its number).
char* vl_witness_begin(int32_t device) {
  return guarded([&] {
    rows.clear();
    vramlab::witness_allocations(device);
    handle = at::addGlobalCallback(at::RecordFunctionCallback(began).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  });
}

// Ends it, and hands over the witness, and what differs first from one of before (which may be empty).
char* vl_witness_end(const char* known, void* taker, void (*take)(void*, const char*, const char*)) {
  return guarded([&] {
    at::removeCallback(handle);
    vramlab::witness_allocations(vramlab::kNothing);
    const std::lock_guard<std::mutex> lock(rows_mutex);
    const std::string told = difference(known);
    take(taker, text_of(Digest(rows, spread(rows.size())), rows.size()).c_str(), told.c_str());
  });
}
}
