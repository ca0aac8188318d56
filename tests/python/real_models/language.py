"""Models of text: decoders, encoders, both, mixtures of experts, state spaces, recurrent ones, adapters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import EMBEDDING_IDS, FULL_KV, NO_DROPOUT, SMALL, TOKENS, Loss, register


def _language_model(name: str, **config: Any) -> tuple[nn.Module, Loss]:
    """A causal language model of transformers that predicts its own input."""
    import transformers

    made = getattr(transformers, f"{name}Config")(**EMBEDDING_IDS, **config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    return model, lambda m: m(input_ids=TOKENS, labels=TOKENS).loss


def _masked_model(name: str, **config: Any) -> tuple[nn.Module, Loss]:
    import transformers

    made = getattr(transformers, f"{name}Config")(**config)
    model = getattr(transformers, f"{name}ForMaskedLM")(made)
    return model, lambda m: m(input_ids=TOKENS, labels=TOKENS).loss


# Causal language models.


@register("transformers")
def gpt2() -> Any:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return _language_model("GPT2", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, **off)


@register("transformers")
def llama() -> Any:
    return _language_model("Llama", **SMALL, **FULL_KV)


@register("transformers")
def qwen2() -> Any:
    return _language_model("Qwen2", **SMALL, **FULL_KV)


@register("transformers")
def qwen3() -> Any:
    return _language_model("Qwen3", **SMALL, **FULL_KV, head_dim=8)


@register("transformers")
def gemma() -> Any:
    return _language_model("Gemma", **SMALL, **FULL_KV, head_dim=8)


@register("transformers")
def gemma2() -> Any:
    return _language_model("Gemma2", **SMALL, **FULL_KV, head_dim=8, attn_implementation="eager")


@register("transformers")
def phi3() -> Any:
    return _language_model("Phi3", **SMALL, **FULL_KV)


@register("transformers")
def opt() -> Any:
    return _language_model(
        "OPT",
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        dropout=0.0,
    )


@register("transformers")
def bloom() -> Any:
    return _language_model("Bloom", vocab_size=64, hidden_size=32, n_layer=2, n_head=4)


@register("transformers")
def gpt_neox() -> Any:
    return _language_model("GPTNeoX", **SMALL, max_position_embeddings=64)


@register("transformers")
def falcon() -> Any:
    return _language_model(
        "Falcon", vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )


@register("transformers")
def olmo() -> Any:
    return _language_model("Olmo", **SMALL, **FULL_KV)


@register("transformers")
def mixtral() -> Any:
    return _language_model("Mixtral", **SMALL, **FULL_KV, num_local_experts=4, output_router_logits=True)


@register("transformers")
def qwen2_moe() -> Any:
    return _language_model(
        "Qwen2Moe",
        **SMALL,
        **FULL_KV,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )


@register("transformers")
def deepseek_v3() -> Any:
    return _language_model(
        "DeepseekV3",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        moe_intermediate_size=16,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        max_position_embeddings=64,
    )


@register("transformers")
def deepseek_v2() -> Any:
    return _language_model(
        "DeepseekV2",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        max_position_embeddings=64,
    )


@register("transformers")
def mamba() -> Any:
    return _language_model(
        "Mamba", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8, time_step_rank=4
    )


@register("transformers")
def mamba2() -> Any:
    return _language_model(
        "Mamba2",
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
    )


# Encoders and encoder-decoders.


@register("transformers")
def bert() -> Any:
    return _masked_model("Bert", **SMALL, **NO_DROPOUT)


@register("transformers")
def roberta() -> Any:
    return _masked_model("Roberta", **SMALL, **NO_DROPOUT)


@register("transformers")
def albert() -> Any:
    return _masked_model("Albert", **SMALL, embedding_size=16)


@register("transformers")
def distilbert() -> Any:
    off = {"dropout": 0.0, "attention_dropout": 0.0}
    return _masked_model("DistilBert", vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48, **off)


@register("transformers")
def electra() -> Any:
    return _masked_model("Electra", **SMALL, **NO_DROPOUT, embedding_size=16)


@register("transformers")
def deberta_v2() -> Any:
    extra = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3}
    return _masked_model("DebertaV2", **SMALL, **NO_DROPOUT, **extra)


@register("transformers")
def modernbert() -> Any:
    return _masked_model("ModernBert", **SMALL, pad_token_id=0, cls_token_id=1, sep_token_id=2)


@register("transformers")
def t5() -> Any:
    import transformers

    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, lambda m: m(input_ids=TOKENS, labels=TOKENS).loss


@register("transformers")
def bart() -> Any:
    import transformers

    config = transformers.BartConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        dropout=0.0,
    )
    model = transformers.BartForConditionalGeneration(config)
    return model, lambda m: m(input_ids=TOKENS, labels=TOKENS).loss


# What nn.Module itself brings.


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.layers = nn.ModuleList([kind(16, 16, num_layers=2, batch_first=True)])
        self.head = nn.Linear(16, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers[0](self.embed(tokens))[0])


def _next_token(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1).float(), TOKENS[:, 1:].flatten())


@register("torch")
def lstm() -> Any:
    return Recurrent(nn.LSTM), _next_token


@register("torch")
def gru() -> Any:
    return Recurrent(nn.GRU), _next_token


@register("torch")
def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 64))
    return model, _next_token
