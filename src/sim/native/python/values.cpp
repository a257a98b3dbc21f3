#include "values.h"

#include "../kernels/kernels.h"
#include "recorder.h"
#include "work.h"
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace vramlab::rehearsal {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// ---- shadows: of each block that holds values which are known, its bytes on the CPU ---------------------------------------------------------

// More than this has no shadow, and is not computed: whole numbers as many as say which token goes to which expert, floating point only as much
// as lengths and counts are, and casts of whole numbers. All shadows together stay below the last.
constexpr size_t kMostWhole = 256 << 20, kMostFloating = 16 << 10, kMostAltogether = 1 << 30;
// A copy to the host of more than this is not filled.
constexpr size_t kMostCopied = 16 << 20;

// Where a value comes from: it is known; it says that numbers are valid, as in each healthy run; or it is made up, and could be another.
enum Source : uint8_t { kReal, kValid, kMadeUp };

struct Shadow {
  // Bytes; undefined where somebody wrote what nobody knows.
  Tensor bytes;
  Source source = kReal;
  bool is_large_floating = false;
  // A mask that nobody knows, cast to numbers.
  bool is_mask = false;
};

std::mutex shadows_mutex;
std::unordered_map<uint64_t, Shadow> shadows;
// Of those, under the mutex: all bytes; and how many are of floating point beyond kMostFloating.
size_t shadow_bytes = 0;
std::atomic<size_t> large_floating{0};

// In a second rehearsal made-up values are others, as possible as the first: what differs then hangs on them (src/rehearse/src/explore/unknown.rs).
bool is_other() {
  static const bool is_set = std::getenv("VRAMLAB_REHEARSAL_OTHER_VALUES") != nullptr;
  return is_set;
}

// A loss of a healthy run, of which nobody knows more: above 0, for logarithms and quotients; and a little less each time, so that who waits until it
// is small, or does no longer improve, sees both, and not at once. Each step begins a little below the one before, so that steps are alike.
double next_loss() {
  static std::atomic<uint64_t> asked{0};
  const uint64_t step = current_step(), before = asked.load();
  const uint64_t now = before >> 32 == step ? before + 1 : step << 32 | 1;
  asked = now;
  return std::max((is_other() ? 20 : 1) * std::pow(0.99, step) * std::pow(0.98, now & 0xffffffff), 1e-30);
}

// Of truths and whole numbers: a count, so that it can be divided by.
bool made_up_truth() { return is_other(); }
int64_t made_up_count() { return is_other() ? 64 : 1; }

bool is_whole(at::ScalarType type) { return at::isIntegralType(type, /*includeBool=*/true); }

uint64_t address_of(const Tensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.storage().unsafeGetStorageImpl()->data());
}

// Plain memory of the card, of a type and size whose values are kept.
bool can_be_known(const Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  const size_t bytes = tensor.storage().nbytes();
  return bytes <= (is_whole(tensor.scalar_type()) ? kMostWhole : kMostFloating) && tensor.storage_offset() >= 0;
}

// A cast of whole numbers, and what was written into one since.
bool has_large_shadow(const Tensor& tensor) {
  if (!large_floating.load(std::memory_order_relaxed) || !tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  const std::lock_guard<std::mutex> lock(shadows_mutex);
  const auto found = shadows.find(address_of(tensor));
  return found != shadows.end() && found->second.bytes.defined() && found->second.bytes.nbytes() == tensor.storage().nbytes();
}

Tensor over(const Tensor& bytes, const Tensor& like) {
  // A tensor that reaches beyond its storage would be an error of the script's own.
  return at::empty({0}, like.options().device(at::kCPU).pinned_memory(false))
      .set_(bytes.storage(), like.storage_offset(), like.sizes(), like.strides());
}

// The values of a tensor, as a view of its block's shadow; undefined where they are not known.
Tensor known(const Tensor& tensor, Source* source) {
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  if (!can_be_known(tensor) && !has_large_shadow(tensor)) return {};
  Shadow shadow;
  {
    const std::lock_guard<std::mutex> lock(shadows_mutex);
    const auto found = shadows.find(address_of(tensor));
    if (found == shadows.end() || !found->second.bytes.defined()) return {};
    shadow = found->second;
  }
  if (shadow.bytes.nbytes() != tensor.storage().nbytes()) return {};
  if (source) *source = std::max(*source, shadow.source);
  Tensor view = over(shadow.bytes, tensor);
  return tensor.is_conj() ? view.conj() : tensor.is_neg() ? view._neg_view() : view;
}

// Under the mutex. What was there is handed out, to be destroyed without it.
Shadow replace_shadow(uint64_t address, Shadow shadow) {
  Shadow& place = shadows[address];
  if (place.bytes.defined()) shadow_bytes -= place.bytes.nbytes();
  large_floating -= place.is_large_floating;
  if (shadow.bytes.defined()) shadow_bytes += shadow.bytes.nbytes();
  large_floating += shadow.is_large_floating;
  std::swap(place, shadow);
  return shadow;
}

void set_shadow(const Tensor& tensor, Shadow shadow) {
  if (const uint64_t address = address_of(tensor)) {
    const std::lock_guard<std::mutex> lock(shadows_mutex);
    shadow = replace_shadow(address, std::move(shadow));
  }
}

// Somebody wrote into the tensor what nobody knows.
void lose(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0) return;
  if (is_whole(tensor.scalar_type()) && tensor.storage().nbytes() <= kMostWhole) return set_shadow(tensor, {});
  forget_values(address_of(tensor));
}

