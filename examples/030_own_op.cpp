// An op of your own on sharded tensors: first without a word, then with a one-line rule, and a
// guard that turns communication the program did not request into an error with the line to write.
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <tessera/tessera.h>
#include <torch/library.h>

#include <iostream>

using namespace tessera;

namespace {

/// What a library brings: a kernel that reads and writes memory and knows nothing of ranks.
at::Tensor scale_rows_cpu(const at::Tensor& x, const at::Tensor& by) {
  const at::Tensor in = x.contiguous();
  const at::Tensor factors = by.contiguous();
  at::Tensor out = at::empty_like(in);
  for (int64_t row = 0; row < in.size(0); ++row) {
    for (int64_t column = 0; column < in.size(1); ++column) {
      const int64_t i = row * in.size(1) + column;
      out.mutable_data_ptr<float>()[i] =
          in.const_data_ptr<float>()[i] * factors.const_data_ptr<float>()[row];
    }
  }
  return out;
}

TORCH_LIBRARY(mylib, library) { library.def("scale_rows(Tensor x, Tensor by) -> Tensor"); }
TORCH_LIBRARY_IMPL(mylib, CPU, library) { library.impl("scale_rows", scale_rows_cpu); }

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& by) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mylib::scale_rows", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, by);
}

/// Runs the op on rows over four ranks; rank 0 says what happened.
void run(const char* title) {
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor x = randn({6, 2}, mesh, {Shard(0)});
    const at::Tensor by = arange(6, mesh, {Shard(0)}, at::kFloat);
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = scale_rows(x, by);
    if (rank == 0) {
      std::cout << title << ": " << sharding(y).to_text() << ", " << recorder.events().size()
                << " messages\n";
    }
  });
}

}  // namespace

int main() {
  run("without a rule");
  // Rows m and columns n of x, a factor for each row: shard either, or neither.
  register_rule("mylib::scale_rows", "mn, m -> mn ; linear 0 ; linear 1");
  run("with a rule");

  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = randn({6, 2}, mesh, {Shard(0)});
    const at::Tensor by = randn({6}, mesh, {Replicate()});
    const CommPolicy explicit_only(ImplicitComm::forbid);
    scale_rows(x, by);  // a replicated factor is sliced on each rank: nothing is sent
    try {
      x.cumsum(0);
    } catch (const NotSupported& error) {
      if (rank == 0) std::cout << "refused: " << error.what() << "\n";
    }
  });
}
