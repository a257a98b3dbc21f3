// PyTorch's zip archive of a pickled dictionary: what torch.save writes.
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>

#include "../../../sim/native/guarded.h"

extern "C" {
char* vl_pickle_save(const char* path, const char* const* names, const at::Tensor* const* tensors, size_t count) {
  return guarded([&] {
    c10::Dict<std::string, at::Tensor> dictionary;
    for (size_t i = 0; i < count; i++) dictionary.insert(names[i], *tensors[i]);
    const std::vector<char> archive = torch::jit::pickle_save(dictionary);
    std::ofstream file(path, std::ios::binary);
    file.write(archive.data(), static_cast<std::streamsize>(archive.size()));
    file.close();
    TORCH_CHECK(file.good(), "writing ", path, ": ", std::strerror(errno));
  });
}
}