// Whether it is a mask whose values nobody knows, as truths or as numbers.
bool is_unknown_mask(const Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage() || known(tensor, nullptr).defined()) return false;
  if (tensor.scalar_type() == at::kBool) return true;
  const std::lock_guard<std::mutex> lock(shadows_mutex);
  const auto found = shadows.find(address_of(tensor));
  return found != shadows.end() && found->second.is_mask;
}

// Writes values into a tensor's shadow. Where there is none, the tensor must fill its block, or be the first to be written of whole numbers.
void learn(const Tensor& tensor, const Tensor& values, Source source, bool is_cast = false) {
  if (tensor.numel() == 0) return;
  const bool is_large_floating = !can_be_known(tensor);
  if (is_large_floating && !has_large_shadow(tensor) && (!is_cast || tensor.storage().nbytes() > kMostWhole)) return lose(tensor);
  // A shadow outlives the script's modes.
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  Shadow shadow;
  bool is_written = false, is_full = false;
  {
    const std::lock_guard<std::mutex> lock(shadows_mutex);
    is_full = shadow_bytes + tensor.storage().nbytes() > kMostAltogether;
    const auto found = shadows.find(address_of(tensor));
    if (found != shadows.end()) {
      shadow = found->second;
      is_written = true;
    }
  }
  const size_t bytes = tensor.storage().nbytes();
  const bool fills = tensor.is_non_overlapping_and_dense() && static_cast<size_t>(tensor.numel()) * tensor.itemsize() + 512 > bytes;
  if (!shadow.bytes.defined() || shadow.bytes.nbytes() != bytes) {
    if (is_full || (!fills && (is_written || !is_whole(tensor.scalar_type())))) return lose(tensor);
    const auto options = at::TensorOptions(at::kByte);
    shadow = {fills ? at::empty({static_cast<int64_t>(bytes)}, options) : at::zeros({static_cast<int64_t>(bytes)}, options)};
  }
  over(shadow.bytes, tensor).copy_(values);
  shadow.source = fills ? source : std::max(source, shadow.source);
  shadow.is_large_floating = is_large_floating;
  set_shadow(tensor, std::move(shadow));
}

// Zeros of a whole block that is not small: of pages that nobody reads none is made. Attention has its workspace cleared in every backward pass.
bool learn_zeros(const Tensor& tensor) {
  const size_t bytes = tensor.storage().nbytes();
  if (bytes < 64 << 10 || !can_be_known(tensor) || !tensor.is_contiguous() || static_cast<size_t>(tensor.numel()) * tensor.itemsize() != bytes) return false;
  const c10::InferenceMode normal(false);
  {
    const std::lock_guard<std::mutex> lock(shadows_mutex);
    if (shadow_bytes + bytes > kMostAltogether) return false;
  }
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return false;
  Shadow shadow;
  const auto unmap = [bytes](void* address) { ::munmap(address, bytes); };
  shadow.bytes = at::from_blob(pages, {static_cast<int64_t>(bytes)}, unmap, at::TensorOptions(at::kByte));
  set_shadow(tensor, std::move(shadow));
  return true;
}

// ---- an operator on the CPU -----------------------------------------------------------------------------------------------------------------

const at::Generator& generator() {
  // The script's own generators go on as they would on a GPU.
  static const at::Generator ours = at::detail::createCPUGenerator(0x5eed);
  return ours;
}

struct OnCpu {
  bool is_known = true, has_card = false;
  Source source = kReal;
  size_t bytes = 0;

  // `is_written`: its values before do not matter to whether the operator can run, where they are overwritten.
  Tensor tensor(const Tensor& tensor, bool is_overwritten) {
    if (!tensor.defined() || tensor.is_cpu()) {
      if (tensor.defined()) bytes += tensor.nbytes();
      return tensor;
    }
    has_card = true;
    bytes += tensor.numel() * tensor.itemsize();
    if (bytes > 2 * kMostWhole) is_known = false;
    if (!is_known) return {};
    if (is_overwritten) return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).pinned_memory(false));
    Tensor values = known(tensor, &source);
    if (!values.defined()) is_known = false;
    return values;
  }

  IValue argument(const IValue& value, const c10::Argument& formal, bool is_overwritten) {
    const bool is_written = formal.alias_info() && formal.alias_info()->isWrite();
    // What is written to is written into a copy: the kernel on the card may have called operators that did it already.
    const auto one = [&](const Tensor& given) {
      const Tensor found = tensor(given, is_overwritten && is_written);
      return is_written && found.defined() && given.is_cuda() && !is_overwritten ? found.clone() : found;
    };
    if (value.isGenerator()) return generator();
    return dry::argument_for(at::kCPU, value, one);
  }
};

struct Tensors {
  std::vector<Tensor> list;
  void add(const IValue& value) {
    each_tensor(value, [this](const Tensor& tensor) { list.push_back(tensor); });
  }
};

