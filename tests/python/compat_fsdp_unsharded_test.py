"""Parameters of fully_shard inside forward: what PyTorch's unsharded ones are. Experts and
tensor-parallel weights whose local part is computed with, beside FSDP2 on the same processes."""

import pytest
import torch

import tessera
from tessera.compat import DTensor, Replicate, Shard, init_device_mesh
from tessera.compat.fsdp import fully_shard

PROGRAM = """
    import functools
    import itertools
    from torch import nn
    from torch.distributed import fsdp as peer_fsdp
    from torch.distributed import tensor as peer_tensor
    from torch.utils.checkpoint import checkpoint
    from tessera.compat import fsdp as own_fsdp

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    dp, ep = mesh.get_local_rank("dp"), mesh.get_local_rank("ep")
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(6, 5, 5, generator=generator) / 2
    plain = torch.randn(5, 5, generator=generator)
    batch = torch.randn(2, 3, 5, generator=generator)

    class Experts(nn.Module):
        def __init__(self, lib, inside):
            super().__init__()
            whole = nn.Parameter(weight.clone())
            self.w = nn.Parameter(lib.distribute_tensor(whole.detach(), mesh["ep"], [lib.Shard(0)]))
            self.gain = nn.Parameter(plain.clone())
            self.lib, self.inside = lib, inside

        def compute(self, x):
            w = self.w
            assert tuple(w.device_mesh.mesh_dim_names) == ("ep",), w.device_mesh
            assert [p.is_shard(0) for p in w.placements] == [True], w.placements
            if self.inside == "full":
                part = w.full_tensor().chunk(2)[ep]
            elif self.inside == "moved":
                part = w.redistribute(placements=[self.lib.Replicate()]).to_local().chunk(2)[ep]
            elif self.inside == "transposed":
                part = w.transpose(1, 2).to_local().transpose(1, 2)
            else:
                part = w.to_local()
            assert part.shape == (3, 5, 5) and type(part) in (torch.Tensor, nn.Parameter), part.shape
            x = x.to(part.dtype) @ self.gain
            return torch.bmm(x.expand(3, -1, -1), part).tanh().sum(0)

        def forward(self, x):
            if self.inside == "checkpoint":
                return checkpoint(self.compute, x, use_reentrant=False)
            return self.compute(x)

    class Model(nn.Module):
        def __init__(self, lib, inside):
            super().__init__()
            self.layers = nn.ModuleList([Experts(lib, inside) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.float().square().mean()

    def trained(lib, fsdp, inside, reshard, low):
        model = Model(lib, inside)
        types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if low else {}
        given = {"mesh": mesh["dp"], "reshard_after_forward": reshard}
        given["mp_policy"] = fsdp.MixedPrecisionPolicy(**types)
        for layer in model.layers:
            fsdp.fully_shard(layer, **given)
        fsdp.fully_shard(model, **given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        out = []
        for _ in range(3):
            loss = model(batch[dp])
            loss.backward()
            out += [loss.detach()] + [p.grad.full_tensor() for p in model.parameters()]
            rest = [p.to_local().shape for p in model.parameters()]
            out.append(torch.tensor(rest[0]))
            optimizer.step()
            optimizer.zero_grad()
        return out + [p.full_tensor().detach() for p in model.parameters()]

    cases = itertools.product(
        ("local", "checkpoint", "transposed", "full", "moved"), (True, False), (False, True))
    for inside, reshard, low in cases:
        if inside in ("transposed", "full", "moved") and (low or not reshard):
            continue
        theirs = trained(peer_tensor, peer_fsdp, inside, reshard, low)
        ours = trained(compat, own_fsdp, inside, reshard, low)
        for number, (mine, their) in enumerate(zip(ours, theirs, strict=True)):
            near = {"rtol": 1e-2, "atol": 1e-3} if low else {"rtol": 1e-5, "atol": 1e-6}
            text = f"{inside}, {reshard}, {low}: number {number} "
            torch.testing.assert_close(mine, their, msg=lambda m: text + m, **near)
        print("equal:", inside, reshard, low)
    print("all right on rank " + str(rank))
"""


def test_the_local_part_inside_forward_is_that_of_fsdp2(beside_torch):
    assert beside_torch(4, PROGRAM).count("all right on rank") == 4


class Scaled(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).view(4, 3).double())
        self.read = read

    def forward(self, x):
        return x @ self.read(self.weight).t()


@pytest.mark.parametrize("read", [DTensor.to_local, DTensor.full_tensor])
@pytest.mark.parametrize("with_no_grad", [False, True])
def test_inside_forward_a_parameter_of_data_axes_alone_is_whole(ranks, read, with_no_grad):
    batch = torch.randn(2, 5, 3, dtype=torch.float64)
    plain = Scaled(lambda w: w)
    sum(plain(x).square().sum() / 2 for x in batch).backward()

    def body(rank):
        model = fully_shard(Scaled(read), mesh=init_device_mesh("cpu", (2,)))
        with torch.set_grad_enabled(not with_no_grad):
            out = model(batch[rank])
        torch.testing.assert_close(out, plain(batch[rank]))
        assert model.weight.to_local().shape == (2, 3)  # at rest
        if not with_no_grad:
            out.square().sum().backward()
            torch.testing.assert_close(model.weight.grad.full_tensor(), plain.weight.grad)
            assert model.weight.to_local().shape == (2, 3)

    ranks(2, body)


def test_hooks_of_complete_gradients_and_failed_forwards_find_the_shard(ranks):
    def body(rank):
        seen = []

        def read(weight):
            seen.append(tuple(weight.to_local().shape))
            if len(seen) == 2:
                raise ValueError("in forward")
            return weight

        model = fully_shard(Scaled(read), mesh=init_device_mesh("cpu", (2,)))
        model.weight.register_post_accumulate_grad_hook(
            lambda weight: seen.append(tuple(weight.to_local().shape))
        )
        model(torch.ones(5, 3).double()).sum().backward()
        assert seen == [(4, 3), (2, 3)]
        seen.pop()
        with pytest.raises(ValueError, match="in forward"):
            model(torch.ones(5, 3).double())
        assert model.weight.to_local().shape == (2, 3)

    ranks(2, body)


def test_the_mesh_of_a_tensor_parallel_parameter_is_smaller_inside_forward(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        seen = []

        def read(weight):
            seen.append((weight.device_mesh.mesh_dim_names, tuple(weight.placements), weight._spec.shape))
            again = weight.redistribute(placements=[Replicate()])
            assert again.to_local().shape == (4, 3)
            return again.to_local()

        model = Scaled(read)
        tessera.distribute_(model.weight, mesh["tp"], [Shard(1)])
        fully_shard(model, mesh=mesh["dp"])
        model(torch.ones(5, 3).double()).sum().backward()
        assert seen == [(("tp",), (Shard(1),), (4, 3))]
        assert model.weight.device_mesh.mesh_dim_names == ("dp", "tp")
        assert tuple(model.weight.placements) == (Shard(0), Shard(1))
        torch.testing.assert_close(
            model.weight.grad.full_tensor(), torch.full((4, 3), 5.0, dtype=torch.float64)
        )

    ranks(4, body)
