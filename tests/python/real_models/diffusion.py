"""Models that make images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import IMAGES, mean_square, register


@register("diffusers")
def unet() -> Any:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, lambda m: mean_square(m(IMAGES[..., :16, :16], torch.tensor([3, 7])).sample)


@register("diffusers")
def unet_with_text() -> Any:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    text = torch.linspace(-1, 1, 2 * 5 * 16).reshape(2, 5, 16)
    return model, lambda m: mean_square(m(IMAGES[..., :16, :16], 5, encoder_hidden_states=text).sample)


@register("diffusers")
def dit() -> Any:
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=3,
        out_channels=3,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
    )
    times, classes = torch.tensor([3, 7]), torch.tensor([1, 2])
    image = IMAGES[..., :16, :16]
    return model, lambda m: mean_square(m(image, timestep=times, class_labels=classes).sample)


@register("diffusers")
def vae() -> Any:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return model, lambda m: mean_square(m(IMAGES).sample)
