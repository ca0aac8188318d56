#include "sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <tessera/tessera.h>
#include <torch/utils.h>

namespace gpt {

using namespace tessera;

std::string write_sample(Gpt& model, const Settings& s, const DeviceMesh& mesh) {
  constexpr double kTemperature = 0.5;
  const torch::NoGradGuard no_grad;
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(s.seed));
  std::string text = "\n";
  for (int64_t i = 0; i < s.sample; ++i) {
    const size_t seen = std::min(text.size(), static_cast<size_t>(s.context));
    at::Tensor window = at::empty({1, static_cast<int64_t>(seen)}, at::kLong);
    for (size_t j = 0; j < seen; ++j) {
      window.mutable_data_ptr<int64_t>()[j] =
          static_cast<unsigned char>(text[text.size() - seen + j]);
    }
    const at::Tensor logits = model->forward(distribute_tensor(window, mesh["tp"], {Replicate()}));
    const at::Tensor next = full_tensor(logits.select(1, -1)).div(kTemperature).softmax(-1);
    text.push_back(static_cast<char>(at::multinomial(next, 1, false, random).item<int64_t>()));
  }
  // A model that has learned little writes bytes that are no letters.
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  }
  return text.substr(1);
}

}  // namespace gpt
