#include "text.h"

#include <ATen/ops/empty.h>
#include <tessera/tessera.h>

#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

namespace gpt {

using namespace tessera;

Text::Text(const std::string& file, int64_t context, int64_t batch, int64_t seed)
    : context_(context), batch_(batch), seed_(seed) {
  std::ostringstream read;
  read << std::ifstream(file, std::ios::binary).rdbuf();
  bytes_ = read.str();
  if (static_cast<int64_t>(bytes_.size()) < context + 2) {
    throw std::runtime_error(file + " is not there or shorter than the context; see --text");
  }
}

Batch Text::batch(int64_t step, const DeviceMesh& mesh) const {
  const int64_t parts = mesh["dp"].size();
  if (batch_ % parts != 0) throw std::runtime_error("--batch must be a multiple of dp");
  const int64_t rows = batch_ / parts;
  const int64_t first = rows * mesh.local_rank("dp");

  std::seed_seq seeds{seed_, step};
  std::mt19937_64 random(seeds);
  const at::Tensor inputs = at::empty({rows, context_}, at::kLong);
  const at::Tensor targets = at::empty({rows, context_}, at::kLong);
  for (int64_t row = 0; row < batch_; ++row) {
    const uint64_t start = random() % (bytes_.size() - static_cast<size_t>(context_) - 1);
    if (row < first || row >= first + rows) continue;
    const int64_t at = (row - first) * context_;
    for (int64_t i = 0; i < context_; ++i) {
      const auto byte = [&](int64_t j) {
        return static_cast<unsigned char>(bytes_[start + static_cast<uint64_t>(j)]);
      };
      inputs.mutable_data_ptr<int64_t>()[at + i] = byte(i);
      targets.mutable_data_ptr<int64_t>()[at + i] = byte(i + 1);
    }
  }
  const DeviceMesh tp = mesh["tp"];  // whose ranks all read the same rows
  return {from_local(inputs, tp, {Replicate()}), from_local(targets, tp, {Replicate()})};
}

}  // namespace gpt