// Runs it on the arguments; false where it cannot, for whatever reason.
bool run_on_cpu(const c10::OperatorHandle& op, Stack* arguments) {
  try {
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    const c10::impl::ExcludeDispatchKeyGuard without_modes(c10::DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
    op.callBoxed(arguments);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// ---- what is special --------------------------------------------------------------------------------------------------------------------------

enum class Special {
  kNone,
  // Reads a value.
  kItem,
  // Gives a truth about all of its tensors.
  kEqual,
  // The shape of its results depends on values.
  kShape,
  // Counts, which scripts take for sizes.
  kCounts,
  // Of numbers that nobody knows: the first, or for several each in turn.
  kFirst,
  kInTurn,
  kBestInTurn,
  kAll,
  kTrue,
  kFalse,
  // One number and a limit.
  kMore,
  kLess,
  // How many a mask selects: all, as what is selected by it has.
  kSelected,
  // A healthy scaler finds nothing infinite.
  kNothingFound,
  kCopy,
};

Special special_of(const std::string& name) {
  // Without their namespace. What is asked of all values (kAll) is mostly whether they are valid; of _is_all_true it is always, as torch.distributions does.
  static const std::map<Special, std::set<std::string>> specials = {
      {Special::kItem, {"_local_scalar_dense"}},
      {Special::kEqual, {"equal", "allclose"}},
      {Special::kShape, {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
                         "repeat_interleave.Tensor", "bincount"}},
      {Special::kCounts, {"histc"}},
      {Special::kFirst, {"multinomial"}},
      {Special::kInTurn, {"topk", "sort", "sort.stable"}},
      {Special::kBestInTurn, {"argmax", "argmin", "argmax.out", "argmin.out", "max.dim", "min.dim"}},
      {Special::kAll, {"all", "all.dim", "all.dims"}},
      {Special::kTrue, {"isfinite", "isclose", "_is_all_true"}},
      {Special::kFalse, {"isnan", "isinf"}},
      {Special::kMore, {"gt.Scalar", "ge.Scalar"}},
      {Special::kLess, {"lt.Scalar", "le.Scalar"}},
      {Special::kSelected, {"sum", "sum.dim_IntList", "count_nonzero", "count_nonzero.dim_IntList"}},
      {Special::kNothingFound, {"_amp_foreach_non_finite_check_and_unscale_"}},
      {Special::kCopy, {"copy_"}},
  };
  for (const auto& [special, names] : specials)
    if (name.rfind("aten::", 0) == 0 && names.count(name.substr(6))) return special;
  return Special::kNone;
}

// PyTorch's own kernels for these take memory, or make views, and write nothing.
const std::set<std::string> kWithoutValues = {
    "aten::empty.memory_format", "aten::empty_strided",       "aten::as_strided",
    "aten::_reshape_alias",      "aten::view",                "aten::resize_",
    "aten::set_",                "aten::set_.source_Storage", "aten::set_.source_Tensor",
    "aten::unfold",              "aten::view_as_complex",     "aten::set_.source_Storage_storage_offset",
    "aten::view_as_real",        "aten::record_stream",       "aten::_fused_sdp_choice",
    "aten::is_set_to",           "aten::is_pinned",           "aten::_pin_memory",
    "aten::view.dtype",          "aten::_has_same_storage_numel",
};

// ---- around each kernel ------------------------------------------------------------------------------------------------------------------------

// A result of the largest shape that it could have.
std::vector<Tensor> largest(const std::string& name, const Stack& arguments) {
  const Tensor& self = arguments[0].toTensor();
  const auto indices = [&](c10::IntArrayRef sizes) { return at::empty(sizes, self.options().dtype(at::kLong)); };
  if (name == "aten::nonzero") return {at::empty({self.dim(), self.numel()}, self.options().dtype(at::kLong)).transpose(0, 1)};
  if (name == "aten::masked_select") {
    const auto sizes = at::infer_size(self.sizes(), arguments[1].toTensor().sizes());
    return {at::empty({c10::multiply_integers(sizes)}, self.options())};
  }
  if (name == "aten::repeat_interleave.Tensor") {
    return {indices({arguments[1].isInt() ? arguments[1].toInt() : self.numel() * (is_other() ? 8 : 1)})};
  }
  if (name == "aten::bincount") return {indices({std::max<int64_t>(made_up_count(), arguments[2].toInt())})};
  if (name == "aten::unique_dim" || name == "aten::unique_dim_consecutive") {
    const int64_t n = self.size(arguments[1].toInt());
    return {at::empty_like(self), indices({n}), indices({n})};
  }
  // _unique2 and unique_consecutive.
  return {at::empty({self.numel()}, self.options()), indices(self.sizes()), indices({self.numel()})};
}

Tensor in_turn(const Tensor& like, int64_t choices, int64_t first = 0) {
  const Tensor numbers = at::arange(first, first + like.numel(), at::TensorOptions(at::kLong)).remainder(std::max<int64_t>(1, choices));
  return numbers.view(like.sizes()).to(like.scalar_type());
}

// ---- indices and masks that nobody knows, for an operator that applies them to whole numbers which are known -------------------------------------

// By the places of its arguments: what is looked up or written to, the dimension (-1: a list of indices has them all), indices or a mask.
struct Choosing {
  int self = 0, dim = -1, chosen = -1;
  bool is_write = false;
};

const Choosing* choosing_of(const std::string& name) {
  static const std::unordered_map<std::string, Choosing> choosing = {
      {"aten::index.Tensor", {0, -1, 1, false}},       {"aten::_index_put_impl_", {0, -1, 1, true}}, {"aten::gather", {0, 1, 2, false}},
      {"aten::index_select", {0, 1, 2, false}},        {"aten::scatter.value", {0, 1, 2, true}},     {"aten::scatter_.value", {0, 1, 2, true}},
      {"aten::scatter.src", {0, 1, 2, true}},          {"aten::scatter_.src", {0, 1, 2, true}},      {"aten::masked_fill_.Scalar", {0, -1, 1, true}},
      {"aten::masked_fill_.Tensor", {0, -1, 1, true}}, {"aten::where.self", {1, -1, 0, false}},
  };
  const auto found = choosing.find(name);
  return found == choosing.end() ? nullptr : &found->second;
}

// A mask that hits one half, each another one.
Tensor one_half(const Tensor& like) {
  static std::atomic<uint64_t> masks{0};
  if (is_other()) return at::ones(like.sizes(), at::TensorOptions(like.scalar_type()));
  const uint64_t odd = (2 * masks++ + 1) * 0x9e3779b97f4a7c15ull;
  Tensor mask = at::empty({like.numel()}, at::TensorOptions(at::kBool));
  bool* const values = mask.data_ptr<bool>();
  for (int64_t i = 0; i < like.numel(); i++) values[i] = ((static_cast<uint64_t>(i) + 1) * odd ^ odd >> 29) * 0xbf58476d1ce4e5b9ull >> 63;
  return mask.view(like.sizes()).to(like.scalar_type());
}

// Runs a kernel. Where its CUDA code asks a library for what that cannot tell without a GPU, the operator is refused by name.
void call(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t out_of_memory = times_out_of_memory();
  try {
    kernel.callBoxed(op, keys, stack);
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace(), before = " when calling `";
    const size_t at = said.find(before);
    const bool is_library = said.rfind("CUDA error: ", 0) == 0 && at != std::string::npos;
    if (is_library || said.rfind("The simulated GPU cannot run ", 0) == 0) refused(op.schema().name().c_str());
    if (!is_library) throw;
    const size_t begin = at + before.size();
    // 2.15 names the variable that has the answer of cuSPARSELt's start.
    const bool names_it = said.rfind("cu", begin) == begin;
    const std::string function = names_it ? said.substr(begin, said.find('(', begin) - begin) : "a library";
    TORCH_CHECK_NOT_IMPLEMENTED(false, "The simulated GPU cannot run ", op.schema().operator_name(), ": its CUDA code calls ", function,
                                ", which gives no answer without a GPU (", said.substr(12, at - 12), "). The size of the operator's result and "
                                "the library's workspace would have to be known. Give it tensors on the CPU, or dense ones.");
  }
  if (times_out_of_memory() > out_of_memory) dealt_with_out_of_memory(out_of_memory);
}

// Whether it came to its end. Nothing of ours raises into the script: it is left out, and said so.
template <typename Body>
bool holds(const char* what, Body body) {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    left_out(what, error.what());
    return false;
  }
}

struct Around final : c10::OperatorKernel {
  Around(const c10::OperatorHandle& op, c10::KernelFunction kernel) : kernel(std::move(kernel)) {
    const auto& schema = op.schema();
    name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
    special = special_of(name);
    // As the script calls it.
    name_of_operator = special == Special::kItem ? "item" : schema.name().substr(schema.name().find("::") + 2);
    // A product of whole numbers takes minutes on a CPU that has no instructions for it.
    runs_on_cpu = (op.hasKernelForDispatchKey(DispatchKey::CPU) || op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                   op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) &&
                  schema.name() != "aten::_int_mm";
    static const std::set<std::string> kOverwrites = {"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_", "aten::copy_", "aten::random_",
                                                      "aten::random_.from", "aten::random_.to", "aten::uniform_", "aten::normal_",
                                                      "aten::bernoulli_.float", "aten::exponential_"};
    overwrites = kOverwrites.count(name) != 0;
    for (const auto& argument : schema.arguments()) {
      if (argument.is_out()) overwrites = true;
    }
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias && alias->isWrite()) written_arguments.push_back(i);
    }
    choosing = choosing_of(name);
    work.emplace(schema, overwrites);
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    OwnTime time;
    WorkScope scope(*work, op, *stack);
    run(op, keys, stack, time);
    time.pause();
    time.go_on();
    scope.ends(*stack, number());
  }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, OwnTime& time) {
    struct Named {
      explicit Named(uint32_t number) : before(set_operator(number)) {}
      ~Named() { set_operator(before); }
      uint32_t before;
    } named(number());
    const size_t count = op.schema().arguments().size();
    const auto begin = stack->end() - static_cast<std::ptrdiff_t>(count);
    // Copied where something is left to do after the kernel.
    OnCpu cpu;
    Stack arguments, before, targets;
    const bool is_seen = holds("values of numbers", [&] {
      cpu.is_known = runs_on_cpu && may_be_known(begin, count);
      if (cpu.is_known) {
        arguments.reserve(count);
        for (size_t i = 0; i < count && cpu.is_known; i++)
          arguments.push_back(cpu.argument(*(begin + static_cast<std::ptrdiff_t>(i)), op.schema().arguments()[i], overwrites));
      }
      if (!cpu.is_known && choosing && runs_on_cpu && imagine(op, begin, count, cpu, arguments)) placeholder_read(name_of_operator.c_str(), true);
    });
    if (!is_seen) cpu.is_known = false;
    if (special != Special::kNone) before.assign(begin, stack->end());
    for (const size_t i : written_arguments) targets.push_back(*(begin + static_cast<std::ptrdiff_t>(i)));
    if (special == Special::kItem || special == Special::kEqual) return answer(op, keys, stack, cpu, arguments, before);
    if (special == Special::kShape) return shape(op, keys, stack, cpu, arguments, before);
    time.pause();
    call(kernel, op, keys, stack);
    time.go_on();
    const size_t returned = op.schema().returns().size();
    const c10::ArrayRef<IValue> values(stack->data() + stack->size() - returned, returned);
    // By far the most of them have none.
    const bool has_none = !cpu.is_known && special == Special::kNone;
    if (!has_none && holds("values of numbers", [&] { remember(op, cpu, arguments, before, values, targets); })) return;
    for (const IValue& value : values) each_tensor(value, lose);
    for (const IValue& value : targets) each_tensor(value, lose);
  }

  // What results have, after the kernel.
  void remember(const c10::OperatorHandle& op, const OnCpu& cpu, Stack& arguments, const Stack& before, c10::ArrayRef<IValue> values, const Stack& targets) {
    Tensors results, written;
    for (const IValue& value : values) results.add(value);
    for (const IValue& value : targets) written.add(value);
    const bool is_cast = special == Special::kCopy && cpu.is_known && is_whole(before[1].toTensor().scalar_type());
    // What is made up and says that numbers are valid says it always.
    const bool is_valid = special == Special::kTrue && cpu.source == kMadeUp;
    if (cpu.is_known && !is_valid && (is_cast || worth(results, written)) && compute(op, arguments, results, written, cpu.source, is_cast)) {
      if (cpu.source == kMadeUp && special == Special::kCounts) tell_size(results.list[0], before);
      if (cpu.source != kReal && special == Special::kCopy && written.list[0].is_cpu()) placeholder_read("copy to the CPU", cpu.source == kMadeUp);
      return;
    }
    unknown(before, results, written);
  }

  // The operator's arguments with indices in turn, or a mask that hits one half, in place of those that nobody knows.
  bool imagine(const c10::OperatorHandle& op, Stack::const_iterator begin, size_t count, OnCpu& cpu, Stack& arguments) const {
    const auto at = [&](int i) -> const IValue& { return *(begin + i); };
    if (!at(choosing->self).isTensor()) return false;
    const Tensor& self = at(choosing->self).toTensor();
    const auto is_kept = [](const Tensor& tensor) { return is_whole(tensor.scalar_type()) ? can_be_known(tensor) : has_large_shadow(tensor); };
    if (!self.defined() || !self.is_cuda() || self.numel() == 0 || !is_kept(self)) return false;
    const bool is_list = !at(choosing->chosen).isTensor();
    bool is_possible = true;
    static std::atomic<int64_t> places{0};
    int64_t dim = choosing->dim < 0 ? 0 : c10::maybe_wrap_dim(at(choosing->dim).toInt(), std::max<int64_t>(1, self.dim()));
    cpu = {};
    const auto chosen = [&](const Tensor& given) -> Tensor {
      const bool is_mask = given.scalar_type() == at::kBool || given.scalar_type() == at::kByte;
      const int64_t choices = self.dim() && dim < self.dim() ? self.size(dim) : 1;
      dim += is_mask ? given.dim() : 1;
      if (given.is_cpu()) return given;
      Tensor values = known(given, &cpu.source);
      if (values.defined()) return values;
      if (static_cast<size_t>(given.numel()) * given.itemsize() > kMostWhole || (is_mask && name == "aten::index.Tensor")) {
        is_possible = false;
        return {};
      }
      cpu.source = kMadeUp;
      // Those who write in turn do not meet.
      return is_mask ? one_half(given) : in_turn(given, choices, choosing->is_write ? places.fetch_add(given.numel()) % std::max<int64_t>(1, choices) : 0);
    };
    arguments.clear();
    for (size_t i = 0; i < count && cpu.is_known && is_possible; i++) {
      const IValue& value = at(static_cast<int>(i));
      if (static_cast<int>(i) != choosing->chosen) {
        arguments.push_back(cpu.argument(value, op.schema().arguments()[i], overwrites));
      } else if (is_list) {
        c10::List<std::optional<Tensor>> list;
        for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) {
          if (!each || !each->defined()) dim++;
          list.push_back(each && each->defined() ? std::optional<Tensor>(chosen(*each)) : std::nullopt);
        }
        arguments.push_back(list);
      } else {
        arguments.push_back(chosen(value.toTensor()));
      }
    }
    if (!is_possible) cpu.is_known = false;
    return cpu.is_known;
  }

  // Whether the values of all arguments could be known by their types and sizes, before anything of them is copied.
  bool may_be_known(Stack::const_iterator begin, size_t count) const {
    bool may = true;
    for (size_t i = 0; i < count && may; i++) {
      if (overwrites && std::find(written_arguments.begin(), written_arguments.end(), i) != written_arguments.end()) continue;
      each_tensor(*(begin + static_cast<std::ptrdiff_t>(i)), [&](const Tensor& tensor) {
        if (may && tensor.defined() && tensor.is_cuda() && tensor.numel() > 0 && !can_be_known(tensor) && !has_large_shadow(tensor)) may = false;
      });
    }
    return may;
  }

  // Whether there is a result whose values are kept.
  bool worth(const Tensors& results, const Tensors& written) const {
    for (const auto* tensors : {&results, &written}) {
      for (const Tensor& tensor : tensors->list) {
        if (tensor.defined() && (tensor.is_cpu() || can_be_known(tensor) || has_large_shadow(tensor))) return true;
      }
    }
    return false;
  }

  bool compute(const c10::OperatorHandle& op, Stack& arguments, const Tensors& results, const Tensors& written, Source source, bool is_cast) {
    if (name == "aten::zero_" || (name == "aten::fill_.Scalar" && arguments[1].toScalar().equal(0))) {
      if (learn_zeros(written.list[0])) return true;
    }
    // On the CPU it counts floating point alone.
    if (name == "aten::histc" && is_whole(arguments[0].toTensor().scalar_type())) arguments[0] = arguments[0].toTensor().to(at::kDouble);
    Stack inputs = arguments;
    if (!run_on_cpu(op, &arguments)) return false;
    // In place, or into an argument: those are the results.
    const bool is_written = !written_arguments.empty();
    Tensors values;
    if (is_written) {
      for (const size_t i : written_arguments) values.add(inputs[i]);
    } else {
      for (const IValue& value : arguments) values.add(value);
    }
    const std::vector<Tensor>& to = (is_written ? written : results).list;
    for (size_t i = 0; i < to.size() && i < values.list.size(); i++) put(to[i], values.list[i], source, is_cast);
    return true;
  }

  void put(const Tensor& to, const Tensor& values, Source source, bool is_cast) {
    if (!to.defined() || !values.defined()) return;
    if (to.is_cpu()) {
      // A copy to the host.
      if (!values.is_same(to)) to.copy_(values);
    } else if (to.sizes() == values.sizes()) {
      learn(to, values, source, is_cast);
    } else {
      lose(to);
    }
  }

  // Of numbers that nobody knows.
  void unknown(const Stack& before, const Tensors& results, const Tensors& written) {
    const at::NoGradGuard no_grad;
    const auto whole = [&](const std::function<Tensor(const Tensor&)>& values, Source source = kMadeUp) {
      for (const Tensor& result : results.list) {
        if (result.defined() && result.is_cuda() && is_whole(result.scalar_type()) && can_be_known(result)) learn(result, values(result), source);
      }
    };
    const auto on_cpu = [](const Tensor& like) { return like.options().device(at::kCPU).pinned_memory(false); };
    switch (special) {
      case Special::kNothingFound: {
        // The gradients, and what was found: no more than before.
        for (const Tensor& gradient : before[0].toTensorVector()) lose(gradient);
        return;
      }
      case Special::kFirst: {
        const Tensor& self = before[0].toTensor();
        return whole([&](const Tensor& like) {
          return is_other() ? in_turn(like, self.dim() ? self.size(-1) : 1) : at::zeros(like.sizes(), on_cpu(like));
        });
      }
      case Special::kAll: return whole([&](const Tensor& like) { return at::full(like.sizes(), !made_up_truth(), on_cpu(like)); });
      case Special::kTrue: return whole([&](const Tensor& like) { return at::ones(like.sizes(), on_cpu(like)); }, kValid);
      case Special::kFalse: return whole([&](const Tensor& like) { return at::zeros(like.sizes(), on_cpu(like)); }, kValid);
      case Special::kMore:
      case Special::kLess: {
        const Tensor& self = before[0].toTensor();
        if (self.dim() != 0 || !at::isFloatingType(self.scalar_type())) break;
        // A tolerance below 0 is for a slope, which goes down (LBFGS).
        const double limit = before[1].toScalar().toDouble(), number = limit < 0 && limit > -1e-3 ? -next_loss() : next_loss();
        const bool holds = special == Special::kMore ? number > limit : number < limit;
        return whole([&](const Tensor& like) { return at::full(like.sizes(), holds, on_cpu(like)); });
      }
      case Special::kBestInTurn: {
        // As experts of which each token chooses one: balanced.
        const Tensor& self = before[0].toTensor();
        const bool of_all = before.size() < 2 || !before[1].isInt() || self.dim() == 0;
        const int64_t choices = of_all ? self.numel() : self.size(before[1].toInt());
        return whole([&](const Tensor& like) { return is_other() ? at::zeros(like.sizes(), on_cpu(like)) : in_turn(like, choices); });
      }
      case Special::kInTurn: {
        const Tensor& self = before[0].toTensor();
        return whole([&](const Tensor& like) {
          const int64_t choices = self.dim() ? self.size(-1) : 1;
          // Each row the same, and in it no choice twice.
          return is_other() && like.dim() ? at::arange(like.size(-1)).remainder(choices).expand(like.sizes()) : in_turn(like, choices);
        });
      }
      case Special::kSelected: {
        const Tensor& self = before[0].toTensor();
        if (!is_unknown_mask(self)) break;
        for (const Tensor& result : results.list) {
          if (result.numel() > 0) learn(result, at::full(result.sizes(), self.numel() / result.numel(), on_cpu(result)), kMadeUp);
        }
        return;
      }
      case Special::kCopy: {
        const Tensor &to = before[0].toTensor(), &from = before[1].toTensor();
        if (to.is_cpu() && from.is_cuda() && from.numel() > 0) {
          placeholder_read("copy to the CPU", true);
          // Not what the host's memory held before. A mask selects all, as one on the card does; of a checkpoint's weights nobody asks.
          if (to.nbytes() > kMostCopied || to.is_quantized()) break;
          if (to.scalar_type() == at::kBool) {
            to.fill_((to.numel() > 1) != made_up_truth());
          } else if (is_whole(to.scalar_type())) {
            to.fill_(made_up_count());
          } else if (to.itemsize() > 1) {
            to.fill_(next_loss());
          }
        }
        lose(to);
        if (to.is_cuda() && from.is_cuda() && to.numel() == from.numel() && is_unknown_mask(from)) set_shadow(to, {{}, kReal, false, true});
        return;
      }
      default: break;
    }
    for (const auto* tensors : {&results, &written}) {
      for (const Tensor& tensor : tensors->list) lose(tensor);
    }
  }

  void answer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const OnCpu& cpu, Stack& arguments, const Stack& before) {
    if (cpu.is_known && run_on_cpu(op, &arguments)) {
      if (cpu.source != kReal) placeholder_read(name_of_operator.c_str(), cpu.source == kMadeUp);
      kernel.callBoxed(op, keys, stack);
      stack->back() = arguments.back();
      return;
    }
    kernel.callBoxed(op, keys, stack);
    placeholder_read(name_of_operator.c_str(), true);
    if (special == Special::kEqual) {
      stack->back() = !made_up_truth();
      return;
    }
    const auto type = before[0].toTensor().scalar_type();
    if (type == at::kBool) {
      stack->back() = at::Scalar(made_up_truth());
    } else if (is_whole(type)) {
      stack->back() = at::Scalar(made_up_count());
    } else {
      stack->back() = at::isComplexType(type) ? at::Scalar(c10::complex<double>(0)) : at::Scalar(next_loss());
    }
  }

  void shape(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const OnCpu& cpu, Stack& arguments, const Stack& before) {
    {
      // For what it takes while it runs; the card holds no values, so its results say nothing.
      Stack inner(before);
      try {
        kernel.callBoxed(op, keys, &inner);
      } catch (const c10::OutOfMemoryError&) {
        throw;
      } catch (const std::exception&) {
      }
    }
    torch::jit::drop(*stack, op.schema().arguments().size());
    std::vector<Tensor> results;
    if (cpu.is_known && run_on_cpu(op, &arguments)) {
      for (const IValue& value : arguments) {
        const Tensor& values = value.toTensor();
        results.push_back(at::empty_strided(values.sizes(), values.strides(), values.options().device(before[0].toTensor().device())));
        learn(results.back(), values, cpu.source);
      }
      if (cpu.source == kMadeUp) tell_size(results[0], before);
    } else {
      const std::optional<int64_t> selected = selected_by_mask(before);
      results = selected ? std::vector<Tensor>{at::empty({*selected}, before[0].toTensor().options())} : largest(name, before);
      if (!selected) tell_size(results[0], before);
      for (const Tensor& result : results) lose(result);
      // As a mask that nobody knows selects all, all are of the first kind.
      const size_t counts = name == "aten::bincount" ? 0 : 2;
      if (counts < results.size() && results[counts].scalar_type() == at::kLong && results[counts].numel() > 0) {
        const Tensor values = at::zeros(results[counts].sizes(), at::TensorOptions(at::kLong));
        values.data_ptr<int64_t>()[0] = selectable(before);
        learn(results[counts], values, kMadeUp);
      }
    }
    for (const Tensor& result : results) stack->push_back(result);
  }

  // How many values are counted.
  int64_t selectable(const Stack& arguments) const {
    const Tensor& self = arguments[0].toTensor();
    return name == "aten::unique_dim" || name == "aten::unique_dim_consecutive" ? self.size(arguments[1].toInt()) : self.numel();
  }

  // What was taken of values that nobody knows, and the most that it could be: how many elements a result has, or how many are of the most
  // frequent kind. Where there is no such bound, as for repetitions, none.
  void tell_size(const Tensor& result, const Stack& before) const {
    const Tensor& self = before[0].toTensor();
    if (name == "aten::repeat_interleave.Tensor") return placeholder_read(name_of_operator.c_str(), true);
    if (name == "aten::unique_dim" || name == "aten::unique_dim_consecutive") {
      return placeholder_read(name_of_operator.c_str(), true, result.size(before[1].toInt()), selectable(before));
    }
    if (special == Special::kCounts || name == "aten::bincount") {
      const c10::InferenceMode normal(false);
      const at::NoGradGuard no_grad;
      const Tensor counts = known(result, nullptr);
      return counts.defined() && counts.numel() ? placeholder_read(name_of_operator.c_str(), true, counts.max().to(at::kLong).item<int64_t>(), self.numel())
                                                : placeholder_read(name_of_operator.c_str(), true);
    }
    const int64_t most = name == "aten::masked_select" ? c10::multiply_integers(at::infer_size(self.sizes(), before[1].toTensor().sizes())) : self.numel();
    placeholder_read(name_of_operator.c_str(), true, result.size(0), std::max<int64_t>(1, most));
  }

  // Of numbers that nobody knows, how many a mask selects whose values are known: gradients of masked_scatter.
  std::optional<int64_t> selected_by_mask(const Stack& arguments) const {
    if (name != "aten::masked_select") return std::nullopt;
    Source source = kReal;
    const Tensor mask = known(arguments[1].toTensor(), &source);
    if (!mask.defined() || source != kReal) return std::nullopt;
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    return mask.expand(at::infer_size(arguments[0].toTensor().sizes(), mask.sizes())).sum().item<int64_t>();
  }

  // Only what runs is named in the trace.
  uint32_t number() {
    uint32_t found = number_.load(std::memory_order_relaxed);
    if (!found) {
      const char* library = vramlab::dry::uncounted(name);
      const bool is_convolution = name.find("cudnn_convolution") != std::string::npos || name == "aten::convolution_backward";
      // A GPU times each, with its workspace: on an H200 that doubled the peak of a ResNet-18.
      if (is_convolution && at::globalContext().benchmarkCuDNN()) library = "cuDNN, which tries several algorithms: cudnn.benchmark";
      number_ = found = operator_number(name.c_str(), library);
    }
    return found;
  }

  c10::KernelFunction kernel;
  std::string name, name_of_operator;
  Special special = Special::kNone;
  bool runs_on_cpu = false, overwrites = false;
  // In place, or into an argument: by their places.
  std::vector<size_t> written_arguments;
  const Choosing* choosing = nullptr;
  std::optional<WorkOf> work;
  std::atomic<uint32_t> number_{0};
};

