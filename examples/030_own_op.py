"""An op of your own on sharded tensors: without a rule it runs on gathered inputs, with one on the parts."""

import torch

import tessera

torch.library.define("example030::scale_rows", "(Tensor x, Tensor by) -> Tensor")


@torch.library.impl("example030::scale_rows", "CPU")
def scale_rows_cpu(x, by):
    return x * by.unsqueeze(1)


@torch.library.register_fake("example030::scale_rows")
def scale_rows_shape(x, by):
    return torch.empty_like(x)


def main(rank):
    mesh = tessera.init_device_mesh("tp=4")
    x = tessera.ones(6, 2, device_mesh=mesh, placements="S0")
    by = tessera.arange(6, device_mesh=mesh, placements="S0", dtype=torch.float32)
    with tessera.Recorder() as recorder:
        y = torch.ops.example030.scale_rows(x, by)
    assert tessera.full_tensor(y)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    return str(tessera.sharding(y)), recorder.count()


if __name__ == "__main__":
    without = tessera.run_ranks(4, main)[0]
    tessera.register_rule("example030::scale_rows", "mn, m -> mn ; linear 0 ; linear 1")
    with_rule = tessera.run_ranks(4, main)[0]
    print("without a rule:", *without, "messages")
    print("with a rule:", *with_rule, "messages")
    assert without[1] > 0 and with_rule == ("tp=4 : S0 : 6x2", 0)
