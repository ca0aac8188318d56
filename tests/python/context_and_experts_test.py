"""Context and expert parallelism: what ranks compute together is what one computes alone."""

import functools

import pytest
import torch
import torch.nn.functional as F

import tessera
from tessera.compat import experimental
from tessera.compat import parallel as compat_parallel
from tessera.compat.experimental import _attention as compat_attention

METHODS = ["ring", "all_gather", "all_to_all"]


def numbers(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_attention_equals_the_full_one(method):
    q, k, v = numbers(2, 4, 13, 8, seed=1), numbers(2, 2, 13, 8, seed=2), numbers(2, 2, 13, 8, seed=3)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def run(rank):
        mesh = tessera.init_device_mesh("cp=2")
        order = tessera.SequenceOrder.head_tail(13, 2)
        put = lambda t: tessera.distribute_tensor(tessera.reorder_sequence(t, 2, order), mesh, "S2")
        out = tessera.context_parallel_attention(
            put(q), put(k), put(v), is_causal=True, method=method, order=order
        )
        assert_close(tessera.restore_sequence(tessera.full_tensor(out), 2, order), want)

    tessera.run_ranks(2, run)


def test_a_mask_may_be_a_python_function():
    x = numbers(1, 2, 16, 4, seed=1)
    near = lambda q, k: (q - k).abs() < 3
    grad = x.clone().requires_grad_()
    want = F.scaled_dot_product_attention(grad, x, x, near(torch.arange(16)[:, None], torch.arange(16)))
    want.sum().backward()

    def run(rank):
        mesh = tessera.init_device_mesh("cp=4")
        part = tessera.distribute_tensor(x, mesh, "S2")
        q = tessera.distribute_tensor(x, mesh, "S2").requires_grad_()
        out = tessera.context_parallel_attention(q, part, part, mask_function=near)
        assert_close(tessera.full_tensor(out.detach()), want.detach())
        out.sum().backward()
        assert_close(tessera.full_tensor(q.grad), grad.grad)

    tessera.run_ranks(4, run)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48, dtype=torch.float64)
        self.out = torch.nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.view(x.size(0), x.size(1), 4, 4).transpose(1, 2) for p in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(x.shape))


def model_and_result():
    torch.manual_seed(5)
    model = Attention()
    x = numbers(2, 24, 16, seed=4)
    y = model(x)
    (y - x).pow(2).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return x, y.detach(), gradients, {n: p.detach().clone() for n, p in model.state_dict().items()}


@pytest.mark.parametrize("length", [24, 21])
@pytest.mark.parametrize("method", METHODS)
def test_buffers_are_sharded_and_restored_and_an_unmodified_model_attends_over_all(method, length):
    x, _, _, state = model_and_result()
    x = x[:, :length].contiguous()
    model = Attention()
    model.load_state_dict(state)
    y = model(x)
    (y - x).pow(2).sum().backward()

    def run(rank):
        mesh = tessera.init_device_mesh("cp=4")
        mine = Attention()
        mine.load_state_dict(state)
        inputs, kept = x.clone(), x.clone()
        with tessera.context_parallel(
            mesh, buffers=[inputs, kept], buffer_seq_dims=[1, 1], no_restore_buffers={kept},
            method=method,
        ):
            assert inputs.size(1) == (length + 3) // 4 or rank == 3
            out = mine(inputs)
            (out - inputs).pow(2).sum().backward()
        assert torch.equal(inputs, x) and kept.size(1) < length
        assert_close(tessera.context_parallel_unshard(mesh, [out.detach()], [1])[0], y.detach())
        for name, parameter in mine.named_parameters():
            total = tessera.full_tensor(tessera.from_local(parameter.grad, mesh, "P(sum)"))
            assert_close(total, dict(model.named_parameters())[name].grad)

    tessera.run_ranks(4, run)


def test_outside_the_scope_nothing_is_changed():
    x = numbers(1, 1, 4, 4, seed=1)
    before = F.scaled_dot_product_attention(x, x, x)

    def run(rank):
        mesh = tessera.init_device_mesh("cp=2")
        with pytest.raises(RuntimeError, match="inside"):
            with tessera.context_parallel(mesh):
                raise RuntimeError("inside")
        assert_close(F.scaled_dot_product_attention(x, x, x), before)
        with tessera.context_parallel(mesh), pytest.raises(tessera.NotSupported, match="dropout"):
            F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        with pytest.raises(ValueError, match="same number"):
            with tessera.context_parallel(mesh, buffers=[x]):
                pass

    tessera.run_ranks(2, run)