// The kernel that an operator has for a key is nobody's but the dispatcher's: an explicit instantiation may name what is private.
template <auto Member>
struct Inside {
  friend const c10::KernelFunction& kernel_inside(const c10::OperatorHandle& op, DispatchKey key) {
    return (op.*Member)->op.kernelForDispatchKey(key);
  }
};
const c10::KernelFunction& kernel_inside(const c10::OperatorHandle& op, DispatchKey key);
template struct Inside<&c10::OperatorHandle::operatorDef_>;

// As long as the process lives.
template <typename Kernel>
void put_around(const c10::OperatorHandle& op, DispatchKey key, std::unique_ptr<Kernel> kernel) {
  static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
  auto function = c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel));
  const auto& name = op.operator_name();
  kept->push_back(c10::Dispatcher::singleton().registerImpl(name, key, std::move(function), std::nullopt, nullptr, "vramlab rehearse"));
}

// ---- large parameters on the host: memory that nobody writes to takes none ------------------------------------------------------------------

void call_if_small(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kLarge = 1 << 20;
  const size_t count = op.schema().arguments().size();
  const IValue first = (*stack)[stack->size() - count];
  const auto is_ours = [](const IValue& value) { return !value.isTensor() || (value.toTensor().is_cpu() && value.toTensor().is_floating_point()); };
  if (is_ours(first) && is_ours((*stack)[stack->size() - count + (count > 1)]) && first.toTensor().nbytes() >= kLarge) {
    torch::jit::drop(*stack, count);
    stack->push_back(first);
    return;
  }
  kernel.callBoxed(op, keys, stack);
}

