"""Four ranks as threads of this process move a matrix from rows to columns and count the messages."""

import torch

import tessera

FULL = torch.arange(48.0).view(8, 6)


def main(rank):
    mesh = tessera.init_device_mesh("dp=2,tp=2")
    rows = tessera.distribute_tensor(FULL, mesh, "S0,S0")
    with tessera.Recorder() as recorder:
        columns = tessera.redistribute(rows, "R,S1")
    if rank == 0:
        print(tessera.make_plan(tessera.sharding(rows), tessera.sharding(columns)))
        print(recorder)
    assert torch.equal(tessera.full_tensor(columns), FULL)
    return tuple(tessera.to_local(rows).shape), tuple(tessera.to_local(columns).shape)


if __name__ == "__main__":
    assert tessera.run_ranks(4, main) == [((2, 6), (8, 3))] * 4
