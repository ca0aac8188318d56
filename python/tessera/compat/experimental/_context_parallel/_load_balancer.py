"""The names of torch.distributed.tensor.experimental._context_parallel._load_balancer."""

from __future__ import annotations

from typing import Any

from ..._context_parallel import (
    _cp_options,
    _HeadTailLoadBalancer,
    _LoadBalancer,
    _PerDocumentHeadTailLoadBalancer,
    _PTRRLoadBalancer,
)


def _create_default_load_balancer(
    seq_length: int, world_size: int, device: Any
) -> _LoadBalancer | None:
    """That of context_parallel: head-tail, where _cp_options wants balance and the sequence has the halves."""
    if not _cp_options.enable_load_balance or seq_length % (2 * world_size):
        return None
    return _HeadTailLoadBalancer(seq_length, world_size, device)


__all__ = [
    "_HeadTailLoadBalancer",
    "_LoadBalancer",
    "_PTRRLoadBalancer",
    "_PerDocumentHeadTailLoadBalancer",
    "_create_default_load_balancer",
]
