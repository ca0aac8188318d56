"""Models of speech, and adapters on one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .language import llama
from .registry import SMALL, TOKENS, Loss, register


@register("transformers")
def whisper() -> Any:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    sound = torch.linspace(-1, 1, 2 * 8 * 32).reshape(2, 8, 32)
    return model, lambda m: m(input_features=sound, labels=TOKENS).loss


def _speech(name: str) -> tuple[nn.Module, Loss]:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        **SMALL,
        conv_dim=(16, 16),
        conv_kernel=(10, 4),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        activation_dropout=0.0,
        layerdrop=0.0,
        mask_time_prob=0.0,
        final_dropout=0.0,
        ctc_loss_reduction="mean",
    )
    model = getattr(transformers, f"{name}ForCTC")(config)
    sound = torch.linspace(-1, 1, 2 * 600).reshape(2, 600).sin()
    frames_a_label = 15  # the loss is by label, where others are by token
    return model, lambda m: m(input_values=sound, labels=TOKENS[:, :4]).loss / frames_a_label


@register("transformers")
def wav2vec2() -> Any:
    return _speech("Wav2Vec2")


@register("transformers")
def hubert() -> Any:
    return _speech("Hubert")


# Adapters.


def _lora(base: tuple[nn.Module, Loss], targets: list[str]) -> tuple[nn.Module, Loss]:
    import peft

    model, loss = base
    config = peft.LoraConfig(r=4, lora_dropout=0.0, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(model, config), loss


@register("peft")
def lora_llama() -> Any:
    return _lora(llama(), ["q_proj", "v_proj"])


@register("peft")
def lora_whisper() -> Any:
    return _lora(whisper(), ["q_proj", "v_proj"])
