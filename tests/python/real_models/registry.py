"""Where models register themselves, and the inputs that they share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import torch
from torch import nn

Loss = Callable[[nn.Module], torch.Tensor]
Maker = Callable[[], tuple[nn.Module, Loss]]

MODELS: dict[str, tuple[str, Maker]] = {}  # by name: the package it needs, and what makes it


def register(package: str) -> Callable[[Maker], Maker]:
    def add(make: Maker) -> Maker:
        MODELS[make.__name__] = (package, make)
        return make

    return add


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def define_torchvision_ops() -> None:
    """timm and transformers import torchvision where it is installed, for nothing that is used here. One
    that was built for another torch does not load its ops, and then wants them to be defined."""
    if not is_installed("torchvision"):
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for op in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{op}", schema)



def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


_numbers = torch.Generator().manual_seed(1)
TOKENS = torch.randint(3, 60, (2, 12), generator=_numbers)
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
FULL_KV = {"num_key_value_heads": 2, "max_position_embeddings": 64}
EMBEDDING_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = torch.randn(2, 3, 32, 32, generator=_numbers)
MANY_IMAGES = torch.randn(8, 3, 64, 64, generator=_numbers)  # batch norm needs some to normalize over
VISION = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
