"""Fake ranks on meta tensors: look-ups, maxima and random numbers have their shapes there."""

import pytest
import torch
import torch.nn.functional as F

import tessera

X = [(16, 8)]

# Floating point inputs, integer inputs, the call.
CALLS = {
    "embedding": (X, [(4, 8)], lambda w, i: F.embedding(i, w)),
    "embedding_padding": (X, [(4, 8)], lambda w, i: F.embedding(i, w, padding_idx=3)),
    "gather": (X, [(4, 8)], lambda x, i: x.gather(0, i)),
    "take_along_dim": (X, [(4, 8)], lambda x, i: torch.take_along_dim(x, i, 0)),
    "index_select": (X, [(4,)], lambda x, i: x.index_select(0, i)),
    "scatter_add": ([(16, 8), (4, 8)], [(4, 8)], lambda x, y, i: x.scatter_add(0, i, y)),
    "index": (X, [(4,)], lambda x, i: x[i]),
    "index_put": ([(16, 8), (4, 8)], [(4,)], lambda x, y, i: x.index_put((i,), y, accumulate=True)),
    "argmax_all": (X, [], lambda x: x.argmax()),
    "argmax": (X, [], lambda x: x.argmax(0)),
    "argmin": (X, [], lambda x: x.argmin(1, keepdim=True)),
    "max": (X, [], lambda x: x.max()),
    "median": (X, [], lambda x: x.median()),
    "nanmedian_dim": (X, [], lambda x: x.nanmedian(1).values),
    "kthvalue": (X, [], lambda x: x.kthvalue(2, 1).values),
    "prod": (X, [], lambda x: x.prod()),
    "cumprod": (X, [], lambda x: x.cumprod(1)),
    "max_dim": (X, [], lambda x: x.max(0).values),
    "min_dim": (X, [], lambda x: x.min(1).indices),
    "amax": (X, [], lambda x: x.amax(0)),
    "aminmax": (X, [], lambda x: torch.aminmax(x, dim=0)[0]),
    "topk": (X, [], lambda x: x.topk(3, 0).values),
    "topk_small": ([(64, 8)], [], lambda x: x.topk(1, 0).indices),
    "sort": (X, [], lambda x: x.sort(1).values),
    "argsort": (X, [], lambda x: x.argsort(0)),
    "cumsum": (X, [], lambda x: x.cumsum(0)),
    "randn_like": (X, [], torch.randn_like),
    "rand_like": (X, [], torch.rand_like),
    "randint_like": (X, [], lambda x: torch.randint_like(x, 5)),
    "bernoulli": (X, [], torch.bernoulli),
    "normal": (X, [], lambda x: torch.normal(x, 1.0)),
    "dropout": (X, [], lambda x: F.dropout(x, 0.5)),
    "index_add": ([(16, 8), (4, 8)], [(4,)], lambda x, y, i: x.index_add(0, i, y)),
    "logcumsumexp": (X, [], lambda x: x.logcumsumexp(0)),
    "masked_fill": (X, [], lambda x: x.masked_fill(x > 0, 0.0)),
    "gelu": (X, [], F.gelu),
    "softmax": (X, [], lambda x: x.softmax(0)),
    "norm": (X, [], lambda x: x.norm()),
    "layer_norm": (X, [], lambda x: F.layer_norm(x, (8,))),
    "batch_norm": ([(4, 8, 3, 3)], [], lambda x: F.batch_norm(x, None, None, training=True)),
    "cross_entropy": (X, [(16,)], F.cross_entropy),
    "linear": ([(16, 8), (4, 8)], [], F.linear),
    "einsum": ([(16, 8), (8, 4)], [], lambda x, w: torch.einsum("ij,jk->ik", x, w)),
    "attention": (
        [(2, 4, 8, 8)] * 3,
        [],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "conv2d": ([(2, 4, 8, 8), (4, 4, 3, 3)], [], lambda x, w: F.conv2d(x, w, padding=1)),
    "max_pool2d": ([(4, 8, 4, 4)], [], lambda x: F.max_pool2d(x, 2)),
}


def inputs(floats, integers):
    plain = [torch.empty(shape, device="meta") for shape in floats]
    return plain + [torch.empty(shape, device="meta", dtype=torch.long) for shape in integers]


def shard(tensor, mesh, placements):
    if tensor.dim() < 2 and "S1" in placements:
        placements = "R,R"
    out = tessera.distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    return out.requires_grad_() if out.is_floating_point() else out


@pytest.mark.parametrize("name", CALLS)
def test_fake_ranks_plan(name):
    floats, integers, call = CALLS[name]
    try:
        expected = call(*inputs(floats, integers))
        if expected.requires_grad:
            expected.sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"not on plain meta tensors either: {error}"[:200])
    with tessera.fake_world(3, 8):
        mesh = tessera.init_device_mesh("dp=2,tp=4")
        for placements in ("S0,S1", "R,S0", "S0,S0", "R,R"):
            given = [shard(x, mesh, placements) for x in inputs(floats, integers)]
            got = call(*given)
            assert tessera.is_dtensor(got), placements
            assert got.shape == expected.shape and got.dtype == expected.dtype, placements
            if not got.requires_grad or not expected.requires_grad:
                continue
            got.sum().backward()
            for x in given:
                if x.grad is not None:
                    assert tessera.is_dtensor(x.grad), placements
                    assert x.grad.shape == x.shape


def test_plain_meta_tensors_do_not_hide_beside_sharded_ones():
    with tessera.fake_world(0, 8):
        x = tessera.distribute_tensor(
            torch.empty(16, 8, device="meta"), tessera.init_device_mesh("tp=8"), "S0", src_data_rank=None
        )
        plain = torch.empty(8, device="meta")
        with pytest.raises(RuntimeError, match="plain tensor of shape 8 among sharded ones"):
            x + plain
        with tessera.implicit_replication():
            assert tessera.placements(x + plain) == tessera.placements(x)
        with pytest.raises(RuntimeError, match="item"):
            x.sum().item()


def test_fully_sharded_meta_parameters_plan_a_step():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        data = torch.empty(4, 8)
    with tessera.fake_world(5, 8):
        mesh = tessera.init_device_mesh("dp=8")
        tessera.fully_shard(model[0], mesh)
        tessera.fully_shard(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        with tessera.Recorder() as recorder:
            out = model(data)
            out.sum().backward()
            optimizer.step()
        assert out.shape == (4, 8) and not tessera.is_dtensor(out)
        for parameter in model.parameters():
            assert parameter.grad.shape == parameter.shape
            assert tessera.placements(parameter.grad) == tessera.placements(parameter)
        assert {event.op for event in recorder.events} == {"all_gather", "reduce_scatter"}
