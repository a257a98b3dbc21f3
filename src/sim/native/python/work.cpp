#include "work.h"
#include "recorder.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vramlab::rehearsal {
namespace {

using at::Tensor;
using c10::IValue;

// A steady state is there by the fourth step. records/times/steps.py has many models' steps in one process.
uint32_t last_step = 3;

std::mutex work_mutex;
TraceFile work_file;
std::vector<Work> waiting;
// What each CUDA graph has captured, under the mutex; and the one that captures, or 0.
std::unordered_map<uint64_t, std::vector<Work>> graphs;
std::atomic<uint64_t> capturing{0};
// What the next record is to say of the forward pass that begins with it.
std::atomic<uint8_t> begins{0};

thread_local uint64_t own = 0, written_launches = 0, library_records = 0, last_waits = 0;
thread_local uint64_t last_processor = 0, last_own = 0;

// What the script's clocks still have to count, and whether they are followed.
std::atomic<bool> is_clocked{false};
std::vector<Work> untold;

// Records that were written, and those that clocks were told.
std::atomic<uint32_t> written_records{0}, told_records{0};
// What this thread launches stands for another record, which is written after it.
thread_local bool is_hidden = false;
thread_local uint64_t hidden_launches = 0, hidden_since = 0;

// Of this thread, by the simulated runtime.
uint64_t launches() {
  static auto* const count = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "vramlab_dry_launches"));
  return count ? count() : 0;
}
uint64_t waits() {
  static auto* const count = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "vramlab_dry_waits"));
  return count ? count() : 0;
}

bool is_written() {
  if (!work_file.is_open() || current_step() > last_step) return false;
  return phase() != Phase::kLoad || capturing.load(std::memory_order_relaxed) != 0;
}

bool is_recorded() { return !is_hidden && (is_clocked || is_written()); }

uint64_t host_time() {
  const uint64_t passed = host_time_passed();
  last_processor = clock_of(CLOCK_THREAD_CPUTIME_ID);
  last_own = own;
  return passed;
}

// Under the mutex.
void push(Work work, bool written) {
  if (is_clocked) untold.push_back(work), told_records++;
  if (!written) return;
  work.direction |= begins.exchange(0);
  waiting.push_back(work);
  written_records++;
}

// Of the simulated runtime: a position has the records that clocks were told above those that were written.
uint64_t position() { return static_cast<uint64_t>(told_records) << 32 | written_records; }

void order(uint64_t stream, int device, uint64_t source, int source_device, uint64_t at) {
  if (capturing || !is_recorded()) return;
  Work work{};
  work.kind = WorkKind::kOrder;
  work.phase = phase();
  work.step = current_step();
  work.stream = stream;
  work.device = static_cast<uint16_t>(device);
  work.groups = static_cast<uint32_t>(source_device);
  work.m = static_cast<uint32_t>(source);
  work.n = static_cast<uint32_t>(source >> 32);
  const bool written = is_written();
  const std::lock_guard<std::mutex> lock(work_mutex);
  if (is_clocked) work.k = static_cast<uint32_t>(at >> 32), untold.push_back(work), told_records++;
  if (written) work.k = static_cast<uint32_t>(at), waiting.push_back(work), written_records++;
}

void keep(Work& work, uint32_t number) {
  const bool written = is_written();
  const Place place = written ? look_for_place() : Place{phase(), current_step(), 0, 0, 0};
  work.phase = place.phase;
  work.step = place.step;
  work.stack = place.stack;
  work.origin = place.origin;
  work.module = place.module;
  work.operator_ = number;
  bool is_much = false;
  {
    const std::lock_guard<std::mutex> lock(work_mutex);
    if (const uint64_t graph = capturing) return graphs[graph].push_back(work);
    push(work, written);
    is_much = untold.size() >= 1 << 14;
  }
  if (is_much) read_clock(nullptr, 0);
}

// What an operator's kernels are, by its exact name without namespace and overload; in-place operators have a name of their own. What is not
// here is pointwise.
struct Class {
  WorkKind kind;
  uint8_t direction = kForward;
};

