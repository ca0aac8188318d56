"""Ranks that torch.distributed runs as threads, as PyTorch's own tests of sharded tensors do."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase, with_comms

import tessera
from tessera.compat import DTensor, Partial, Replicate, Shard, distribute_tensor
from tessera.compat.debug import CommDebugMode


class OnThreads(DTensorOpTestBase):
    @property
    def world_size(self):
        return 4

    @with_comms
    def test_collectives_and_gradients(self):
        assert tessera.current_world().rank == self.rank and tessera.current_world().size == 4
        mesh = self.build_device_mesh()
        full = torch.arange(24.0).view(6, 4)
        x = distribute_tensor(full, mesh, [Shard(0)]).requires_grad_()
        with CommDebugMode() as mode:
            (x @ x.t()).sum().backward()
        assert mode.get_total_counts() > 0
        plain = full.clone().requires_grad_()
        (plain @ plain.t()).sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)

    @with_comms
    def test_partial_values_meet(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = DTensor.from_local(torch.full((2, 2), self.rank + 1.0), mesh, [Partial(), Replicate()])
        assert x.redistribute(placements=[Shard(0), Shard(1)]).full_tensor()[0, 0] in (4.0, 6.0)
        assert list(x.device_mesh.get_coordinate()) == [self.rank // 2, self.rank % 2]
        rows = DTensor.from_local(torch.full((1,), float(self.rank)), mesh["tp"], [Shard(0)])
        assert rows.full_tensor().tolist() == [self.rank // 2 * 2.0, self.rank // 2 * 2.0 + 1]
