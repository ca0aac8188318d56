"""Models of the transformers library (random weights from a small config), exported and run by the C++ part:
the bits that Python gives, and the same values on several processes. Skipped where that library is absent."""

import subprocess

import pytest
import torch
from torch import nn

import tessera
from python_process import TESSERA

from real_models.registry import define_torchvision_ops

define_torchvision_ops()
transformers = pytest.importorskip("transformers")

TOKENS = 32
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class Logits(nn.Module):
    """The first result, of a call without a cache, as people export these models."""

    def __init__(self, model, **options):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x):
        return self.model(x, return_dict=False, **self.options)[0]


def language(model_class, config):
    return Logits(model_class(config).eval(), use_cache=False), torch.randint(0, TOKENS, (2, 7))


def llama():
    config = transformers.LlamaConfig(vocab_size=TOKENS, num_key_value_heads=2, tie_word_embeddings=True, **SMALL)
    return language(transformers.LlamaForCausalLM, config)


def qwen2():
    config = transformers.Qwen2Config(vocab_size=TOKENS, num_key_value_heads=2, **SMALL)
    return language(transformers.Qwen2ForCausalLM, config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    return language(transformers.GPT2LMHeadModel, config)


def bert():
    config = transformers.BertConfig(vocab_size=TOKENS, max_position_embeddings=16, **SMALL)
    return Logits(transformers.BertModel(config).eval()), torch.randint(0, TOKENS, (2, 7))


def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL)
    return Logits(transformers.ViTModel(config).eval()), torch.randn(2, 3, 16, 16)


def mixtral(**options):
    config = transformers.MixtralConfig(
        vocab_size=TOKENS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **SMALL, **options
    )
    return language(transformers.MixtralForCausalLM, config)


def mixtral_of_aten():
    """Experts by batched products; else newer versions of the library use an op of their own, in Python."""
    return mixtral(experts_implementation="batched_mm")


class Seq2Seq(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(input_ids=x, decoder_input_ids=x, use_cache=False, return_dict=False)[0]


def t5():
    config = transformers.T5Config(vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return Seq2Seq(transformers.T5ForConditionalGeneration(config).eval()), torch.randint(0, TOKENS, (2, 7))


def opt():
    config = transformers.OPTConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=16,
        word_embed_proj_dim=32,
    )
    return language(transformers.OPTForCausalLM, config)


def save_exported(make, path, decompositions):
    """Exports with these decompositions (None: as it comes), and returns the input."""
    torch.manual_seed(0)
    model, x = make()
    try:
        program = torch.export.export(model, (x,))
        torch.export.save(program if decompositions is None else program.run_decompositions(decompositions), path)
    except Exception as error:  # noqa: BLE001 - whether a version of that library exports is not ours to say
        pytest.skip(f"torch.export does not take it: {error}"[:300])
    return x


@pytest.mark.parametrize("decomposed", [False, True], ids=["raw", "decomposed"])
@pytest.mark.parametrize("make", [llama, qwen2, gpt2, bert, vit, mixtral])
def test_published_models_give_the_bits_that_python_gives(tmp_path, make, decomposed):
    path = tmp_path / "model.pt2"
    x = save_exported(make, path, {} if decomposed else None)
    with torch.no_grad():
        expected = torch.export.load(path).module()(x)
    (found,) = tessera.load_program(path).run([x])
    assert torch.equal(found, expected)


@pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")
@pytest.mark.parametrize(
    ("make", "mesh"),
    [
        (llama, "tp=4"),
        (gpt2, "tp=2"),
        (bert, "tp=3"),
        (vit, "tp=2"),
        (mixtral_of_aten, "tp=2"),
        (t5, "tp=2"),
        (opt, "dp=2,tp=2"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_published_models_compute_the_same_on_several_processes(tmp_path, make, mesh):
    path = tmp_path / "model.pt2"
    save_exported(make, path, None)
    for words in (
        ["shard", path, "--mesh", mesh, "--memory", "70%", "-o", tmp_path / "sharded"],
        ["verify", path, tmp_path / "sharded"],
    ):
        done = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for file in sorted((tmp_path / "sharded").glob("*.pt2")):
        torch.export.load(file).validate()