const std::unordered_map<std::string, Class>& classes() {
  static const auto* const kClasses = [] {
    auto* all = new std::unordered_map<std::string, Class>;
    const auto add = [&](WorkKind kind, uint8_t direction, std::initializer_list<const char*> names) {
      for (const char* name : names) all->emplace(name, Class{kind, direction});
    };
    add(WorkKind::kMatmul, kForward,
        {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_", "_addmm_activation", "_scaled_mm", "_scaled_mm_v2",
         "_int_mm", "_grouped_mm", "_scaled_grouped_mm"});
    add(WorkKind::kAttention, kForward,
        {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_attention_math", "_flash_attention_forward", "_efficient_attention_forward", "_cudnn_attention_forward",
         "_flash_attn_forward", "_flash_attn_varlen_forward"});
    add(WorkKind::kAttentionBackward, kBackward,
        {"_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
         "_scaled_dot_product_cudnn_attention_backward", "_flash_attention_backward", "_efficient_attention_backward",
         "_cudnn_attention_backward", "_flash_attn_backward", "_flash_attn_varlen_backward"});
    add(WorkKind::kConvolution, kForward,
        {"convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "cudnn_convolution_relu",
         "cudnn_convolution_add_relu", "cudnn_convolution_transpose", "_conv_depthwise2d", "conv_depthwise3d", "_slow_conv2d_forward",
         "slow_conv3d_forward", "slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d", "slow_conv_dilated3d"});
    add(WorkKind::kConvolution, kBackward, {"convolution_backward", "convolution_backward_overrideable", "_slow_conv2d_backward"});
    add(WorkKind::kRecurrent, kForward, {"_cudnn_rnn"});
    add(WorkKind::kRecurrent, kBackward, {"_cudnn_rnn_backward"});
    add(WorkKind::kReduction, kForward,
        {"native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit",
         "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
         "_batch_norm_with_update_functional", "_batch_norm_no_update", "batch_norm_stats", "batch_norm_update_stats", "_fused_rms_norm",
         "_softmax", "_log_softmax", "_safe_softmax", "_masked_softmax", "_sparse_softmax", "logsumexp", "_logcumsumexp", "logcumsumexp",
         "_weight_norm_interface", "renorm", "renorm_", "embedding_renorm_", "norm", "linalg_vector_norm", "_foreach_norm", "dist", "sum",
         "nansum", "mean", "prod", "var", "std", "var_mean", "std_mean", "amax", "amin", "aminmax", "_aminmax", "max", "min", "argmax",
         "argmin", "any", "all", "count_nonzero", "dot", "vdot", "median", "nanmedian", "mode", "kthvalue", "sort", "argsort", "topk", "cumsum",
         "cumsum_", "cumprod", "cumprod_", "_cummax_helper", "_cummin_helper", "nll_loss_forward", "nll_loss2d_forward", "_ctc_loss",
         "multi_margin_loss", "multilabel_margin_loss_forward", "bincount", "histc", "_unique2", "unique_dim", "unique_consecutive",
         "trace", "equal", "searchsorted", "_cdist_forward"});
    add(WorkKind::kReduction, kBackward,
        {"native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward", "cudnn_batch_norm_backward",
         "batch_norm_backward", "batch_norm_backward_reduce", "_fused_rms_norm_backward", "_softmax_backward_data",
         "_log_softmax_backward_data", "_masked_softmax_backward", "_weight_norm_interface_backward", "nll_loss_backward",
         "nll_loss2d_backward", "_ctc_loss_backward", "_cdist_backward"});
    add(WorkKind::kIndex, kForward,
        {"embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_",
         "_unsafe_index_put", "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
         "index_reduce", "index_reduce_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
         "scatter_reduce_", "masked_select", "masked_scatter", "masked_scatter_", "nonzero", "nonzero_static", "take", "put", "put_",
         "repeat_interleave"});
    add(WorkKind::kIndex, kBackward,
        {"embedding_dense_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward",
         "masked_scatter_backward", "gather_backward", "index_select_backward", "value_selecting_reduction_backward"});
    add(WorkKind::kOptimizer, kForward,
        {"_fused_adam", "_fused_adam_", "_fused_adamw", "_fused_adamw_", "_fused_sgd", "_fused_sgd_", "_fused_adagrad", "_fused_adagrad_",
         "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"});
    return all;
  }();
  return *kClasses;
}

bool begins_with(const std::string& name, const char* beginning) { return name.rfind(beginning, 0) == 0; }

Class class_of(const std::string& name) {
  if (const auto found = classes().find(name); found != classes().end()) return found->second;
  // A family with a name for each function: of lists of tensors.
  return {begins_with(name, "_foreach_") ? WorkKind::kOptimizer : WorkKind::kPointwise};
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  for (const char* one : names)
    if (name == one) return true;
  return false;
}

