// Four ranks as threads of this process move a matrix from rows to columns and count the messages.
#include <ATen/ops/arange.h>

#include <iostream>

#include "tessera/tessera.h"

int main() {
  using namespace tessera;

  const auto rows = Sharding::parse("dp=2,tp=2 : S0,S0 : 8x6");
  const auto columns = Sharding::parse("dp=2,tp=2 : R,S1 : 8x6");
  std::cout << "the plan, from metadata alone:\n"
            << plan::make_plan(rows, columns, cost::Machine::cpu_processes()).to_text();

  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const Sharding from = rows.with_mesh(mesh);
    const Sharding to = columns.with_mesh(mesh);

    // My rows of the 8x6 matrix 0, 1, 2, ...
    const at::Tensor full = at::arange(48).to(at::kFloat).reshape({8, 6});
    const at::Tensor mine = full.narrow(0, from.local_offset()[0], from.local_shape()[0]);

    comm::Recorder recorder(*comm::current_world());
    const at::Tensor moved = exec::redistribute(mine, from, to);
    if (rank == 3) {
      std::cout << "\nwhat rank 3 holds afterwards:\n"
                << moved << "\n\nwhat it took:\n"
                << recorder.to_text();
    }
  });
}
