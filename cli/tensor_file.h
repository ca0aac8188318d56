#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

/// Named tensors in safetensors files: inputs and outputs of programs on the command line.
namespace tessera::cli {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// In file order. The tensors are views of the mapped file.
NamedTensors read_tensors(const std::filesystem::path& path);

/// Written to a temporary file and renamed, so that the file is complete or absent.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// "f32".
std::string dtype_text(const at::Tensor& tensor);
/// "2x3"; "scalar".
std::string sizes_text(const at::Tensor& tensor);

}  // namespace tessera::cli
