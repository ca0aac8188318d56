"""torch.distributed.checkpoint saves sharded tensors, and loads them placed otherwise."""

import pytest
import torch

import tessera
from tessera.compat import Partial, distribute_tensor


def test_a_checkpoint_is_loaded_in_other_placements_and_by_pytorchs_own_tensors(beside_torch, tmp_path):
    out = beside_torch(
        2,
        f"""
        import torch.distributed.checkpoint as dcp
        from torch.distributed import tensor as theirs

        def make(seed):
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))

        def check(found):
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value)

        def save(state, name):
            dcp.save({{"model": state}}, checkpoint_id={str(tmp_path)!r} + name)

        def load(state, name="/ours"):
            dcp.load({{"model": state}}, checkpoint_id={str(tmp_path)!r} + name)

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        saved = make(1)
        tessera.distribute_(saved[0].weight, mesh, "S1")
        compat.fully_shard(saved[1], mesh=mesh)
        expected = tessera.full_state_dict(saved)
        save(saved.state_dict(), "/ours")

        spread = make(2)
        tessera.distribute_(spread[0].weight, mesh, "S0")
        tessera.distribute_(spread[1].weight, mesh, "R")
        load(spread.state_dict())
        check(tessera.full_state_dict(spread))

        sharded = compat.fully_shard(make(3), mesh=mesh)
        load(sharded.state_dict())
        check(tessera.full_state_dict(sharded))

        state = {{
            name: theirs.distribute_tensor(torch.zeros_like(value), mesh, [theirs.Shard(0)])
            for name, value in expected.items()
        }}
        load(state)
        check({{name: tensor.full_tensor() for name, tensor in state.items()}})

        save(state, "/theirs")
        with torch.no_grad():
            for parameter in spread.parameters():
                parameter.zero_()
        load(spread.state_dict(), "/theirs")
        check(tessera.full_state_dict(spread))
        print("equal on rank " + str(rank))
        """,
    )
    assert out.count("equal on rank") == 2


def test_what_has_no_single_part_on_a_rank_is_refused(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = distribute_tensor(torch.arange(8.0), mesh, "S0")
        (chunk,) = x.__create_chunk_list__()
        assert tuple(chunk.offsets) == (4 * rank,) and tuple(chunk.sizes) == (4,)
        empty = distribute_tensor(torch.ones(1), mesh, "S0")
        assert len(empty.__create_chunk_list__()) == 1 - rank
        strided = tessera.redistribute(x, [tessera.StridedShard(0, 2)])
        for several in (distribute_tensor(torch.ones(8), mesh, [Partial()]), strided):
            with pytest.raises(tessera.NotSupported, match="redistribute"):
                several.__create_chunk_list__()
        assert not hasattr(torch.ones(2), "__create_chunk_list__")

    ranks(2, body)