bool is_batch_norm(const std::string& name) {
  return is_one_of(name, {"native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
                          "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional",
                          "_batch_norm_no_update", "native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"});
}

// Bytes of the elements that are there: those of an expanded dimension are one.
double bytes_of(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided) return 0;
  double elements = 1;
  for (int64_t i = 0; i < tensor.dim(); i++)
    if (tensor.stride(i) != 0) elements *= static_cast<double>(tensor.size(i));
  return elements * static_cast<double>(tensor.itemsize());
}

double bytes_of(const IValue& value) {
  double bytes = 0;
  each_tensor(value, [&](const Tensor& tensor) { bytes += bytes_of(tensor); });
  return bytes;
}

bool allows_tf32(bool convolution) {
  // It raises where a script mixes the old settings and the new ones.
  try {
    return convolution ? at::globalContext().allowTF32CuDNN() : at::globalContext().allowTF32CuBLAS();
  } catch (const std::exception&) {
    return false;
  }
}

Precision precision_of(const Tensor& tensor, WorkKind kind) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16: return Precision::kHalf;
    case at::kDouble: return Precision::kDouble;
    default:
      if (kind == WorkKind::kConvolution || kind == WorkKind::kRecurrent) return allows_tf32(true) ? Precision::kTf32 : Precision::kSingle;
      return kind == WorkKind::kMatmul && allows_tf32(false) ? Precision::kTf32 : Precision::kSingle;
  }
}

uint16_t aligned(int64_t leading) { return static_cast<uint16_t>(std::gcd<int64_t, int64_t>(leading, 8)); }

// Of a matrix as cuBLAS gets it: what is not laid out by rows or columns is copied before.
uint16_t alignment_of(const Tensor& matrix) {
  const int64_t rows = matrix.size(-2), columns = matrix.size(-1);
  if (rows <= 1 || columns <= 1) return 8;
  if (matrix.stride(-1) == 1) return aligned(matrix.stride(-2));
  return aligned(matrix.stride(-2) == 1 ? matrix.stride(-1) : columns);
}

uint32_t small(int64_t size) { return static_cast<uint32_t>(std::min<int64_t>(size, UINT32_MAX)); }

void count_product(Work& work, const Tensor& a, const Tensor& b) {
  if (a.dim() < 2 || b.dim() < 1) return;
  const int64_t m = a.size(-2), k = a.size(-1), n = b.dim() > 1 ? b.size(-1) : 1, batch = a.dim() > 2 ? a.size(0) : 1;
  work.flops = 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  work.m = small(m), work.n = small(n), work.k = small(k), work.batch = small(batch);
  if (b.dim() > 1) work.alignment = std::min({alignment_of(a), alignment_of(b), n > 1 ? aligned(n) : uint16_t{8}});
}

// As a product: each position of the smaller side with a filter.
void count_convolution(Work& work, const Tensor& positions, const Tensor& weight, int times) {
  if (weight.dim() < 3 || positions.dim() < 3) return;
  const double filter = static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
  work.flops = times * 2.0 * static_cast<double>(positions.numel()) * filter;
  work.m = small(positions.numel() / std::max<int64_t>(1, positions.size(1)));
  work.n = small(positions.size(1)), work.k = small(static_cast<int64_t>(filter)), work.batch = 1;
  work.taps = static_cast<uint16_t>(std::min<int64_t>(weight[0][0].numel(), UINT16_MAX));
  if (weight.dim() == 5) work.flags |= kIsVolume;
}

