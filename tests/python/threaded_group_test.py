"""Ranks that torch.distributed runs as threads, as PyTorch's own tests of sharded tensors do."""

from unittest import mock

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase, with_comms

import tessera
from tessera.compat import DTensor, Partial, Replicate, Shard, distribute_tensor
from tessera.compat.debug import CommDebugMode
from tessera.compat.fsdp import fully_shard


class OnThreads(DTensorOpTestBase):
    """On the CPU, also where there is a GPU: four ranks that torch starts want four."""

    device_type = "cpu"
    world_size = 4

    def setUp(self):
        no_gpu = mock.patch("torch.accelerator.current_accelerator", return_value=None)
        no_gpu.start()
        self.addCleanup(no_gpu.stop)
        super().setUp()

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

    @with_comms
    def test_fully_shard_without_a_mesh(self):
        weight = torch.arange(30.0).view(6, 5) / 7  # threads share torch's seed
        layer = torch.nn.Linear(5, 6, bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight)
        fully_shard(layer)
        assert layer.weight.device_mesh == init_device_mesh("cpu", (4,))
        layer.to(torch.float64)
        x = torch.full((1, 5), self.rank + 1.0, dtype=torch.float64)
        torch.testing.assert_close(layer(x), x @ weight.double().t())
        layer(x).sum().backward()
        torch.testing.assert_close(layer.weight.grad.full_tensor(), torch.full((6, 5), 2.5).double())
        assert layer.state_dict()["weight"].placements == (Shard(0),)
