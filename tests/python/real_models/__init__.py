"""Small random copies of published architectures, for sweep_models.py.

Each function makes a model and a function that gives its loss. What is not installed is left out:
transformers, diffusers, timm and peft are no requirements of this project. No weights are downloaded.
"""

from .registry import MODELS, define_torchvision_ops, is_installed

define_torchvision_ops()

from . import diffusion, images, language, more, sound  # noqa: E402, F401 - they register their models

#: What no library trains with parameters in bfloat16 and buffers in float32, and why.
REFUSED = {"swinv2": "its position bias feeds a float32 buffer to a linear layer"}

__all__ = ["MODELS", "REFUSED", "is_installed"]
