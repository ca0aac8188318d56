"""Models of the transformers library (random weights from a small config), exported and run by the C++ part:
the bits that Python gives. Skipped where that library is absent."""

import pytest
import torch
from torch import nn

import tessera

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


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=TOKENS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **SMALL
    )
    return language(transformers.MixtralForCausalLM, config)


@pytest.mark.parametrize("decomposed", [False, True], ids=["raw", "decomposed"])
@pytest.mark.parametrize("make", [llama, qwen2, gpt2, bert, vit, mixtral])
def test_published_models_give_the_bits_that_python_gives(tmp_path, make, decomposed):
    torch.manual_seed(0)
    model, x = make()
    path = tmp_path / "model.pt2"
    try:
        program = torch.export.export(model, (x,))
        torch.export.save(program.run_decompositions({}) if decomposed else program, path)
    except Exception as error:  # noqa: BLE001 - whether a version of that library exports is not ours to say
        pytest.skip(f"torch.export does not take it: {error}"[:300])
    with torch.no_grad():
        expected = torch.export.load(path).module()(x)
    (found,) = tessera.load_program(path).run([x])
    assert torch.equal(found, expected)
