// cuDNN's recurrent networks in a simulated process, beside cudnn.cpp. PyTorch's own code runs above: it asks cuDNN where each weight lies in their
// common buffer, and what cuDNN takes while a pass runs and keeps from the forward pass for the backward pass. cuDNN answers that to nobody
// without a GPU; its descriptors it makes for anybody, and from them the answers are worked out here. The formulas of the sizes are assumed.
// Put beside cuDNN 9.19 on random networks, the weights' were right in all of them, what is kept in nearly all (not with projections in
// several layers), and what is taken while a pass runs in about half, else off by the rounding of its parts or more in rarer combinations.
// Of the card only dropout's states depend.
#include "answers.h"
#include "card.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

namespace {

using Descriptor = void*;
constexpr int kBadParameter = 2000, kNotSupported = 3000;
enum Cell : int { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
// Of cudnnRNNAlgo_t, the one that needs other workspaces; of the layouts and modes, those that matter.
constexpr int kPersistentSmall = 3, kPacked = 1, kTraining = 1;

int64_t rounded(int64_t bytes) { return (bytes + 31) / 32 * 32; }

// By descriptor, the rate that it was given.
std::mutex mutex;
std::map<Descriptor, float> rates;

int set_rate(Descriptor dropout, float rate) {
  const std::lock_guard<std::mutex> lock(mutex);
  rates[dropout] = rate;
  return 0;
}

template <typename Function>
Function* real(const char* name) {
  static void* const library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

// Arguments of cudnnSetRNNDescriptor_v8.
struct Network {
  int algorithm, cell, bias, directions, input_mode, type, precision, math;
  int32_t input, hidden, projection, layers;
  bool drops;

  bool read(Descriptor from) {
    static auto* const get =
        real<int(Descriptor, int*, int*, int*, int*, int*, int*, int*, int*, int32_t*, int32_t*, int32_t*, int32_t*, Descriptor*, uint32_t*)>(
            "cudnnGetRNNDescriptor_v8");
    Descriptor dropout;
    uint32_t flags;
    if (!get || get(from, &algorithm, &cell, &bias, &directions, &input_mode, &type, &precision, &math, &input, &hidden, &projection, &layers,
                    &dropout, &flags) != 0)
      return false;
    directions += 1;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto rate = rates.find(dropout);
    drops = rate != rates.end() && rate->second > 0;
    return true;
  }

  int64_t element() const { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }
  int64_t gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }
  int64_t pseudo_layers() const { return int64_t(layers) * directions; }
  bool projects() const { return projection != hidden; }
  int64_t width(int64_t layer) const { return layer < directions ? input : int64_t(projection) * directions; }

  // Elements of the matrices of one pseudo-layer, and of its biases, of which each gate has two.
  int64_t matrices(int64_t layer) const {
    return gates() * hidden * (width(layer) + projection) + (projects() ? int64_t(projection) * hidden : 0);
  }
  int64_t biases() const { return 2 * gates() * hidden; }
  // All matrices lie before all biases.
  int64_t before(int64_t layer) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < layer; i++) sum += matrices(i);
    return sum;
  }
  int64_t weights() const { return before(pseudo_layers()) + pseudo_layers() * biases(); }
};

// Arguments of cudnnSetRNNDataDescriptor.
struct Sequences {
  int type, layout, longest, batch, vector;
  // Vectors of all sequences, those between them where they are padded.
  int64_t tokens;

  bool read(Descriptor from) {
    static auto* const get = real<int(Descriptor, int*, int*, int*, int*, int*, int, int*, void*)>("cudnnGetRNNDataDescriptor");
    std::vector<int> lengths(1);
    double padding;
    if (!get || get(from, &type, &layout, &longest, &batch, &vector, 1, lengths.data(), &padding) != 0) return false;
    lengths.resize(static_cast<size_t>(batch));
    if (get(from, &type, &layout, &longest, &batch, &vector, batch, lengths.data(), &padding) != 0) return false;
    tokens = layout == kPacked ? std::accumulate(lengths.begin(), lengths.end(), int64_t(0)) : int64_t(longest) * batch;
    return true;
  }
};

// What the forward pass keeps for the backward pass: of each layer its gates and, of an LSTM, its cells; of all layers but the last also
// their outputs, and which of them were dropped.
int64_t reserved(const Network& of, const Sequences& over) {
  const int64_t n = over.tokens, hidden = of.hidden, e = of.element(), all = of.pseudo_layers(), inner = of.layers - 1;
  const int64_t gates = of.cell == kGru ? 6 : of.gates(), outputs = hidden * of.directions;
  int64_t bytes = rounded(all * gates * n * hidden * e) + rounded(inner * n * outputs * e);
  if (of.cell == kLstm) bytes += rounded(all * n * hidden * e);
  if (of.projects()) bytes += rounded(all * n * hidden * e) + rounded(all * n * of.projection * e);
  if (of.drops) bytes += inner * of.directions * rounded((int64_t(over.longest) * over.batch * outputs + 7) / 8);
  return bytes + 256;
}

