"""Attention inside context_parallel whose keys are of another length than its queries."""

import pytest
import torch
import torch.nn.functional as F

import tessera

METHODS = ["ring", "all_gather", "all_to_all"]


def numbers(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def inputs(queries, keys, heads=4, key_heads=4):
    return (numbers(2, heads, queries, 4, seed=1), numbers(2, key_heads, keys, 4, seed=2),
            numbers(2, key_heads, keys, 3, seed=3))


def reference(whole, **options):
    whole = [x.clone().requires_grad_() for x in whole]
    out = F.scaled_dot_product_attention(*whole, **options)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in whole)]


def check(rank, ranks, whole, *, balanced, method, as_buffers, wanted, **options):
    """Results and gradients are those of one rank."""
    mesh = tessera.init_device_mesh(f"cp={ranks}")
    if as_buffers:
        local = [x.clone() for x in whole]
        scope = {"buffers": local, "buffer_seq_dims": [2, -2, 2]}
    else:
        local = [tessera.to_local(tessera.distribute_tensor(laid_out(x, ranks, balanced), mesh, "S2")).clone()
                 for x in whole]
        scope = {}
    with tessera.context_parallel(mesh, method=method, load_balance=balanced, **scope):
        for x in local:
            x.requires_grad_()
        out = F.scaled_dot_product_attention(*local, **options)
        out.square().sum().backward()
        results = [out.detach(), *(x.grad for x in local)]
        for x in local:
            x.requires_grad_(False)
            x.grad = None
    got = tessera.context_parallel_unshard(mesh, results, [2] * 4, load_balance=balanced)
    for own, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(own, other)


def laid_out(x, ranks, balanced):
    return tessera.reorder_sequence(x, 2, tessera.SequenceOrder.head_tail(x.size(2), ranks)) if balanced else x


@pytest.mark.parametrize("as_buffers", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_keys_of_another_length(method, balanced, as_buffers):
    for ranks in (2, 4):
        for queries, keys in [(8, 16), (16, 8), (8, 8)]:
            for options in ({}, {"is_causal": True}, {"scale": 0.3}):
                whole = inputs(queries, keys)
                wanted = reference(whole, **options)
                tessera.run_ranks(ranks, lambda rank: check(
                    rank, ranks, whole, balanced=balanced, method=method, as_buffers=as_buffers,
                    wanted=wanted, **options))


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_buffers_that_do_not_divide_evenly(method, balanced):
    for queries, keys in [(7, 10), (10, 7), (3, 9), (9, 2), (5, 8)]:
        for options in ({}, {"is_causal": True}):
            whole = inputs(queries, keys)
            wanted = reference(whole, **options)
            tessera.run_ranks(4, lambda rank: check(
                rank, 4, whole, balanced=balanced, method=method, as_buffers=True, wanted=wanted, **options))


def test_grouped_queries():
    whole = inputs(8, 12, heads=4, key_heads=2)
    for options in ({"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}):
        wanted = reference(whole, **options)
        tessera.run_ranks(2, lambda rank: check(
            rank, 2, whole, balanced=True, method="ring", as_buffers=True, wanted=wanted, **options))


def test_a_mask_has_the_order_of_the_tensors():
    whole = inputs(8, 12)
    mask = numbers(8, 12, seed=4) > 0
    mask[:, 0] = True
    wanted = reference(whole, attn_mask=mask)
    tessera.run_ranks(2, lambda rank: check(
        rank, 2, whole, balanced=False, method="ring", as_buffers=True, wanted=wanted, attn_mask=mask))


class CrossAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(6, 6).double() for _ in range(3))
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(numbers(*parameter.shape, seed=i))

    def forward(self, text, image, is_causal):
        q, k, v = (layer(x).unflatten(-1, (2, 3)).transpose(1, 2)
                   for layer, x in ((self.q, text), (self.k, image), (self.v, image)))
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("method", METHODS)
# With 21 and 24 the first of four ranks has six rows of both.
@pytest.mark.parametrize(("queries", "keys"), [(8, 12), (21, 24), (24, 21), (7, 2)])
def test_an_unmodified_model_whose_tensors_are_computed_from_buffers(method, queries, keys, is_causal):
    text, image = numbers(2, queries, 6, seed=5), numbers(2, keys, 6, seed=6)
    plain = CrossAttention()
    want = plain(text, image, is_causal)
    want.square().sum().backward()
    ranks = 2 if (queries, keys) == (7, 2) else 4

    def body(rank):
        mesh = tessera.init_device_mesh(f"cp={ranks}")
        model = CrossAttention()
        mine, other = text.clone(), image.clone()
        with tessera.context_parallel(mesh, buffers=[other, mine], buffer_seq_dims=[1, 1], method=method):
            out = model(mine, other, is_causal)
            out.square().sum().backward()
        torch.testing.assert_close(
            tessera.context_parallel_unshard(mesh, [out.detach()], [1])[0], want.detach())
        for own, parameter in zip(model.parameters(), plain.parameters()):
            total = tessera.full_tensor(tessera.from_local(own.grad, mesh, "P(sum)"))
            torch.testing.assert_close(total, parameter.grad)
        assert torch.equal(mine, text) and torch.equal(other, image)

    tessera.run_ranks(ranks, body)


@pytest.mark.parametrize(("lengths", "as_buffers", "messages"), [
    ((8, 16), True, 0), ((8, 16), False, 0), ((7, 10), True, 0), ((7, 10), False, 1)])
def test_sizes_are_exchanged_only_where_they_cannot_be_known(lengths, as_buffers, messages):
    def body(rank):
        mesh = tessera.init_device_mesh("cp=2")
        buffers = list(inputs(*lengths))
        with tessera.context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2], method="all_gather"):
            q, k, v = buffers if as_buffers else [x * 1 for x in buffers]
            with tessera.Recorder() as recorder:
                F.scaled_dot_product_attention(q, k, v)
        return len(recorder.events)

    plain = tessera.run_ranks(2, lambda rank: gathers_of_keys())[0]
    assert tessera.run_ranks(2, body)[0] == plain + messages


def gathers_of_keys():
    mesh = tessera.init_device_mesh("cp=2")
    q, k, v = (tessera.distribute_tensor(x, mesh, "S2", src_data_rank=None) for x in inputs(7, 10))
    with tessera.Recorder() as recorder:
        tessera.context_parallel_attention(q, k, v, method="all_gather")
    return len(recorder.events)