// A kernel that is called by `Call`.
template <auto Call>
struct CalledBy final : c10::OperatorKernel {
  explicit CalledBy(c10::KernelFunction kernel) : kernel(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) { Call(kernel, op, keys, stack); }
  c10::KernelFunction kernel;
};

}  // namespace

void leave_untouched() {
  for (const auto& [name, overload] : {std::pair("copy_", ""), {"fill_", "Scalar"}, {"zero_", ""}, {"normal_", ""}, {"uniform_", ""}}) {
    const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
    if (!op) continue;
    const auto key = op->hasKernelForDispatchKey(DispatchKey::CPU) ? DispatchKey::CPU : DispatchKey::CompositeExplicitAutograd;
    put_around(*op, DispatchKey::CPU, std::make_unique<CalledBy<&call_if_small>>(kernel_inside(*op, key)));
  }
}

void follow_values() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const std::set<std::string> composite = {"aten::copy_", "aten::allclose", "aten::isfinite", "aten::isinf", "aten::isclose", "aten::_is_all_true"};
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!op || kWithoutValues.count(full)) continue;
    // Of sparse tensors they are PyTorch's own.
    for (const DispatchKey sparse : {DispatchKey::SparseCUDA, DispatchKey::SparseCsrCUDA}) {
      if (!op->hasKernelForDispatchKey(sparse)) continue;
      put_around(*op, sparse, std::make_unique<CalledBy<&call>>(kernel_inside(*op, sparse)));
    }
    DispatchKey key = DispatchKey::CUDA;
    if (!op->hasKernelForDispatchKey(key)) {
      if (!composite.count(full)) continue;
      key = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ? DispatchKey::CompositeExplicitAutograd
                                                                               : DispatchKey::CompositeImplicitAutograd;
      if (!op->hasKernelForDispatchKey(key)) continue;
    }
    put_around(*op, DispatchKey::CUDA, std::make_unique<Around>(*op, kernel_inside(*op, key)));
  }
}

