"""Plans of words, as they come with transformers' models, on modules of the same form; and what of
torch.distributed.tensor.parallel is for wrappers of plain parameters."""

import copy
import types

import pytest
import torch
from torch import nn

import tessera
from tessera.compat.parallel.ddp import _pre_dp_module_transform
from tessera.compat.parallel.fsdp import DTensorExtensions


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).mul(0.7).sin().view(shape)


def whole(tensor):
    return tessera.full_tensor(tensor) if tessera.is_dtensor(tensor) else tensor


def check_as_plain(plain, plan, *inputs):
    """The result and all gradients of a model with the plan are those of the plain model."""
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(numbers(*parameter.shape))
    expected = copy.deepcopy(plain)
    out = expected(*inputs)
    out.square().sum().backward()

    def body(rank):
        model = copy.deepcopy(plain)
        tessera.parallelize_module(model, tessera.init_device_mesh("tp=2"), plan)
        got = model(*inputs)
        got.square().sum().backward()
        torch.testing.assert_close(whole(got), out, rtol=0, atol=1e-10)
        for (name, own), other in zip(model.named_parameters(), expected.parameters()):
            torch.testing.assert_close(whole(own.grad), other.grad, rtol=0, atol=1e-9, msg=name)
        return sum(tessera.is_dtensor(p) for p in model.parameters())

    return tessera.run_ranks(2, body)[0]


class LatentAttention(nn.Module):
    """Keys from a latent, and a rotary part that all heads share."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(qk_rope_head_dim=2)
        self.q = nn.Linear(6, 4 * 5)
        self.kv_a = nn.Linear(6, 4 + 2)
        self.kv_b = nn.Linear(4, 4 * 6)
        self.o = nn.Linear(4 * 3, 6)
        self.sinks = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        latent, rotary = self.kv_a(x).split([4, 2], -1)
        q = self.q(x).unflatten(-1, (-1, 5)).transpose(0, 1)
        k, v = self.kv_b(latent).unflatten(-1, (-1, 6)).transpose(0, 1).split([3, 3], -1)
        k = torch.cat([k, rotary.expand(k.shape[0], -1, -1)], -1)
        scores = q @ k.transpose(1, 2) + self.sinks[:, None, None]
        return self.o((scores.sigmoid() @ v).transpose(0, 1).flatten(1))


def test_latent_attention_and_numbers_of_heads():
    plan = {"q": "colwise", "kv_a": "mla_kv_a_proj", "kv_b": "colwise", "o": "rowwise",
            "sinks": "colwise", "": "local_params"}
    assert check_as_plain(LatentAttention().double(), plan, numbers(3, 6)) == 7


def test_latent_attention_needs_the_size_of_the_rotary_part():
    model = LatentAttention()
    del model.config

    def body(rank):
        with pytest.raises(tessera.InvalidArgument, match="qk_rope_head_dim"):
            tessera.parallelize_module(model, tessera.init_device_mesh("tp=2"),
                                       {"kv_a": "mla_kv_a_proj"})
        return True

    assert all(tessera.run_ranks(2, body))


class Experts(nn.Module):
    """Matrices of three experts, gate and up in one; rows are weighted by keyword."""

    def __init__(self):
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(3, 8, 6))
        self.down = nn.Parameter(torch.zeros(3, 6, 4))
        self.scale = nn.Parameter(torch.zeros(6))

    def forward(self, x, *, weights):
        gate, up = torch.einsum("td,efd->tef", x, self.gate_up).chunk(2, -1)
        out = torch.einsum("tef,edf->ted", torch.sigmoid(gate) * up, self.down)
        return (out * weights[..., None]).sum(1)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = Experts()
        self.dense = nn.ModuleDict({"gate_up": nn.Linear(6, 8), "down": nn.Linear(4, 6, bias=False)})

    def forward(self, x):
        gate, up = self.dense["gate_up"](x).chunk(2, -1)
        x = x + self.dense["down"](gate.sigmoid() * up)
        return x * self.experts.scale + self.experts(x, weights=self.router(x).softmax(-1))


MIXTURE = {"experts.gate_up": "packed_colwise", "experts.down": "rowwise", "experts.scale": "replicate",
           "experts": "moe_tp_experts", "dense.gate_up": "packed_colwise", "dense.down": "rowwise"}


def test_experts_with_keywords_and_packed_modules():
    assert check_as_plain(Mixture().double(), MIXTURE, numbers(5, 6)) == 5


def test_a_word_whose_path_matches_nothing_is_a_warning():
    """The plan of a family names modules that one of its variants does not have."""
    plan = {**MIXTURE, "layers.*.shared_experts.gate_proj": "colwise", "dense.gat": "packed_rowwise"}
    with pytest.warns(UserWarning, match="dense.gat"):
        assert check_as_plain(Mixture().double(), plan, numbers(5, 6)) == 5


def test_a_plan_of_which_nothing_matches_is_an_error():
    def body(rank):
        with pytest.raises(tessera.InvalidArgument, match=r"'dens\.up'.*dense"):
            tessera.parallelize_module(Mixture(), tessera.init_device_mesh("tp=2"),
                                       {"dens.up": "colwise"})
        return True

    assert all(tessera.run_ranks(2, body))


class Addends(nn.Module):
    """Each rank has columns of one matrix and rows of the next; the sum is left to a style."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


