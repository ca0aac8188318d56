"""Sharded tensors are ordinary torch.Tensors."""

import copy
import io
import pickle

import pytest
import torch

import tessera
from tessera import Partial, RaggedShard, Replicate, Shard


def spread(full, mesh, placements):
    return tessera.distribute_tensor(full, mesh, placements, src_data_rank=None)


def test_a_sharded_tensor_reports_the_global_tensor_and_holds_a_part(ranks):
    full = torch.arange(30.0).view(6, 5)

    def body(rank):
        mesh = tessera.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = spread(full, mesh, [Shard(0), Shard(1)])
        assert type(x) is torch.Tensor and tessera.is_dtensor(x) and not tessera.is_dtensor(full)
        assert x.shape == full.shape and x.dtype == full.dtype and x.device == full.device
        assert tessera.placements(x) == (Shard(0), Shard(1))
        assert tessera.device_mesh(x) == mesh
        assert torch.equal(tessera.full_tensor(x), full)
        return tuple(tessera.to_local(x).shape)

    assert ranks(4, body) == [(3, 3), (3, 2), (3, 3), (3, 2)]


def test_the_data_of_the_source_rank_counts(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=4")
        mine = torch.full((5, 2), float(rank))
        x = tessera.distribute_tensor(mine, mesh, "S0", src_data_rank=2)
        return tessera.full_tensor(x).unique().tolist()

    assert ranks(4, body) == [[2.0]] * 4


@pytest.mark.parametrize("placements", ["R", "S0", "S1", Shard(1), [Replicate()], (Shard(-1),)])
def test_placements_come_as_text_as_one_or_as_a_list(ranks, placements):
    full = torch.randn(3, 4)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        return torch.equal(tessera.full_tensor(spread(full, mesh, placements)), full)

    assert all(ranks(2, body))


def test_pytorchs_own_placements_are_taken(ranks):
    theirs = pytest.importorskip("torch.distributed.tensor")

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        x = spread(torch.ones(4, 4), mesh, [theirs.Shard(1), theirs.Replicate()])
        assert tessera.placements(x) == (Shard(1), Replicate())
        part = tessera.from_local(torch.ones(2), mesh, [theirs.Partial("max"), theirs.Shard(0)])
        assert tessera.placements(part) == (Partial("max"), Shard(0))

    ranks(4, body)


def test_what_is_no_placement_is_refused_with_what_is(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=1")
        with pytest.raises(TypeError, match=r"not a placement: 3; expected Shard\(dim\)"):
            tessera.distribute_tensor(torch.ones(2), mesh, [3])
        with pytest.raises(tessera.InvalidArgument):
            tessera.distribute_tensor(torch.ones(2), mesh, [Shard(1)])

    ranks(1, body)


def test_ragged_parts_are_described_exactly(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=3")
        x = tessera.from_local(torch.full((rank + 1, 2), float(rank)), mesh, "S0")
        assert x.shape == (6, 2)
        (placement,) = tessera.placements(x)
        assert isinstance(placement, RaggedShard) and isinstance(placement, Shard)
        assert placement.sizes == [1, 2, 3]
        return tessera.full_tensor(x)[:, 0].tolist()

    assert ranks(3, body)[0] == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_redistribute_moves_and_is_differentiable_twice(ranks):
    full = torch.randn(5, 6, dtype=torch.float64)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        x = spread(full, mesh, "S0,S1").requires_grad_()
        y = tessera.redistribute(x, [Shard(1), Replicate()])
        assert tessera.placements(y) == (Shard(1), Replicate())
        (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(tessera.full_tensor(first.detach()), 3 * full**2)
        torch.testing.assert_close(tessera.full_tensor(second), 6 * full)

    ranks(4, body)


def test_printing_shows_global_shape_placements_and_part_without_communication(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = spread(torch.arange(4.0), mesh, "S0")
        with tessera.expect_comm("nothing"):
            text = repr(x) + str(x) + f"{torch.nn.Parameter(x)}"
        assert "shape=(4,)" in text and "placements=(Shard(0),)" in text and "mesh='tp=2'" in text
        return repr(x).split("local on ")[1]

    assert ranks(2, body) == ["rank 0=tensor([0., 1.]))", "rank 1=tensor([2., 3.]))"]


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer


@pytest.mark.parametrize("weights_only", [True, False])
def test_torch_save_keeps_the_part_and_the_sharding(ranks, weights_only):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        whole = torch.arange(35.0).view(5, 7)
        strided = tessera.from_local(
            torch.full((2, 3), float(rank)), mesh, "S0,S0", shape=(8, 3), stride=(3, 1)
        )
        for x in (
            spread(whole, mesh, "S0,S1"),
            spread(whole, mesh["tp"], "S0"),
            spread(whole, mesh, "R,R"),
            tessera.redistribute(strided, [tessera.StridedShard(0, 2), Shard(0)]),
            tessera.from_local(torch.full((2, 3), float(rank)), mesh, "P,R"),
        ):
            buffer = saved({"data": x, "parameter": torch.nn.Parameter(x)})
            buffer.seek(0)
            with tessera.expect_comm("nothing"):
                loaded = torch.load(buffer, weights_only=weights_only)
            for name, y in loaded.items():
                assert tessera.sharding(y) == tessera.sharding(x)
                assert torch.equal(tessera.to_local(y), tessera.to_local(x))
                assert y.requires_grad == isinstance(y, torch.nn.Parameter) == (name == "parameter")
            assert torch.equal(loaded["data"] + x, x + x)
            assert torch.equal(pickle.loads(pickle.dumps(x)), x)

    ranks(4, body)


def test_torch_save_writes_no_more_than_the_part(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.from_local(torch.zeros(100_000)[:10], mesh, "S0")
        assert len(saved(x).getvalue()) < 4_000

    ranks(2, body)


def test_the_part_of_another_rank_is_refused_unless_it_is_the_same(ranks):
    whole = torch.arange(8.0)

    def save(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        return saved(spread(whole, mesh, "R,S0")).getvalue()

    def load(rank):
        tessera.init_device_mesh("dp=2,tp=2")
        twin = torch.load(io.BytesIO(files[(rank + 2) % 4]))
        assert torch.equal(tessera.full_tensor(twin), whole)
        with pytest.raises(tessera.InvalidArgument, match="part of rank .* cannot be loaded on rank"):
            torch.load(io.BytesIO(files[rank ^ 1]), weights_only=False)

    files = ranks(4, save)
    ranks(4, load)


def test_a_world_that_the_mesh_does_not_fit_is_refused(ranks):
    def save(rank):
        return saved(spread(torch.arange(4.0), tessera.init_device_mesh("tp=2"), "S0")).getvalue()

    def load(rank):
        with pytest.raises(tessera.InvalidArgument, match="tp=2"):
            torch.load(io.BytesIO(files[0]), weights_only=False)

    files = ranks(2, save)
    ranks(1, load)


def test_methods_that_address_memory_are_refused_and_tolist_gathers(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = spread(torch.arange(4.0), mesh, "S0")
        assert x.tolist() == [0, 1, 2, 3] and x.sum().item() == 6
        for name in ("numpy", "untyped_storage", "__array__", "share_memory_"):
            with pytest.raises(tessera.NotSupported, match=name):
                getattr(x, name)()
        with pytest.raises(tessera.NotSupported, match=r"use tessera.to_local\(x\).data_ptr"):
            x.data_ptr()

    ranks(2, body)
    assert torch.arange(2).numpy().tolist() == torch.arange(2).tolist() == [0, 1]


def test_a_mesh_that_was_only_parsed_has_no_ranks_to_distribute_to(ranks):
    def body(rank):
        mesh = tessera.DeviceMesh.parse("tp=2")
        with pytest.raises(RuntimeError, match="only parsed: it has no ranks"):
            tessera.distribute_tensor(torch.ones(4), mesh, "S0")
        with pytest.raises(RuntimeError, match="only parsed: it has no ranks"):
            tessera.from_local(torch.ones(4), mesh, "S0")

    ranks(2, body)


@pytest.mark.parametrize("grad", ["x", "w"])
def test_linear_saves_only_what_its_gradients_need(ranks, grad):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        whole = {"x": torch.randn(3, 4, 6).double(), "w": torch.randn(5, 6).double()}
        full = {name: tessera.full_tensor(spread(value, mesh, "R")) for name, value in whole.items()}
        part = {"x": spread(full["x"], mesh, "S1"), "w": spread(full["w"], mesh, "R")}
        found = []
        for tensors in (full, part):
            tensors[grad].requires_grad_()
            out = torch.nn.functional.linear(tensors["x"], tensors["w"])
            with torch.no_grad():
                tensors[grad].add_(1)
            found.append(torch.autograd.grad((out * out).sum(), tensors[grad])[0])
        torch.testing.assert_close(tessera.full_tensor(found[1]), found[0])

    ranks(2, body)


def test_deepcopy_copies_data_and_gradients(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = spread(torch.arange(4.0), mesh, "S0").requires_grad_()
        (x * 2).sum().backward()
        twin = copy.deepcopy(x)
        with torch.no_grad():
            x.zero_()
        assert tessera.full_tensor(twin.detach()).tolist() == [0, 1, 2, 3] and twin.requires_grad
        assert tessera.full_tensor(twin.grad).tolist() == [2] * 4

    ranks(2, body)


def test_a_plain_tensor_among_sharded_ones_needs_a_guard(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = spread(torch.ones(4), mesh, "S0")
        with pytest.raises(RuntimeError, match="a plain tensor of shape 4"):
            x + torch.ones(4)
        with tessera.implicit_replication():
            return tessera.full_tensor(x + torch.ones(4)).tolist()

    assert ranks(2, body)[0] == [2.0] * 4


def test_a_tensor_that_becomes_sharded_stays_on_its_device():
    with tessera.fake_world(1, 4):
        mesh = tessera.init_device_mesh("dp=4")
        weight = torch.nn.Parameter(torch.empty(8, 2, device="meta"))
        tessera.distribute_(weight, mesh, "S0", src_data_rank=None)
        assert weight.device.type == tessera.to_local(weight).device.type == "meta"
        assert tessera.to_local(weight).shape == (2, 2)


def test_errors_speak_of_the_tensors_that_the_caller_has(ranks):
    def body(rank):
        x = tessera.distribute_tensor(torch.ones(4, 6), tessera.init_device_mesh("tp=2"), "S0")
        with pytest.raises(RuntimeError, match=r"aten::mm of sharded tensors: tp=2 : \w+ : 4x6"):
            x @ x
        with pytest.raises(RuntimeError, match="implicit_replication"):
            x + torch.ones(4, 6)
        with pytest.raises(tessera.InvalidArgument, match="redistribute of a plain tensor"):
            tessera.redistribute(torch.ones(3), "R")

    ranks(2, body)

    def alone(rank):
        with pytest.raises(tessera.InvalidArgument, match="tessera launch -n 2, torchrun"):
            tessera.init_device_mesh("tp=2")

    ranks(1, alone)


@pytest.mark.parametrize("of_indexes", ["R", "S0"])
@pytest.mark.parametrize("placements", ["R", "S0", "S1", "S2"])
@pytest.mark.parametrize("rows", [7, 8])
def test_vmap_of_embedding_makes_indexes_of_its_own(ranks, placements, of_indexes, rows):
    """Whatever dim of the tables is sharded, no table is gathered, unless its rows are uneven: the tables
    become one, of which no placement says that each rank has the first four rows of every seven."""
    indexes = torch.tensor([[0, 2], [3, 6], [1, 1]])
    tables = torch.arange(9.0 * rows).view(3, rows, 3)
    embedding = torch.vmap(torch.nn.functional.embedding)
    expected = embedding(indexes, tables)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x, w = spread(indexes, mesh, of_indexes), spread(tables, mesh, placements)
        with tessera.Recorder(mesh) as recorder:
            found = embedding(x, w)
        assert all("int64" in str(event) for event in recorder.events) or (placements, rows) == ("S1", 7)
        return torch.equal(tessera.full_tensor(found), expected)

    assert ranks(2, body) == [True, True]


def test_a_plain_number_that_is_expanded_is_taken_as_a_number(ranks):
    full = torch.arange(24.0).reshape(4, 6)

    def body(rank):
        x = spread(full, tessera.init_device_mesh("dp=2"), "S0")
        for number in (torch.tensor(2.0).expand(4, 6), torch.full((1, 1), 2.0).expand(4, 6)):
            assert torch.equal(tessera.full_tensor(x * number), full * 2)
        mixed = "got mixed torch.Tensor and DTensor.* a plain tensor of shape 4x6"
        with pytest.raises(RuntimeError, match=mixed):
            x * torch.ones(4, 1).expand(4, 6)

    ranks(2, body)


def test_layouts_without_strides_are_refused_by_name(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        x = spread(torch.ones(4, 4), mesh, "S0")
        for refused in (
            lambda: torch.nested.nested_tensor([x, x]),
            lambda: x.to_sparse_csr(),
            lambda: torch.sparse.mm(torch.eye(4).to_sparse(), x),
            lambda: tessera.distribute_tensor(torch.eye(4).to_sparse(), mesh, "S0"),
        ):
            with pytest.raises(RuntimeError, match="cannot be sharded"):
                refused()

    ranks(2, body)


def test_a_chunked_loss_of_a_sharded_batch_gathers_no_chunks(ranks):
    functional = torch.nn.functional
    if not hasattr(functional, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    torch.manual_seed(0)
    x, w, target = torch.randn(64, 8), torch.randn(5, 8), torch.randint(0, 5, (64,))
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=1)
    expected = functional.linear_cross_entropy(x, w, target, options=options)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        a, b, t = spread(x, mesh, "S0"), spread(w, mesh, "R"), spread(target, mesh, "S0")
        a.requires_grad_()
        with tessera.Recorder(mesh) as recorder:
            loss = functional.linear_cross_entropy(a, b, t, options=options)
            loss.backward()
        assert len(recorder.events) <= 8
        return torch.allclose(tessera.full_tensor(loss.detach()), expected)

    assert ranks(2, body) == [True, True]


def test_distribute_tensor_keeps_channels_last(ranks):
    full = torch.randn(4, 6, 3, 2).to(memory_format=torch.channels_last)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for placements in ("S0", "S1", "S2", "R"):
            x = tessera.distribute_tensor(full, mesh, placements)
            assert x.stride() == full.stride()
            assert x.is_contiguous(memory_format=torch.channels_last)
            assert tessera.to_local(x).is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(tessera.full_tensor(x), full)

    ranks(2, body)


def test_max_pool1d_needs_no_gradient(ranks):
    full = torch.randn(4, 3, 10)
    expected = torch.nn.functional.max_pool1d(full, 3, stride=2, padding=1)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for placements in ("S0", "S1", "S2", "R"):
            x = spread(full, mesh, placements)
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with mode():
                    y = torch.nn.functional.max_pool1d(x, 3, stride=2, padding=1)
                    assert torch.equal(tessera.full_tensor(y), expected)

    ranks(2, body)
