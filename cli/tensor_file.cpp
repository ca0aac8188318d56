#include "cli/tensor_file.h"

#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include "tessera/base/errors.h"
#include "tessera/files/safetensors.h"

namespace tessera::cli {
namespace {

at::Tensor view_of(const files::SafetensorsFile& file, const files::SafetensorsEntry& entry) {
  const auto bytes = file.bytes(entry);
  auto* data = const_cast<std::byte*>(bytes.data());  // the mapping is private
  const auto options = at::TensorOptions().dtype(static_cast<c10::ScalarType>(entry.dtype));
  const auto keep = file.file();
  const at::Tensor view = at::from_blob(
      data, entry.shape, [keep](void*) {}, options);
  const bool aligned =
      reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_bytes(entry.dtype)) == 0;
  if (aligned) return view;
  at::Tensor copy = at::empty(entry.shape, options);
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.data_ptr()));
  return copy;
}

}  // namespace

NamedTensors read_tensors(const std::filesystem::path& path) {
  const files::SafetensorsFile file(path);
  NamedTensors out;
  for (const auto& entry : file.entries()) out.emplace_back(entry.name, view_of(file, entry));
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
