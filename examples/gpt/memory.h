#pragma once

#include <tessera/mesh/device_mesh.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <map>
#include <string>

/// What this rank holds, in bytes.
namespace gpt {

/// "parameters", "gradients", "optimizer state": this rank's parts; "gathered, at its peak": whole
/// parameters while they are used; "process, at its peak": all of the process, libtorch included.
std::map<std::string, int64_t> memory_by_owner(const torch::nn::Module& model,
                                               torch::optim::AdamW& optimizer,
                                               const tessera::DeviceMesh& mesh);

int64_t resident_bytes();  ///< of this process, now

}  // namespace gpt
