#include "cli/tensor_file.h"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include "tessera/base/errors.h"
#include "tessera/files/safetensors.h"

namespace tessera::cli {
namespace {

at::Tensor read_tensor(const files::SafetensorsFile& file, const files::SafetensorsEntry& entry) {
  const auto options = at::TensorOptions().dtype(static_cast<c10::ScalarType>(entry.dtype));
  at::Tensor out = at::empty(entry.shape, options);
  file.file()->read(entry.offset, {static_cast<std::byte*>(out.data_ptr()), entry.size});
  return out;
}

}  // namespace

NamedTensors read_tensors(const std::filesystem::path& path) {
  const files::SafetensorsFile file(path);
  NamedTensors out;
  for (const auto& entry : file.entries()) out.emplace_back(entry.name, read_tensor(file, entry));
  return out;
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<files::SafetensorsTensor> list;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    list.push_back({.name = name,
                    .dtype = static_cast<DType>(plain.scalar_type()),
                    .shape = plain.sizes().vec(),
                    .write = [plain](const auto& sink) {
                      sink({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
                    }});
  }
  const std::filesystem::path aside = join_text(path.string(), ".", getpid(), ".tmp");
  try {
    files::write_safetensors(aside, list, {.metadata = metadata});
    std::filesystem::rename(aside, path);
  } catch (...) {
    unlink(aside.c_str());
    throw;
  }
}

std::string dtype_text(const at::Tensor& tensor) {
  return std::string(dtype_name(static_cast<DType>(tensor.scalar_type())));
}

std::string sizes_text(const at::Tensor& tensor) { return shape_text(tensor.sizes().vec()); }

}  // namespace tessera::cli
