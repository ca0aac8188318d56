#include "memory.h"

#include <tessera/tessera.h>

#include <fstream>

namespace gpt {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor mine = tessera::is_dtensor(tensor) ? tessera::to_local(tensor.detach()) : tensor;
  return static_cast<int64_t>(mine.nbytes());
}

/// A line of /proc/self/status, as "VmRSS:"; the kernel gives kilobytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == name && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

std::map<std::string, int64_t> memory_by_owner(const torch::nn::Module& model,
                                               torch::optim::AdamW& optimizer,
                                               const tessera::DeviceMesh& mesh) {
  std::map<std::string, int64_t> bytes;
  for (const auto& parameter : model.parameters()) {
    bytes["parameters"] += bytes_of(parameter);
    bytes["gradients"] += bytes_of(parameter.grad());
  }
  for (const auto& [key, state] : optimizer.state()) {
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state);
    bytes["optimizer state"] += bytes_of(moments.exp_avg()) + bytes_of(moments.exp_avg_sq());
  }
  bytes["gathered, at its peak"] = tessera::gathered_memory(mesh).peak_bytes;
  bytes["process, at its peak"] = status_bytes("VmHWM:");
  return bytes;
}

int64_t resident_bytes() { return status_bytes("VmRSS:"); }

}  // namespace gpt