bool is_channels_last(const Tensor& one) {
  if (!one.defined()) return false;
  const auto format = one.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

// cuDNN's recurrent layers: of each step and layer a product with the hidden state, and one product of all steps with the input.
void count_recurrent(Work& work, const Tensor& input, const std::function<int64_t(const char*)>& number, int64_t packed_steps) {
  const int64_t gates = number("mode") == 2 ? 4 : number("mode") == 3 ? 3 : 1, hidden = number("hidden_size");
  const int64_t layers = number("num_layers"), directions = number("bidirectional") ? 2 : 1;
  if (input.dim() < 2 || hidden <= 0) return;
  const int64_t features = input.size(-1), rows = features > 0 ? input.numel() / features : 0;
  const int64_t steps = packed_steps > 0 ? packed_steps : input.size(number("batch_first") ? 1 : 0);
  double flops = 0;
  for (int64_t layer = 0; layer < layers; layer++)
    flops += 2.0 * static_cast<double>(directions * gates * rows * ((layer ? hidden * directions : features) + hidden) * hidden);
  work.flops = work.direction == kForward ? flops : 2 * flops;
  work.m = small(steps > 0 ? rows / steps : rows), work.n = small(gates * hidden), work.k = small(hidden), work.batch = small(steps);
  work.groups = small(layers * directions);
}

// cuDNN's kernels for tensor cores are for channels last (nchwToNhwcKernel and nhwcToNchwKernel stand around them in traces); filters of one
// position are products in either layout. What it does with groups, no trace that is known shows.
bool changes_layout(const Tensor& input, const Tensor& weight, int64_t groups) {
  if (!input.defined() || !weight.defined() || weight.dim() < 4 || groups != 1) return false;
  if (input.scalar_type() != at::kHalf && input.scalar_type() != at::kBFloat16) return false;
  return weight[0][0].numel() > 1 && !is_channels_last(input) && !is_channels_last(weight);
}

}  // namespace

