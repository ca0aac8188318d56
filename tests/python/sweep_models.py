"""Trains small copies of real architectures (real_models.py) under fully_shard with a bf16 policy.

    .venv-models/bin/python tests/python/sweep_models.py                 # all, in all ways
    .venv-models/bin/python tests/python/sweep_models.py t5 --ways train --dtype float16

`make models` installs what it needs into a folder of its own and runs it. Two ranks are threads; both
have the same batch, so a loss is compared with that of the plain model in float32. Ways:

    train        two steps of AdamW, the loss of each within 0.1 of the plain one
    checkpoint   the same, each block recomputed in backward (non-reentrant)
    reentrant    the same with the older kind
    accumulate   two backwards before a step, with clipping
    evaluate     a forward without gradients, and one in inference mode

After each way all parameters, gradients and optimizer states must be float32. A way in which the plain
model fails too, as some do in the older kind of checkpointing, does not count.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
import time
import traceback
import warnings

import torch
from real_models import MODELS, REFUSED, is_installed
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera

WAYS = ("train", "checkpoint", "reentrant", "accumulate", "evaluate")
CLOSE = 0.1


class NotApplicable(Exception):
    """The plain model does not train this way either."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that are in a list: what one would make groups of, and recompute."""
    found: list[nn.Module] = []
    for module in model.children():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            found += [m for m in module if has_forward(m) and any(True for _ in m.parameters())]
        else:
            found += blocks_of(module)
    return found


def has_forward(module: nn.Module) -> bool:
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict))


def recompute(model: nn.Module, reentrant: bool) -> None:
    for block in blocks_of(model):
        forward = functools.partial(checkpoint, block.forward, use_reentrant=reentrant)
        block.forward = forward if not reentrant else _with_inputs_that_need_gradients(forward)


def _with_inputs_that_need_gradients(forward):
    """The older kind records nothing where no input needs a gradient."""

    def call(*args, **kwargs):
        if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args) and not kwargs:
            return forward(*args)
        return forward.args[0](*args, **kwargs)

    return call


def prepared(model: nn.Module, way: str) -> nn.Module:
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "use_cache"):
            part.config.use_cache = False  # what is recomputed would be cached twice
    if way in ("checkpoint", "reentrant"):
        recompute(model, reentrant=way == "reentrant")
    return model.train(way != "evaluate")


def losses(model: nn.Module, loss_of, way: str, clip) -> list[float]:
    if way == "evaluate":
        with torch.no_grad():
            first = float(loss_of(model))
        with torch.inference_mode():
            return [first, float(loss_of(model))]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)
    seen = []
    for _ in range(2):
        for _ in range(2 if way == "accumulate" else 1):
            loss = loss_of(model)
            loss.backward()
            seen.append(float(loss.detach()))
        if way == "accumulate":
            clip(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for state in optimizer.state.values():
        for value in state.values():
            assert not torch.is_tensor(value) or value.dtype == torch.float32, value.dtype
    return seen


def peer_losses(model: nn.Module, loss_of, way: str, dtype: torch.dtype) -> list[float]:
    """The same under PyTorch's FSDP2, on one rank."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return losses(model, loss_of, way, nn.utils.clip_grad_norm_)


def sharded_losses(model: nn.Module, loss_of, way: str, dtype: torch.dtype) -> list[float]:
    mesh = tessera.init_device_mesh("dp=2")
    policy = tessera.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks_of(model):
        tessera.fully_shard(block, mesh, mp_policy=policy)
    tessera.fully_shard(model, mesh, mp_policy=policy)
    seen = losses(model, loss_of, way, tessera.clip_grad_norm_)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, f"{name} rests in {parameter.dtype}"
    for name, value in model.state_dict().items():
        assert not value.is_floating_point() or value.dtype == torch.float32, (name, value.dtype)
    return seen


def run(name: str, way: str, dtype: torch.dtype, peer: bool) -> str:
    """An empty text if the model trains, else what went wrong."""
    torch.manual_seed(0)
    made, loss_of = MODELS[name][1]()
    try:
        want = losses(prepared(copy.deepcopy(made), way), loss_of, way, nn.utils.clip_grad_norm_)
    except RuntimeError as error:
        raise NotApplicable(str(error)) from error
    copies = [copy.deepcopy(made) for _ in range(2)]

    def body(rank: int) -> list[float]:
        return sharded_losses(prepared(copies[rank], way), loss_of, way, dtype)

    of_ranks = [peer_losses(prepared(copies[0], way), loss_of, way, dtype)] if peer else None
    for got in of_ranks or tessera.run_ranks(2, body):
        for a, b in zip(got, want, strict=True):
            if not abs(a - b) <= CLOSE:
                return f"losses {got}, in float32 {want}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=[], help="by default all")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peer", action="store_true", help="by PyTorch's FSDP2 instead")
    parser.add_argument("--trace", action="store_true", help="print where an error comes from")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtype = getattr(torch, given.dtype)
    good = {way: 0 for way in given.ways}
    tried = failed = 0
    for name in given.models or MODELS:
        if not is_installed(MODELS[name][0]):
            print(f"{name:16} left out: {MODELS[name][0]} is not installed", flush=True)
            continue
        tried += 1
        start, line = time.monotonic(), ""
        for way in given.ways:
            try:
                wrong = run(name, way, dtype, given.peer)
            except NotApplicable:
                line += f" (no {way})"
                continue
            except Exception as error:  # noqa: BLE001 - any of theirs is a failure of the model
                wrong = f"{type(error).__name__}: {str(error).strip()[:600]}"
                if given.trace:
                    traceback.print_exc()
            if name in REFUSED and "mixed precision policy" in wrong:
                line += f" {way} refused: {REFUSED[name]};"
                continue
            good[way] += not wrong
            failed += bool(wrong)
            line += f"\n    {way}: {wrong}" if wrong else f" {way}"
        print(f"{name:16}{line}  ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"{tried} models: " + ", ".join(f"{way} {count}" for way, count in good.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
