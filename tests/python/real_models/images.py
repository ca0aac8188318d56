"""Models of images: transformers, convolutions with and without batch norm, images beside text."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import FULL_KV, IMAGES, MANY_IMAGES, NO_DROPOUT, SMALL, TOKENS, VISION, Loss, register


def _image_classifier(name: str, **config: Any) -> tuple[nn.Module, Loss]:
    import transformers

    made = getattr(transformers, f"{name}Config")(num_labels=4, **config)
    model = getattr(transformers, f"{name}ForImageClassification")(made)
    labels = torch.tensor([0, 3])
    return model, lambda m: m(pixel_values=IMAGES, labels=labels).loss


@register("transformers")
def vit() -> Any:
    return _image_classifier("ViT", **VISION, **NO_DROPOUT)


@register("transformers")
def dinov2() -> Any:
    return _image_classifier("Dinov2", **VISION)


@register("transformers")
def swin() -> Any:
    off = {"drop_path_rate": 0.0}
    return _image_classifier(
        "Swin", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, **off
    )


@register("transformers")
def swinv2() -> Any:
    off = {"drop_path_rate": 0.0}
    return _image_classifier(
        "Swinv2", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, **off
    )


@register("transformers")
def convnext() -> Any:
    return _image_classifier("ConvNext", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], image_size=32)


@register("transformers")
def segformer() -> Any:
    off = {"hidden_dropout_prob": 0.0, "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0}
    return _image_classifier(
        "Segformer", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], **off
    )


@register("timm")
def resnet() -> Any:
    return _timm("resnet10t")


@register("timm")
def mobilenet_v3() -> Any:
    return _timm("mobilenetv3_small_050", drop_rate=0.0)


@register("timm")
def regnet() -> Any:
    return _timm("regnetx_002")


@register("timm")
def mixer() -> Any:
    import timm

    shape = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 32}
    model = timm.models.mlp_mixer.MlpMixer(num_classes=4, **shape)
    return model, _classified


@register("timm")
def timm_vit() -> Any:
    return _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)


def _timm(name: str, **config: Any) -> tuple[nn.Module, Loss]:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=4, **config)
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    return model, _many_classified if has_batch_norm else _classified


def _classified(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(IMAGES).float(), torch.tensor([0, 3]))


def _many_classified(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(MANY_IMAGES).float(), torch.arange(8) % 4)


# Several kinds of input.


@register("transformers")
def clip() -> Any:
    import transformers

    text = {**SMALL, "max_position_embeddings": 32, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    model = transformers.CLIPModel(config)
    return model, lambda m: m(input_ids=TOKENS, pixel_values=IMAGES, return_loss=True).loss


@register("transformers")
def siglip() -> Any:
    import transformers

    text = {**SMALL, "max_position_embeddings": 32}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    model = transformers.SiglipModel(config)
    return model, lambda m: m(input_ids=TOKENS, pixel_values=IMAGES, return_loss=True).loss


@register("transformers")
def llava() -> Any:
    import transformers

    config = transformers.LlavaConfig(
        vision_config={**VISION, "model_type": "clip_vision_model"},
        text_config={**SMALL, **FULL_KV, "model_type": "llama"},
        image_token_index=60,
        vision_feature_layer=-1,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    tokens = torch.cat([torch.full((2, 16), 60), TOKENS], 1)
    return model, lambda m: m(input_ids=tokens, pixel_values=IMAGES, labels=tokens).loss
