#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

/// Tensors by name in safetensors files: what programs take and give on the command line.
namespace tessera::cli {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// In the order of the file. The tensors are views of the mapped file.
NamedTensors read_tensors(const std::filesystem::path& path);

/// Written aside and renamed, so that the file is complete or not there.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// "f32".
std::string dtype_text(const at::Tensor& tensor);
/// "2x3"; "scalar".
std::string sizes_text(const at::Tensor& tensor);

}  // namespace tessera::cli