@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
def test_the_names_of_torch(rotate):
    x, y, _, state = model_and_result()
    experimental.set_rotate_method(rotate)
    try:

        def run(rank):
            mesh = tessera.init_device_mesh("cp=2")
            mine = Attention()
            mine.load_state_dict(state)
            inputs = x.clone()
            with experimental.context_parallel(mesh, buffers=[inputs], buffer_seq_dims=[1]):
                out = mine(inputs).detach()
            assert_close(experimental.context_parallel_unshard(mesh, [out], [1])[0], y)
            balancer = experimental._HeadTailLoadBalancer(24, 2, "cpu")
            parts = experimental._context_parallel_shard(mesh, [x], [1], balancer)
            assert_close(experimental.context_parallel_unshard(mesh, parts, [1], balancer)[0], x)
            index = balancer._generate_indices()
            assert index[0].tolist()[:12] == [*range(6), *range(18, 24)]

        tessera.run_ranks(2, run)
    finally:
        experimental.set_rotate_method("allgather")
    with pytest.raises(NotImplementedError, match="sideways"):
        experimental.set_rotate_method("sideways")


@pytest.mark.parametrize("capacity", [None, 0.5])
def test_experts_equal_one_rank(capacity):
    x, gate = numbers(20, 6, seed=1), numbers(20, 2, seed=2)
    choice = torch.randint(0, 4, (20, 2), generator=torch.Generator().manual_seed(3))
    weight = numbers(4, 6, 5, seed=4)

    def run(n):
        def body(rank):
            mesh = tessera.init_device_mesh(f"ep={n}")
            put = lambda t: tessera.distribute_tensor(t, mesh, "S0").requires_grad_(t is not choice)
            tokens, w = put(x), put(weight)
            out, load = tessera.expert_parallel(
                tokens, put(choice), put(gate), lambda rows, e: e.matmul(rows, w).tanh(),
                experts=4, capacity_factor=capacity,
            )
            out.pow(2).sum().backward()
            full = [tessera.full_tensor(t) for t in (out.detach(), tokens.grad, w.grad)]
            return full, load.kept, load.dropped, str(load)

        return tessera.run_ranks(n, body)[0]

    want, kept, dropped, _ = run(1)
    got, kept_by_four, dropped_by_four, text = run(4)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    assert kept == kept_by_four and dropped == dropped_by_four
    assert (dropped > 0) == (capacity is not None)
    assert "rows of experts" in text


class Wrapped(torch.nn.Module):
    """A module around attention, which _ContextParallel is for."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def attention_inputs(length, heads=2):
    shape = (2, heads, length, 4)
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in range(3)]


def head_tail(length, size, balanced):
    return experimental._HeadTailLoadBalancer(length, size, "cpu") if balanced else None


def check_style(rank, size, kind, function, whole, balancer, kwargs, wanted):
    """The style on this rank's part of the sequence, against `wanted`: result and gradients."""
    mesh = tessera.init_device_mesh(f"cp={size}")
    length = whole[0].shape[2]
    buffers = [x.detach() for x in whole] + list(kwargs.values())
    parts = experimental._context_parallel_shard(mesh, buffers, [2] * len(buffers), balancer)
    local = [part.clone().requires_grad_(whole[0].requires_grad) for part in parts[:3]]
    kwargs = dict(zip(kwargs, parts[3:]))
    style = compat_attention._ContextParallel(2, kind)
    module = compat_parallel.parallelize_module(Wrapped(function), mesh, style)
    out = module(local[0], local[1], value=local[2], **kwargs)
    results = [out.detach()]
    if out.requires_grad:
        out.square().sum().backward()
        results += [x.grad for x in local]
    got = experimental.context_parallel_unshard(
        mesh, results, [2] * len(results),
        balancer or compat_attention._LoadBalancer(tessera.SequenceOrder(), length, "cpu"))
    for own, other in zip(got, wanted, strict=True):
        assert_close(own, other)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
def test_the_style_of_context_parallelism_for_sdpa(ranks, balanced, rotate):
    function = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    whole = attention_inputs(8)
    out = function(*whole)
    out.square().sum().backward()
    wanted = [out.detach(), *(x.grad for x in whole)]
    experimental.set_rotate_method(rotate)
    try:
        kind = experimental._ContextParallel.AttentionType.SDPA
        balancer = head_tail(8, 2, balanced)
        ranks(2, lambda rank: check_style(rank, 2, kind, function, whole, balancer, {}, wanted))
    finally:
        experimental.set_rotate_method("allgather")


def documents_mask(length, block=128):
    """Causal within documents of a half, a quarter and a quarter of the sequence."""
    from torch.nn.attention import flex_attention as flex

    document = torch.arange(length) * 4 // length
    document = document.clamp_min(1)

    def keeps(b, h, q, k):
        return (q >= k) & (document[q] == document[k])

    return flex.create_block_mask(keeps, None, None, length, length, device="cpu", BLOCK_SIZE=block)