uint64_t clock_of(clockid_t which) {
  timespec now{};
  clock_gettime(which, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

// ---- the file ------------------------------------------------------------------------------------------------------------------------------

void open_work(const std::string& folder) {
  // For benches/rehearse.rs, which measures what the time of a step costs.
  if (std::getenv("VRAMLAB_REHEARSAL_WITHOUT_TIME")) return;
  if (const char* steps = std::getenv("VRAMLAB_REHEARSAL_TIMED_STEPS")) last_step = static_cast<uint32_t>(std::strtoul(steps, nullptr, 10));
  TraceFile file;
  TORCH_CHECK(file.open(folder + "/work", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND), "writing ", folder, "/work: ", std::strerror(errno));
  char header[64] = {};
  std::memcpy(header, kWorkMagic, sizeof kWorkMagic);
  const uint32_t record = sizeof(Work);
  std::memcpy(header + sizeof kWorkMagic, &record, sizeof record);
  TORCH_CHECK(::write(file.get(), header, sizeof header) == sizeof header, "writing ", folder, "/work: ", std::strerror(errno));
  work_file = file;
  auto* const asked = static_cast<uint64_t (**)()>(dlsym(RTLD_DEFAULT, "vramlab_dry_position"));
  auto* const ordered = static_cast<void (**)(uint64_t, int, uint64_t, int, uint64_t)>(dlsym(RTLD_DEFAULT, "vramlab_dry_order"));
  if (asked && ordered) *asked = position, *ordered = order;
}

void flush_work() {
  const std::lock_guard<std::mutex> lock(work_mutex);
  const auto* bytes = reinterpret_cast<const char*>(waiting.data());
  size_t left = waiting.size() * sizeof(Work);
  while (left > 0 && work_file.is_open()) {
    const ssize_t done = ::write(work_file.get(), bytes, left);
    if (done < 0 && errno == EINTR) continue;
    // A full disk.
    if (done <= 0) {
      work_file.leave();
      cut_trace(done < 0 ? errno : ENOSPC);
      break;
    }
    bytes += done;
    left -= static_cast<size_t>(done);
  }
  waiting.clear();
}

void leave_work() {
  work_file.leave();
  is_clocked = false;
  leave_clock();
}

void begin_pass_of_work(bool generation) {
  // A script that makes no steps may be ended before its end.
  flush_work();
  begins = kBeginsPass | (generation ? kBeginsGeneration : 0);
}

void follow_clock() { is_clocked = true; }

std::vector<Work> take_untold() {
  const std::lock_guard<std::mutex> lock(work_mutex);
  return std::exchange(untold, {});
}

uint64_t host_time_passed() {
  const uint64_t passed = last_processor ? clock_of(CLOCK_THREAD_CPUTIME_ID) - last_processor : 0, ours = own - last_own;
  return passed > ours ? passed - ours : 0;
}

bool has_waited() { return waits() != last_waits; }

void own_time(uint64_t nanoseconds) { own += nanoseconds; }

OwnTime::OwnTime() : since(clock_of(CLOCK_MONOTONIC)) {}
OwnTime::~OwnTime() { pause(); }
void OwnTime::pause() {
  if (since) own += clock_of(CLOCK_MONOTONIC) - since;
  since = 0;
}
void OwnTime::go_on() { since = clock_of(CLOCK_MONOTONIC); }

// For kernels that no operator launches: compiled ones. `bytes` is what their arguments have, and what they write.
EXPORTED void vl_work(const char* name, int kind, int precision, double flops, double bytes, uint32_t count, uint64_t stream) {
  if (!is_recorded()) return;
  Work work{};
  work.kind = static_cast<WorkKind>(kind);
  work.precision = static_cast<Precision>(precision);
  work.flops = flops;
  work.bytes = bytes;
  work.launches = count;
  work.stream = stream;
  work.host_nanoseconds = host_time();
  const OwnTime time;
  keep(work, operator_number(name));
}

// What follows on this thread stands for what ranks move, until vl_end_wire.
EXPORTED void vl_begin_wire() {
  is_hidden = true;
  hidden_launches = launches();
  hidden_since = clock_of(CLOCK_MONOTONIC);
}

EXPORTED void vl_end_wire() {
  is_hidden = false;
  written_launches += launches() - hidden_launches;
  own += clock_of(CLOCK_MONOTONIC) - hidden_since;
}

// What a rank moves: `what` by its number in src/rehearse/src/capture/work.rs; of a send or a receive with whom, by ranks of the group, and which it is of those
// that go together.
EXPORTED void vl_wire(const char* name, int what, double bytes, int ranks, int nodes, uint32_t group, int own_rank, int peer, int together,
                      int device, uint64_t stream) {
  if (!is_recorded()) return;
  Work work{};
  work.kind = WorkKind::kCollective;
  work.bytes = bytes;
  work.m = static_cast<uint32_t>(what);
  work.n = static_cast<uint32_t>(ranks);
  work.k = static_cast<uint32_t>(nodes);
  work.batch = group;
  work.alignment = static_cast<uint16_t>(own_rank);
  work.groups = static_cast<uint32_t>(peer);
  work.taps = static_cast<uint16_t>(together);
  work.launches = 1;
  work.device = static_cast<uint16_t>(device);
  work.stream = stream;
  work.host_nanoseconds = host_time();
  const OwnTime time;
  keep(work, operator_number(name));
}

// Until its end what is recorded belongs to the CUDA graph, and to each of its replays.
EXPORTED void vl_begin_graph(uint64_t graph) {
  const std::lock_guard<std::mutex> lock(work_mutex);
  graphs[graph].clear();
  capturing = graph;
}

EXPORTED void vl_end_graph() { capturing = 0; }

EXPORTED void vl_replay_graph(uint64_t graph) {
  if (!is_recorded()) return;
  const bool written = is_written();
  uint64_t host = host_time();
  const OwnTime time;
  const std::lock_guard<std::mutex> lock(work_mutex);
  uint8_t flags = 0;
  for (Work work : graphs[graph]) {
    work.step = current_step();
    if (work.phase == Phase::kLoad) work.phase = phase();
    work.flags = static_cast<uint8_t>((work.flags & kOfShape) | flags);
    work.host_nanoseconds = std::exchange(host, 0);
    flags = kOfGraph;
    push(work, written);
  }
}

// ---- operators -----------------------------------------------------------------------------------------------------------------------------

WorkOf::WorkOf(const c10::FunctionSchema& schema, bool overwrites)
    : overwrites(overwrites), is_custom(!begins_with(schema.name(), "aten::")), name(schema.name().substr(schema.name().find("::") + 2)) {
  const Class is = class_of(name);
  kind = is.kind;
  direction = is.direction;
  is_library = kind == WorkKind::kMatmul || kind == WorkKind::kAttention || kind == WorkKind::kAttentionBackward ||
               kind == WorkKind::kConvolution || kind == WorkKind::kRecurrent || is_batch_norm(name) || begins_with(name, "_thnn_fused_");
}

// What an operator is given, by place and by name.
struct Given {
  const std::vector<c10::Argument>& formals;
  torch::jit::Stack::const_iterator begin;

  Given(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : formals(op.schema().arguments()), begin(stack.end() - static_cast<std::ptrdiff_t>(formals.size())) {}

  const IValue& argument(size_t i) const { return *(begin + static_cast<std::ptrdiff_t>(i)); }
  Tensor tensor(size_t i) const { return i < formals.size() && argument(i).isTensor() ? argument(i).toTensor() : Tensor(); }
  const IValue* named(const char* name) const {
    for (size_t i = 0; i < formals.size(); i++)
      if (formals[i].name() == name) return &argument(i);
    return nullptr;
  }
  int64_t number(const char* name) const {
    const IValue* value = named(name);
    return value && value->isInt() ? value->toInt() : value && value->isBool() ? value->toBool() : 0;
  }
};

WorkScope::WorkScope(const WorkOf& of, const c10::OperatorHandle& op, const torch::jit::Stack& stack) : of(of), op(op), is_on(is_recorded()) {
  if (!is_on) return;
  if (has_waited()) work.flags = kWaitedBefore;
  last_waits = waits();
  launches_before = launches();
  written_before = written_launches;
  library_records_before = library_records;
  const Given given(op, stack);
  count_bytes(given);
  work.kind = of.kind;
  work.direction = of.direction;
  switch (of.kind) {
    case WorkKind::kMatmul: see_matmul(given); break;
    case WorkKind::kConvolution: see_convolution(given); break;
    case WorkKind::kRecurrent: see_recurrent(given); break;
    case WorkKind::kAttention:
    case WorkKind::kAttentionBackward: see_attention(given); break;
    case WorkKind::kReduction: see_reduction(given); break;
    default: break;
  }
  // The host waits for how many there are.
  if (is_one_of(of.name, {"nonzero", "_unique2", "unique_dim", "unique_consecutive", "bincount"})) work.flags |= kWaitsAfter;
  see_copy(given);
}

void WorkScope::count_bytes(const Given& given) {
  bool is_typed = false;
  // Of paged keys and values, which are blocks by heads, an operator of a library's own reads or writes those of its tokens alone.
  constexpr double kPaged = 64;
  double plain = 0;
  const auto may_be_paged = [&](size_t i) { return of.is_custom && given.tensor(i).defined() && given.tensor(i).dim() >= 4; };
  for (size_t i = 0; i < given.formals.size(); i++)
    if (!may_be_paged(i)) plain += bytes_of(given.argument(i));
  for (size_t i = 0; i < given.formals.size(); i++) {
    const auto* alias = given.formals[i].alias_info();
    const bool is_written = alias && alias->isWrite();
    const double whole = bytes_of(given.argument(i));
    const double bytes = may_be_paged(i) && whole > kPaged * plain ? plain : whole;
    if (!is_written || !of.overwrites) read += bytes;
    if (is_written) written += bytes;
    each_tensor(given.argument(i), [&](const Tensor& one) {
      if (card < 0 && one.defined() && one.is_cuda()) card = one.device().index();
      if (!is_typed && one.defined() && one.is_cuda() && at::isFloatingType(one.scalar_type())) {
        work.precision = precision_of(one, of.kind);
        is_typed = true;
      }
    });
  }
}

void WorkScope::see_matmul(const Given& given) {
  // After the tensor that is added to.
  const bool adds = is_one_of(of.name, {"addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_", "_addmm_activation"});
  const Tensor a = given.tensor(adds), b = given.tensor(adds + 1);
  if (a.defined() && b.defined()) count_product(work, a, b);
  // What it is added to can be of another type: factors in bfloat16 with a sum in fp32 run on tensor cores.
  if (a.defined() && at::isFloatingType(a.scalar_type())) work.precision = precision_of(a, of.kind);
}

void WorkScope::see_convolution(const Given& given) {
  const bool backward = of.direction != kForward;
  work.groups = small(std::max<int64_t>(1, given.number("groups")));
  if (is_one_of(of.name, {"_conv_depthwise2d", "conv_depthwise3d"}) && given.tensor(1).defined()) work.groups = small(given.tensor(1).size(0));
  // A backward pass takes the gradient first.
  if (given.named("groups") && changes_layout(given.tensor(backward), given.tensor(backward + 1), given.number("groups")))
    work.flags |= kChangesLayout;
  if (is_channels_last(given.tensor(backward))) work.flags |= kIsChannelsLast;
  const bool is_transposed = given.number("transposed") || of.name == "cudnn_convolution_transpose";
  if (is_transposed) work.flags |= kIsTransposed;
  if (const IValue* stride = given.named("stride"); stride && stride->isIntList() && stride->toIntList().size() > 0)
    work.stride = static_cast<uint8_t>(std::min<int64_t>(stride->toIntList().get(0), 255));
  if (backward) {
    const IValue* mask = given.named("output_mask");
    const auto wanted = mask && mask->isBoolList() ? mask->toBoolList() : c10::List<bool>({true, true});
    const bool of_input = wanted[0], of_weights = wanted.size() > 1 && wanted[1];
    work.direction = static_cast<uint8_t>((of_input ? kBackwardOfInput : 0) | (of_weights ? kBackwardOfWeights : 0));
    // Each side reads the gradient, which is counted once, and one of input and weight.
    if (of_input && of_weights) read += bytes_of(given.tensor(0));
    if (const Tensor filter = given.tensor(2); filter.defined())
      count_convolution(work, is_transposed ? given.tensor(1) : given.tensor(0), filter, of_input + of_weights);
  } else {
    // The result says how many positions there are.
    input = given.tensor(0);
    weight = given.tensor(1);
  }
}

void WorkScope::see_recurrent(const Given& given) {
  const IValue* sizes = given.named("batch_sizes");
  const int64_t packed = sizes && sizes->isIntList() ? static_cast<int64_t>(sizes->toIntList().size()) : 0;
  count_recurrent(work, given.tensor(0), [&](const char* name) { return given.number(name); }, packed);
}

void WorkScope::see_attention(const Given& given) {
  const size_t first = of.kind == WorkKind::kAttentionBackward;
  const Tensor query = given.tensor(first), key = given.tensor(first + 1);
  if (!query.defined() || !key.defined() || query.dim() < 3) return;
  // By position and head where a library takes them so, else by head and position.
  const bool by_head = begins_with(of.name, "_scaled_dot_product_") || begins_with(of.name, "_cudnn_attention_");
  const IValue* longest = given.named("max_k");
  double keys = query.dim() == 4 ? static_cast<double>(key.size(by_head ? 2 : 1)) : 0;
  if (query.dim() == 3) keys = longest && longest->isInt() ? static_cast<double>(longest->toInt()) : static_cast<double>(key.size(0));
  const bool half = given.number("is_causal") != 0 || given.number("custom_mask_type") != 0;
  const int64_t width = std::max<int64_t>(1, query.size(-1)), heads = query.size(query.dim() - 2);
  const int64_t many = query.numel() / width;
  work.k = small(width), work.n = small(static_cast<int64_t>(keys));
  if (query.dim() == 4) work.m = small(query.size(by_head ? 2 : 1));
  if (query.dim() == 3) work.m = work.n;
  work.batch = small(work.m ? many / work.m : heads);
  // Two products forward; five of the same size backward.
  work.flops = (first ? 10.0 : 4.0) * static_cast<double>(query.numel()) * keys * (half ? 0.5 : 1.0);
}

void WorkScope::see_reduction(const Given& given) {
  // With the statistics that it was given a batch norm only scales, and its gradient is that of a scale.
  const bool of_batch = is_batch_norm(of.name), of_groups = is_one_of(of.name, {"native_group_norm", "native_group_norm_backward"});
  const IValue* trains = nullptr;
  for (const char* name : {"training", "train", "update"})
    if (!trains) trains = given.named(name);
  const bool has_statistics = is_one_of(of.name, {"_native_batch_norm_legit_no_training", "_batch_norm_no_update"}) ||
                              (of_batch && trains && trains->isBool() && !trains->toBool());
  if (has_statistics && of.direction == kForward) work.kind = WorkKind::kPointwise;
  // Statistics first, then the values once more.
  if (!has_statistics && (of_batch || of_groups)) read *= 2;
  // Blocks of threads: as KernelBench's problems have it, three of a channel that is not channels last, three of two groups, one of a row. An
  // H100 has one of a channel in PyTorch's own batch norm, whose forward pass in channels last takes twice as long as cuDNN's.
  if (of_batch && !has_statistics) {
    work.flags |= kOfBatch;
    const Tensor input = given.tensor(of.direction != kForward);
    const bool is_own = begins_with(of.name, "native_");
    if (is_own && of.direction == kForward && is_channels_last(input)) read *= 2;
    if (input.dim() > 1 && !is_channels_last(input)) work.m = small((is_own ? 1 : 3) * input.size(1));
  }
  if (of_groups && given.tensor(0).defined() && given.tensor(0).dim() > 0)
    work.m = small(3 * given.tensor(0).size(0) * std::max<int64_t>(1, given.number("group")) / 2);
  if (is_one_of(of.name, {"native_layer_norm", "_fused_rms_norm"}) && given.tensor(0).defined()) {
    const IValue* shape = given.named("normalized_shape");
    int64_t length = 1;
    if (shape && shape->isIntList())
      for (const int64_t size : shape->toIntVector()) length *= size;
    if (length > 0) work.m = small(given.tensor(0).numel() / length);
  }
  if (is_one_of(of.name, {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"}) && given.tensor(0).dim() > 0) {
    const int64_t dimension = given.number("dim") + (given.number("dim") < 0 ? given.tensor(0).dim() : 0);
    if (dimension < given.tensor(0).dim() && given.tensor(0).size(dimension) > 0)
      work.m = small(given.tensor(0).numel() / given.tensor(0).size(dimension));
  }
  // One of each row.
  if (is_one_of(of.name, {"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"})) read = bytes_of(given.tensor(1));
}

// Between the host and a card, or between two cards.
void WorkScope::see_copy(const Given& given) {
  const bool moves = of.name == "copy_" || of.name == "_local_scalar_dense" || of.name == "_to_copy";
  if (!moves) return;
  bool host = of.name == "_local_scalar_dense", device = false, pinned = !host;
  // From its second argument to its first one.
  const Tensor to = given.tensor(0), from = given.tensor(1);
  const bool are_on_cards = to.defined() && from.defined() && to.is_cuda() && from.is_cuda();
  if (of.name == "copy_" && are_on_cards && to.device() != from.device()) {
    work.kind = WorkKind::kCopy;
    work.m = 1;
    work.n = static_cast<uint32_t>(to.device().index()) + 1;
    card = from.device().index();
  }
  for (size_t i = 0; i < 2 && i < given.formals.size(); i++) {
    const Tensor one = given.tensor(i);
    if (!one.defined()) continue;
    host |= one.is_cpu();
    device |= one.is_cuda();
    if (one.is_cpu()) pinned = one.is_pinned();
  }
  if (host && device) {
    work.kind = WorkKind::kCopy;
    work.m = pinned;
    if (!pinned || !given.number("non_blocking")) work.flags |= kWaitsAfter;
  }
}

void WorkScope::ends(const torch::jit::Stack& stack, uint32_t number) {
  if (!is_on) return;
  const uint64_t inside = written_launches - written_before;
  const uint64_t all = launches() - launches_before, mine = all > inside ? all - inside : 0;
  // Its own waiting is recognised by what it is.
  last_waits = waits();
  if (mine == 0 && !(of.is_library && library_records == library_records_before) && !(work.flags & kWaitsAfter)) {
    // The next that launches something has waited as well.
    if (work.flags & kWaitedBefore) last_waits--;
    return;
  }
  written_launches += mine;
  work.launches = static_cast<uint32_t>(mine ? mine : 1);
  // A product and what follows on it, of each step and layer; what a library launches is not seen.
  if (work.kind == WorkKind::kRecurrent && work.batch) work.launches = std::max<uint32_t>(work.launches, 2 * work.batch * work.groups);
  double made = 0;
  const size_t returned = op.schema().returns().size();
  const c10::ArrayRef<IValue> results(stack.data() + stack.size() - returned, returned);
  for (const IValue& value : results) {
    made += bytes_of(value);
    each_tensor(value, [&](const Tensor& one) {
      if (card < 0 && one.defined() && one.is_cuda()) card = one.device().index();
    });
  }
  switch (work.kind) {
    case WorkKind::kConvolution:
      if (work.flops == 0 && returned > 0 && results[0].isTensor()) {
        const auto& result = results[0].toTensor();
        if (weight.defined()) count_convolution(work, work.flags & kIsTransposed ? input : result, weight, 1);
      }
      work.bytes = read + (written > 0 ? written : made);
      break;
    case WorkKind::kIndex:
      // Only the rows that are looked up; what is written in place is a part, too, and into what is given for them all of it.
      work.bytes = written > 0 ? 3 * std::min(read - written, written) : work.direction != kForward ? read + made : 2 * made + std::min(read, made);
      break;
    case WorkKind::kCopy:
      work.bytes = std::max(read, written) > 0 ? std::max(read, written) : 8;
      break;
    default: work.bytes = read + (written > 0 ? written : made);
  }
  if (work.bytes < 0) work.bytes = made;
  // Autograd's threads each have a card as their current one, and a script need not set its own.
  const auto stream = c10::cuda::getCurrentCUDAStream(card);
  work.stream = reinterpret_cast<uint64_t>(stream.stream());
  work.device = static_cast<uint16_t>(stream.device_index());
  work.host_nanoseconds = host_time();
  keep(work, number);
  // An operator around it that launches nothing itself is not another one.
  library_records += of.is_library;
}

}  // namespace vramlab::rehearsal
