"""The dtype that parameters report under a mixed precision policy, and when it switches."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera
from tessera.compat import fsdp as compat

LOW = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Watched(nn.Module):
    """Notes the type of a weight whenever its forward runs."""

    def __init__(self, fails=False):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []
        self.fails = fails

    def forward(self, x):
        self.seen.append(self.layer.weight.dtype)
        if self.fails:
            raise self.fails
        return self.layer(x)

    def features(self, x):
        self.seen.append(self.layer.weight.dtype)
        return self.layer(x.to(self.layer.weight.dtype))


def watched(policy=LOW, **options):
    net = Watched(**options)
    tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=policy)
    return net


ONES = torch.ones(2, 4)


def test_it_is_what_it_computes_as_only_while_it_computes(ranks):
    def body(rank):
        net = watched()
        weight = net.layer.weight
        assert weight.dtype == weight.t().dtype == torch.float32
        out = net(ONES)
        assert net.seen == [torch.bfloat16] and out.dtype == torch.bfloat16
        assert weight.dtype == weight.t().dtype == weight.detach().dtype == torch.float32
        weight.register_hook(lambda grad: net.seen.append((weight.dtype, grad.dtype)))
        out.sum().backward()
        assert net.seen[1] == (torch.bfloat16, torch.float32)
        assert weight.dtype == weight.grad.dtype == torch.float32
        assert all(v.dtype == torch.float32 for v in net.state_dict().values())
        assert tessera.full_tensor(weight.detach()).dtype == torch.float32

    ranks(2, body)


def test_after_unshard_it_is_what_it_computes_as_until_it_is_resharded(ranks):
    def body(rank):
        net = watched()
        weight = net.layer.weight
        tessera.unshard(net)
        assert weight.dtype == weight.t().dtype == torch.bfloat16
        assert F.linear(ONES.to(weight.dtype), weight).dtype == torch.bfloat16
        tessera.reshard(net)
        assert weight.dtype == torch.float32
        handle = tessera.unshard_async(net)
        handle.wait()
        assert weight.dtype == torch.bfloat16
        net(ONES).sum().backward()  # which reshards
        assert weight.dtype == torch.float32
        tessera.unshard(net)
        assert weight.dtype == torch.bfloat16
        with torch.no_grad():
            weight.mul_(1 + 2**-12)  # a write reaches the shards, unrounded, and outdates the copy
        assert weight.dtype == torch.float32
        tessera.unshard(net)
        assert all(v.dtype == torch.float32 for v in net.state_dict().values())

    ranks(2, body)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_step_after_unshard_is_that_of_parameters_at_rest(ranks, options):
    def body(rank):
        steps = []
        for unshards in (False, True):
            torch.manual_seed(0)
            net = watched()
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, **options)
            net(ONES).sum().backward()
            if unshards:
                tessera.unshard(net)
            optimizer.step()
            states = [v for state in optimizer.state.values() for v in state.values()]
            assert all(s.dtype == torch.float32 for s in states)
            steps.append([tessera.full_tensor(p.detach()) for p in net.parameters()])
        for a, b in zip(*steps, strict=True):
            assert torch.equal(a, b)

    ranks(2, body)


def test_state_taken_in_a_forward_is_what_rests(ranks):
    class Saves(Watched):
        def forward(self, x):
            self.state = self.state_dict()
            with torch.no_grad():
                self.layer.bias.mul_(0.5)  # a write reaches the shards, unrounded
            return super().forward(x)

    def body(rank):
        net = Saves()
        value = 1 + 2**-12  # bfloat16 would lose it
        nn.init.constant_(net.layer.bias, value)
        tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=LOW)
        net(ONES)
        assert {v.dtype for v in net.state.values()} == {torch.float32}
        assert tessera.full_tensor(net.layer.bias.detach()).tolist() == [value / 2] * 4

    ranks(2, body)


def test_what_reads_shards_in_a_forward_computes_in_the_type_that_is_reported(ranks):
    class Reads(Watched):
        def forward(self, x):
            with torch.no_grad():
                weight = self.layer.weight
                self.read = [weight.square(), weight.t() * 2, weight.float(), torch.zeros_like(weight)]
                self.read += [weight.view(torch.int16), weight.detach() + 1]
            return self.layer(x)

    copies = [Reads() for _ in range(2)]
    copies[1].load_state_dict(copies[0].state_dict())

    def body(rank):
        net = copies[rank]
        whole = net.layer.weight.detach().clone()
        tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=LOW)
        with torch.no_grad():
            net(ONES)
        low = whole.bfloat16()
        want = [low.square(), low.t() * 2, low.float(), torch.zeros_like(low)]
        want += [low.view(torch.int16), low + 1]
        for got, expected in zip(net.read, want, strict=True):
            assert got.dtype == expected.dtype
            assert torch.equal(torch.ones(()).to(got.dtype) * got, expected)

    ranks(2, body)


def test_a_forward_that_fails_leaves_parameters_at_rest(ranks):
    def body(rank):
        for error in (ValueError("no"), KeyboardInterrupt()):
            net = watched(fails=error)
            with pytest.raises(type(error)):
                net(ONES)
            net.fails = False
            net(ONES).sum().backward()
            assert net.layer.weight.dtype == torch.float32
            assert net.seen == [torch.bfloat16] * 2
        refuses = watched()
        refuses.register_forward_pre_hook(lambda *_: 1 / 0, prepend=True)  # before it is entered
        with pytest.raises(ZeroDivisionError):
            refuses(ONES)
        assert refuses.layer.weight.dtype == torch.float32

    ranks(2, body)


def test_a_backward_that_fails_leaves_parameters_at_rest(ranks):
    def body(rank):
        net = watched()
        handle = net.layer.bias.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net(ONES).sum().backward()
        assert net.layer.weight.dtype == torch.float32
        handle.remove()
        net.zero_grad()
        net(ONES).sum().backward()
        assert net.layer.weight.dtype == net.layer.weight.grad.dtype == torch.float32

    ranks(2, body)


def test_optimizers_may_step_in_hooks_of_backward(ranks):
    def body(rank):
        net = watched()
        own = {p: torch.optim.AdamW([p], lr=0.1) for p in net.parameters()}

        def step(parameter):
            net.seen.append({p.dtype for p in net.parameters()})
            own[parameter].step()
            own[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        before = tessera.full_tensor(net.layer.weight.detach())
        net(ONES).sum().backward()
        assert net.seen == [torch.bfloat16, {torch.float32}, {torch.float32}]
        states = [v for o in own.values() for s in o.state.values() for v in s.values()]
        assert all(v.dtype == torch.float32 for v in states if torch.is_tensor(v))
        after = tessera.full_tensor(net.layer.weight.detach())
        torch.testing.assert_close(after, before * (1 - 0.1 * 0.01) - 0.1, atol=1e-5, rtol=0)

    ranks(2, body)


def test_the_first_thing_a_backward_does_may_be_to_read_a_type(ranks):
    """Nothing has touched a parameter when a checkpointed lambda asks."""

    class Lambda(Watched):
        def forward(self, x):
            weight = self.layer.weight
            return checkpoint(
                lambda x: F.linear(x.float().to(weight.dtype), weight).float(), x, use_reentrant=False
            )

    def body(rank):
        net = Lambda()
        net.layer.bias = None
        tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=LOW)
        net(ONES).square().sum().backward()
        assert net.layer.weight.grad.dtype == torch.float32

    ranks(2, body)


def test_each_group_has_its_own_policy(ranks):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.less, self.full = Watched(), Watched(), Watched()

        def forward(self, x):
            self.seen = [m.layer.weight.dtype for m in (self.low, self.less, self.full)]
            return self.full(self.less(self.low(x)).float())

    def body(rank):
        net = Pair()
        mesh = tessera.init_device_mesh("dp=2")
        out = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        half = tessera.MixedPrecisionPolicy(param_dtype=torch.float16)
        tessera.fully_shard(net.low, mesh, mp_policy=out)
        tessera.fully_shard(net.less, mesh, mp_policy=half)
        tessera.fully_shard(net, mesh)
        net(ONES).sum().backward()
        assert net.seen == [torch.bfloat16, torch.float16, torch.float32]
        assert {p.grad.dtype for p in net.parameters()} == {torch.float32}
        assert net.low(ONES).dtype == torch.float32  # called alone, too

    ranks(2, body)


def test_tied_and_frozen_parameters(ranks):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(6, 4)
            self.frozen = nn.Linear(4, 4)
            self.frozen.requires_grad_(False)
            self.head = nn.Linear(4, 6)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            x = checkpoint(self.frozen, self.embed(tokens), use_reentrant=False)
            return self.head(x.float().to(self.head.weight.dtype))

    def body(rank):
        net = Tied()
        mesh = tessera.init_device_mesh("dp=2")
        for module in (net.frozen, net.head, net):
            tessera.fully_shard(module, mesh, mp_policy=LOW)
        net(torch.arange(6)).float().square().sum().backward()
        assert net.frozen.weight.grad is None
        assert net.embed.weight.dtype == net.embed.weight.grad.dtype == torch.float32
        assert net.head.weight is net.embed.weight

    ranks(2, body)


def test_methods_beside_forward(ranks):
    def body(rank):
        net = watched()
        with tessera.compute_dtype(net):
            net.features(ONES)
        module = compat.fully_shard(
            Watched(),
            mesh=tessera.init_device_mesh("dp=2"),
            mp_policy=compat.MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        )
        compat.register_fsdp_forward_method(module, "features")
        module.features(ONES).sum().backward()
        assert net.seen == module.seen == [torch.bfloat16]
        assert net.layer.weight.dtype == module.layer.weight.dtype == torch.float32
        net.layer(ONES.bfloat16())  # a module inside, called alone
        assert net.layer.weight.dtype == torch.float32

    ranks(2, body)


def test_errors_about_types_name_the_policy(ranks):
    def body(rank):
        keeps = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
        with pytest.raises(RuntimeError, match=r"mixed precision policy.*param_dtype") as error:
            watched(keeps)(ONES)
        assert "cast_forward_inputs" in str(error.value)
        net = nn.LSTM(4, 4)
        tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=keeps)
        with pytest.raises(ValueError, match="dtype") as error:
            net(ONES)
        assert "param_dtype" in error.value.__notes__[0]

    ranks(2, body)


def test_a_step_is_that_of_a_copy_in_low_precision(ranks):
    """To the last bit: reporting another type changes no value."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    copies = [copy.deepcopy(plain) for _ in range(2)]
    low = copy.deepcopy(plain).bfloat16()
    low(ONES.bfloat16()).float().square().sum().backward()

    def body(rank):
        net = copies[rank]
        tessera.fully_shard(net, tessera.init_device_mesh("dp=2"), mp_policy=LOW)
        net(ONES).float().square().sum().backward()
        for got, want in zip(net.parameters(), low.parameters(), strict=True):
            assert torch.equal(tessera.full_tensor(got.grad), want.grad.float())

    ranks(2, body)
