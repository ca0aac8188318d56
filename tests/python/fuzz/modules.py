"""Statements with modules under fully_shard: the same numbers on every rank, so that the average of
their gradients is the gradient of one."""

from grammar import Draw, effect, value

import torch


def nets(d: Draw) -> list[str]:
    return [name for name in d.env if name.startswith("net")]


@value(0.5)
def made(d: Draw) -> str | None:
    """With as many inputs as some tensor has in its last dim."""
    x = d.some(lambda v: v.dtype == torch.float64 and v.dim() >= 1 and v.shape[-1] > 0)
    if not x:
        return None
    width = d.shape(x)[-1]
    body = d.pick(
        f"torch.nn.Linear({width}, {d.pick(1, 2, 3, width)})",
        f"torch.nn.Sequential(torch.nn.Linear({width}, 3), torch.nn.Tanh(), torch.nn.Linear(3, {width}))",
        f"torch.nn.LayerNorm({width})",
    )
    keep = d.pick("", ", reshard_after_forward=False")
    return f"sharded({body}, {d.below(1000)}{keep})"


@value(2.5)
def used(d: Draw) -> str | None:
    found = nets(d)
    if not found:
        return None
    net = d.rng.choice(found)
    width = next(iter(d.env[net].parameters())).shape[-1]
    x = d.some(lambda v: v.dtype == torch.float64 and v.dim() >= 1 and v.shape[-1] == width)
    call = f"whole({x})"
    if d.chance(0.2):
        return x and f"placed(checkpoint({net}, {call}, use_reentrant=False))"
    return x and f"placed({net}({call}))"


@effect(0.7)
def between_steps(d: Draw) -> str | None:
    found = nets(d)
    return found and d.pick(
        f"[v.mul_({d.pick('0.5', '2.0')}) for v in {d.rng.choice(found)}.state_dict().values()]",
        f"{d.rng.choice(found)}.zero_grad()",
        f"{d.rng.choice(found)}.requires_grad_({d.pick('True', 'True', 'False')})",
        f"torch.nn.utils.clip_grad_norm_({d.rng.choice(found)}.parameters(), 0.5)",
    )
