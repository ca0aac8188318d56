// Serves a sharded language model: every rank loads its part of the directory that `tessera shard`
// wrote, rank 0 reads prompts from standard input, one a line, and answers each with what the model
// writes next.
//
//   tessera shard model.pt2 --mesh tp=4 --plan plan.json -o model_tp4
//   echo "the " | tessera launch -n 4 --stdin 060_serve model_tp4
//   echo "the " | 060_serve model_tp4                 ranks as threads of one process
#include <tessera/tessera.h>

#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

using namespace tessera;

constexpr int64_t kLongest = 64;  // positions that the model knows
constexpr int kAnswer = 48;       // characters

/// A prompt as a tensor of this size on every rank: its length (-1: no more), then its bytes.
at::Tensor no_request() { return at::full({kLongest + 1}, -1, at::kLong); }

/// The next prompt that the model can read; others are answered with an error at once.
at::Tensor read_request() {
  for (std::string line; std::getline(std::cin, line);) {
    const bool plain = std::all_of(line.begin(), line.end(), [](char c) { return c >= 0; });
    if (line.empty() || !plain) {
      std::cout << "error: a prompt is a line of ASCII characters" << std::endl;
      continue;
    }
    if (line.size() > kLongest) line.erase(0, line.size() - kLongest);
    at::Tensor request = no_request();
    request[0] = static_cast<int64_t>(line.size());
    for (size_t i = 0; i < line.size(); ++i) request[static_cast<int64_t>(i) + 1] = line[i];
    return request;
  }
  return no_request();
}

/// The likeliest next characters. Every rank runs this on the same tokens, and all get the same
/// logits, so nothing but the model's own collectives is sent.
std::string answer(ShardedProgram& model, at::Tensor tokens) {
  std::string text;
  for (int i = 0; i < kAnswer; ++i) {
    const int64_t length = std::min(tokens.size(1), kLongest);
    const at::Tensor logits =
        model.run({tokens.narrow(1, tokens.size(1) - length, length)})[0].toTensor();
    const at::Tensor next = logits.select(1, length - 1).argmax(-1, /*keepdim=*/true);
    text += static_cast<char>(next.item<int64_t>());
    tokens = at::cat({tokens, next}, 1);
  }
  return text;
}

void serve(const std::string& directory) {
  const auto world = comm::current_world();
  ShardedProgram model = ShardedProgram::load(directory, world);
  std::vector<int> everyone;
  for (int rank = 0; rank < world->size(); ++rank) everyone.push_back(rank);
  const auto group = world->group(everyone);
  if (world->rank() == 0) {
    std::cerr << "serving " << model.manifest().source << " on " << model.mesh().to_text() << "\n";
  }
  for (;;) {
    std::vector<at::Tensor> request = {world->rank() == 0 ? read_request() : no_request()};
    if (world->size() > 1) group->process_group()->broadcast(request)->wait();
    const int64_t length = request[0][0].item<int64_t>();
    if (length < 0) return;
    const std::string text = answer(model, request[0].narrow(0, 1, length).unsqueeze(0));
    if (world->rank() == 0) std::cout << text << std::endl;
  }
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: 060_serve DIR    (a directory that tessera shard wrote)\n";
    return 2;
  }
  const std::string directory = argv[1];
  try {
    const int ranks = partition::Manifest::read(directory).mesh.size();
    if (comm::current_world()->size() == 1 && ranks > 1) {
      run_ranks(ranks, [&](int) { serve(directory); });
    } else {
      serve(directory);
    }
    comm::close_process_world();
  } catch (const Error& error) {
    std::cerr << "060_serve: " << error.what() << "\n";
    return 1;
  }
}