// What a pass takes while it runs: the matrices in an order of their own and 8 MiB for each layer, and the larger of what the forward and
// the backward pass need for their vectors.
int64_t worked(const Network& of, const Sequences& over, bool trains) {
  struct ByCell {
    int64_t rnn, lstm, gru;
    int64_t of(int cell) const { return cell == kLstm ? lstm : cell == kGru ? gru : rnn; }
  };
  const bool packed = over.layout == kPacked, small = of.algorithm == kPersistentSmall;
  const int64_t n = over.tokens, b = over.batch, e = of.element(), h = of.hidden, d = of.directions, p = of.projection, i = of.input;
  const int64_t both = d - 1;
  const int64_t padded = packed ? 0 : i + d * (h + (of.projects() ? p : 0));
  const int64_t state = small ? ByCell{4, 8, 4}.of(of.cell) + both : (packed ? ByCell{1, 4, 3} : ByCell{3, 8, 5}).of(of.cell) + 2 * both;
  const int64_t outputs = of.cell == kLstm && !small ? 2 * p : 0;
  const int64_t dropped = of.drops && d == 1 ? h : 0;
  const int64_t unprojected = of.projects() && packed ? d * h : 0;
  const int64_t forward =
      n * (d * of.gates() * h + 4 * both * h + padded + (small ? 4 * of.gates() * h : 0) + dropped + unprojected) +
      of.pseudo_layers() * b * (state * h + outputs);
  const int64_t gradient_state = small    ? ByCell{6, 12, 6}.of(of.cell) + both
                                 : packed ? ByCell{1, 3, 1}.of(of.cell) + 2 * both
                                          : ByCell{5, 11, 5}.of(of.cell) + 2 * both;
  const int64_t between = of.layers > 1 ? (small ? d : 2 * both) : 0;
  const int64_t backward = n * (d * d * std::max(i, h) + d * h + (packed ? 0 : 2 * i + 2 * d * h) + between * h +
                                (small ? ByCell{9, 12, 14}.of(of.cell) * h : 0)) +
                           of.pseudo_layers() * b * gradient_state * h;
  const int64_t vectors = trains ? std::max(forward, backward) : forward;
  return of.before(of.pseudo_layers()) * e + (of.pseudo_layers() << 23) + rounded(vectors * e) + 256 + (packed ? 0 : rounded(8 * b));
}

int describe(Descriptor matrix, int type, int rows, int columns) {
  static auto* const set = real<int(Descriptor, int, int, const int*, const int*)>("cudnnSetTensorNdDescriptor");
  const int sizes[3] = {1, rows, columns}, strides[3] = {rows * columns, columns, 1};
  return set ? set(matrix, type, 3, sizes, strides) : kNotSupported;
}

}  // namespace

extern "C" {

// Nothing is drawn from the states; of the descriptor only the rate is asked.
int cudnnSetDropoutDescriptor(Descriptor of, void*, float rate, void*, size_t, unsigned long long) { return set_rate(of, rate); }
int cudnnRestoreDropoutDescriptor(Descriptor of, void*, float rate, void*, size_t, unsigned long long) { return set_rate(of, rate); }
// A generator of 48 bytes for every second thread of the card.
int cudnnDropoutGetStatesSize(void*, size_t* bytes) {
  const VramlabCard& card = *vramlab_dry_card();
  const int64_t generators = int64_t(card.multiprocessors) * card.threads_per_multiprocessor / 2;
  *bytes = static_cast<size_t>(48 * ((generators + 255) / 256 * 256));
  return 0;
}

int cudnnGetRNNWeightSpaceSize(void*, Descriptor descriptor, size_t* bytes) {
  Network network;
  if (!network.read(descriptor)) return kBadParameter;
  *bytes = static_cast<size_t>(network.weights() * network.element());
  return 0;
}

// Of each pseudo-layer, in a row: the gates' matrices for the input, those for the hidden state, and the projection; after those of all
// layers the biases in the same order.
int cudnnGetRNNWeightParams(void*, Descriptor descriptor, int32_t layer, size_t, const void* weights, int32_t id, Descriptor matrix,
                            void** matrix_address, Descriptor bias, void** bias_address) {
  Network network;
  if (!network.read(descriptor) || layer < 0 || layer >= network.pseudo_layers()) return kBadParameter;
  const int64_t gates = network.gates(), hidden = network.hidden, width = network.width(layer);
  const bool is_projection = network.projects() && id == 2 * gates;
  if (id < 0 || (id >= 2 * gates && !is_projection)) return kBadParameter;
  char* const begin = static_cast<char*>(const_cast<void*>(weights));
  if (matrix) {
    const int64_t for_input = id < gates ? id : gates, for_hidden = id < gates ? 0 : id - gates;
    const int64_t at = network.before(layer) + for_input * hidden * width + for_hidden * hidden * network.projection;
    *matrix_address = begin + at * network.element();
    const int status = is_projection ? describe(matrix, network.type, network.projection, network.hidden)
                                     : describe(matrix, network.type, network.hidden, int(id < gates ? width : network.projection));
    if (status != 0) return status;
  }
  if (bias && !is_projection) {
    const int64_t at = network.before(network.pseudo_layers()) + layer * network.biases() + id * hidden;
    *bias_address = begin + at * network.element();
    return describe(bias, network.type, network.hidden, 1);
  }
  return 0;
}

int cudnnGetRNNTempSpaceSizes(void*, Descriptor descriptor, int mode, Descriptor data, size_t* work, size_t* reserve) {
  Network network;
  Sequences sequences;
  if (!network.read(descriptor) || !sequences.read(data)) return kBadParameter;
  const bool trains = mode == kTraining;
  if (work) *work = static_cast<size_t>(worked(network, sequences, trains));
  if (reserve) *reserve = trains ? static_cast<size_t>(reserved(network, sequences)) : 0;
  return 0;
}

DONE(cudnnRNNBackwardData_v8) DONE(cudnnRNNBackwardWeights_v8) DONE(cudnnRNNForward)
}
