"""Further architectures of text and images, and adapters, that differ from the others in how they use parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .images import _many_classified, _timm
from .language import _language_model, llama
from .registry import FULL_KV, IMAGES, SMALL, TOKENS, VISION, Loss, register

_DECODERS: dict[str, dict[str, Any]] = {
    "Cohere2": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "Gemma3Text": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "Glm4": {"head_dim": 8},
    "GptOss": {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Granite": {},
    "Nemotron": {},
    "Olmo2": {},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Phi": {},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "SmolLM3": {},
    "StableLm": {},
    "Starcoder2": {},
}


def _register_decoder(name: str, options: dict[str, Any]) -> None:
    def make() -> Any:
        return _language_model(name, **SMALL, **FULL_KV, **options)

    make.__name__ = name.lower()
    register("transformers")(make)


for _name, _options in _DECODERS.items():
    _register_decoder(_name, _options)


@register("transformers")
def rwkv() -> Any:
    return _language_model(
        "Rwkv", vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=48, context_length=64
    )


@register("transformers")
def vit_mae() -> Any:
    import transformers

    decoder = {
        "decoder_hidden_size": 32,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 4,
        "decoder_intermediate_size": 48,
    }
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**VISION, **decoder))
    noise = torch.linspace(0, 1, 32).reshape(2, 16)  # which patches are masked
    return model, lambda m: m(IMAGES, noise=noise).loss


@register("timm")
def mobilevit() -> Any:
    return _timm("mobilevit_xxs")[0], _many_classified


@register("timm")
def pvt_v2() -> Any:
    return _timm("pvt_v2_b0")[0], _many_classified


def _adapted(made: Any) -> tuple[nn.Module, Loss]:
    import peft

    base, _ = llama()
    model = peft.get_peft_model(base, made)
    return model, lambda m: m(input_ids=TOKENS, labels=TOKENS).loss


@register("peft")
def adalora() -> Any:
    import peft

    return _adapted(
        peft.AdaLoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], init_r=4, target_r=2, total_step=10)
    )


@register("peft")
def prefix_tuning() -> Any:
    import peft

    return _adapted(peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


@register("peft")
def ia3() -> Any:
    import peft

    targets = ["k_proj", "down_proj"]
    return _adapted(
        peft.IA3Config(task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=["down_proj"])
    )