void forget_values(uint64_t address) {
  Shadow gone;
  const std::lock_guard<std::mutex> lock(shadows_mutex);
  if (shadows.empty() || !shadows.count(address)) return;
  gone = replace_shadow(address, {});
  shadows.erase(address);
}

void vl_lose(const uint64_t* addresses, size_t count) {
  std::vector<Shadow> gone;
  const std::lock_guard<std::mutex> lock(shadows_mutex);
  for (auto& [begin, shadow] : shadows) {
    if (!shadow.bytes.defined()) continue;
    const uint64_t end = begin + shadow.bytes.nbytes();
    for (size_t i = 0; i < count; i++) {
      if (addresses[i] < begin || addresses[i] >= end) continue;
      gone.push_back(replace_shadow(begin, {}));
      break;
    }
  }
  // Of blocks that nobody had written to.
  for (size_t i = 0; i < count; i++)
    if (addresses[i]) shadows.try_emplace(addresses[i]);
}

// Copies what a block of so many bytes holds; 0 where it is not known, or hangs on numbers that nobody computed.
EXPORTED int vl_values(uint64_t address, void* into, size_t bytes) {
  const std::lock_guard<std::mutex> lock(shadows_mutex);
  const auto found = shadows.find(address);
  if (found == shadows.end() || !found->second.bytes.defined() || found->second.source != kReal || found->second.bytes.nbytes() != bytes) return 0;
  std::memcpy(into, found->second.bytes.const_data_ptr(), bytes);
  return 1;
}

}  // namespace vramlab::rehearsal
