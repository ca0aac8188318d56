"""Expert parallelism: tokens are sent to the ranks of their experts and back.

See docs/context_and_experts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from . import _C
from ._C import DeviceMesh, ExpertLoad, ExpertRows


def expert_parallel(
    tokens: torch.Tensor,
    choice: torch.Tensor,
    gate: torch.Tensor,
    function: Callable[[torch.Tensor, ExpertRows], torch.Tensor],
    *,
    experts: int,
    axis: str = "ep",
    capacity_factor: float | None = None,
    mesh: DeviceMesh | None = None,
    token_axes: Sequence[str] = (),
) -> tuple[torch.Tensor, ExpertLoad]:
    """sum over k of gate[t, k] * function(tokens[t]) of expert choice[t, k], and the experts' load.

    tokens: T x D, choice and gate: T x K, sharded in dim 0 over `axis` (and others, equally). With
    `mesh` they are plain tensors, this rank's tokens. `function(rows, experts)` gets the rows of this
    rank's experts, sorted by expert; experts.matmul(rows, weight) multiplies each with the matrix of
    its expert (E x D x F, sharded in dim 0 over the axis). Rows over the capacity are dropped.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("ep=2")
        ...     put = lambda t: tessera.distribute_tensor(t, mesh, "S0")
        ...     weight = put(torch.tensor([1.0, 10.0]).view(2, 1, 1))
        ...     x, choice = put(torch.ones(4, 1)), put(torch.tensor([[0], [1], [1], [1]]))
        ...     out, load = expert_parallel(
        ...         x, choice, put(torch.ones(4, 1)), lambda rows, e: e.matmul(rows, weight), experts=2)
        ...     return tessera.full_tensor(out).flatten().tolist(), load.kept
        >>> tessera.run_ranks(2, show)[0]
        ([1.0, 10.0, 10.0, 10.0], [1, 3])
    """
    return _C.expert_parallel(
        tokens, choice, gate, function, experts, axis, capacity_factor, mesh, list(token_axes)
    )