def check_flex(rank, size, balance):
    from torch.nn.attention import flex_attention as flex

    torch.manual_seed(0)
    length = 512
    whole = [x.detach() for x in attention_inputs(length, heads=1)]  # no gradients on the CPU
    mask = documents_mask(length)
    wanted = [flex.flex_attention(*whole, block_mask=mask)]
    kind = experimental._ContextParallel.AttentionType.FLEX
    if balance == "blocks":
        balancer = compat_attention._PTRRLoadBalancer(mask, size)
    else:
        balancer = head_tail(length, size, balance == "head_tail")
    masks = {"block_mask": mask}
    check_style(rank, size, kind, flex.flex_attention, whole, balancer, masks, wanted)


@pytest.mark.parametrize("ranks_of_mesh", [2, 4])
def test_the_balance_of_blocks_is_pytorchs(ranks_of_mesh):
    from torch.distributed.tensor.experimental._attention import _PTRRLoadBalancer

    mask = documents_mask(256, block=16)
    ours = compat_attention._PTRRLoadBalancer(mask, ranks_of_mesh)
    theirs = _PTRRLoadBalancer(mask, ranks_of_mesh)
    for restore in (False, True):
        assert torch.equal(ours._generate_indices(restore), theirs._generate_indices(restore))
    work = torch.tensor([9, 14, 2, 20, 10, 15, 8, 14, 16, 19, 15, 3])
    dealt = compat_attention._PTRRLoadBalancer.ptrr_scheduling(work, ranks_of_mesh)
    assert torch.equal(dealt, _PTRRLoadBalancer.ptrr_scheduling(work, ranks_of_mesh))


def test_blocks_that_cannot_be_balanced_are_refused():
    with pytest.raises(NotImplementedError, match="not divisible"):
        compat_attention._PTRRLoadBalancer(documents_mask(256, block=16), 3)
    with pytest.raises(NotImplementedError, match="whole square blocks"):
        compat_attention._PTRRLoadBalancer(documents_mask(250, block=16), 2)


def test_gathered_keys_get_the_gradients_of_all_ranks(ranks):
    def attend(query, key, value):
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value

    whole = attention_inputs(7)
    out = attend(*whole)
    out.square().sum().backward()
    wanted = [out.detach(), *(x.grad for x in whole)]
    kind = experimental._ContextParallel.AttentionType.FLEX
    balancer = head_tail(7, 2, balanced=True)
    ranks(2, lambda rank: check_style(rank, 2, kind, attend, whole, balancer, {}, wanted))


def test_the_style_of_context_parallelism_for_flex_attention(torchrun):
    """On processes: tracing a mask is not for several threads at a time."""
    torchrun(
        2,
        """
        import torch
        import torch.distributed as dist
        from context_and_experts_test import check_flex
        dist.init_process_group("gloo")
        for balance in (None, "head_tail", "blocks"):
            check_flex(dist.get_rank(), 2, balance)
        dist.destroy_process_group()
        """,
    )


def test_what_a_rank_of_the_ring_sees_is_said_as_in_pytorch():
    from torch.distributed.tensor.experimental import _attention as theirs

    for balanced in (False, True):
        compat_attention._cp_options.enable_load_balance = balanced
        theirs._cp_options.enable_load_balance = balanced
        for rank in range(3):
            for i in range(3):
                for is_causal in (False, True):
                    own = compat_attention._is_causal_behavior(rank, 3, i, is_causal)
                    peer = theirs._is_causal_behavior(rank, 3, i, is_causal)
                    assert (own.name, own.value) == (peer.name, peer.value)


ON_PROCESSES = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tessera
from context_and_experts_test import Attention, model_and_result, assert_close
from tessera.compat.experimental import context_parallel, context_parallel_unshard, set_rotate_method

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
x, y, gradients, state = model_and_result()
for rotate in ("allgather", "alltoall"):
    set_rotate_method(rotate)
    model = Attention()
    model.load_state_dict(state)
    inputs = x.clone()
    with context_parallel(mesh, buffers=[inputs], buffer_seq_dims=[1]):
        out = model(inputs)
        (out - inputs).pow(2).sum().backward()
    assert_close(context_parallel_unshard(mesh, [out.detach()], [1])[0], y)
    for name, parameter in model.named_parameters():
        dist.all_reduce(parameter.grad)
        assert_close(parameter.grad, gradients[name])
print("all right on rank", dist.get_rank())
dist.destroy_process_group()
"""


def test_a_mesh_of_torch_on_processes(torchrun):
    assert torchrun(2, ON_PROCESSES).count("all right on rank") == 2