def test_results_that_are_summed():
    plan = {"": "all_reduce", "up": "colwise",
            "down": tessera.RowwiseParallel(output_layouts=tessera.Partial())}
    check_as_plain(Addends().double(), plan, numbers(5, 6))


class WithIdentity(nn.Module):
    """Experts of which one has no weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.experts = nn.Sequential()
        self.experts.add_module("identity", nn.Identity())

    def forward(self, x):
        return self.experts(self.first(x))


def test_an_expert_without_weights_counts_once():
    plan = {"experts": "moe_tp_experts", "experts.identity": "moe_identity_expert"}
    check_as_plain(WithIdentity().double(), plan, numbers(5, 6))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens).square())


def test_plain_parameters_in_the_place_of_tied_shards():
    """As DistributedDataParallel needs them: their gradients are those of the shards."""
    plain = Tied().double()
    tokens = torch.tensor([[3, 9, 0]])
    expected = copy.deepcopy(plain)
    out = expected(tokens)
    out.square().sum().backward()

    def body(rank):
        model = copy.deepcopy(plain)
        replicated = tessera.Replicate()
        tessera.parallelize_module(model, tessera.init_device_mesh("tp=2"), {
            "embedding": tessera.RowwiseParallel(input_layouts=replicated),
            "head": tessera.ColwiseParallel(output_layouts=replicated),
        })
        _pre_dp_module_transform(model)
        for _ in range(2):
            model.zero_grad()
            got = model(tokens)
            assert model.head.weight is model.embedding.weight
            assert not tessera.is_dtensor(model.head.weight)
            torch.testing.assert_close(got, out)
            got.square().sum().backward()
            wanted = expected.head.weight.grad.chunk(2)[rank]
            torch.testing.assert_close(model.head.weight.grad, wanted)
        return [tuple(p.shape) for p in model.parameters()]

    assert tessera.run_ranks(2, body) == [[(5, 6)]] * 2


def test_fully_sharded_data_parallel_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="fully_shard"):
        DTensorExtensions()


FAMILIES = {"Llama": {}, "Qwen2": {}, "Qwen3": {"head_dim": 4},
            "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2,
                        "experts_implementation": "eager"},
            "Gemma": {"head_dim": 4}, "Mistral": {}, "Phi": {}, "Phi3": {"pad_token_id": 0}, "Olmo2": {},
            "Starcoder2": {}, "GPTNeoX": {"hidden_dropout": 0.0},
            "DeepseekV2": {"q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
                           "qk_nope_head_dim": 4, "v_head_dim": 4, "first_k_dense_replace": 1,
                           "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                           "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 8,
                           "num_key_value_heads": 4, "experts_implementation": "eager"}}


def hidden_and_gradients(model, tokens):
    out = model(tokens).last_hidden_state
    out.square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {"hidden": out.detach()} | {
        name: tessera.full_tensor(g) if tessera.is_dtensor(g) else g for name, g in grads.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_transformers_are_accepted(family):
    transformers = pytest.importorskip("transformers")
    sizes = {"num_key_value_heads": 2, **FAMILIES[family]}
    config = getattr(transformers, f"{family}Config")(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=20,
        attn_implementation="sdpa", **sizes)
    torch.manual_seed(1)
    plain = getattr(transformers, f"{family}Model")(config).double().eval()
    tokens = torch.arange(6).reshape(1, 6)
    expected = hidden_and_gradients(copy.deepcopy(plain), tokens)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = copy.deepcopy(plain)
        tessera.parallelize_module(model, mesh, dict(config.base_model_tp_plan))
        return hidden_and_gradients(model, tokens)

    for got in tessera.run_ranks(2, body):
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=0, atol=1e-9, msg=name)
