"""What ops may do implicitly: context managers for the calling thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

from . import _C


def implicit_comm(policy: Literal["allow", "warn", "forbid"]) -> AbstractContextManager[Any]:
    """What happens when an op needs communication that the caller did not request.

    "forbid" makes it an error that names the op, the shardings and the redistribute to write, before
    anything moves; "warn" says so once an op.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = tessera.distribute_tensor(torch.ones(4, 4), mesh, "S0")
        ...     with implicit_comm("forbid"):
        ...         x.relu()                       # needs none
        ...         try:
        ...             x.cumprod(0)
        ...         except RuntimeError as error:
        ...             return str(error).split(" a rank")[0]
        >>> tessera.run_ranks(2, show)[0]
        'aten::cumprod would communicate 16 B'
    """
    return _C.CommPolicy(getattr(_C.ImplicitComm, policy))


def strict_rules(strict: bool = True) -> AbstractContextManager[Any]:
    """An op without a sharding rule raises instead of running on replicated inputs.

    An op with a rule does not, even where the rule has to gather an input: linalg.eigvalsh may shard
    batch dims alone. implicit_comm("forbid") refuses that.
    """
    return _C.StrictRules(strict)


def implicit_replication(on: bool = True) -> AbstractContextManager[Any]:
    """Plain tensors among sharded ones are taken as replicated; without it only those of one element,
    expanded or not, are. They must be equal on all ranks."""
    return _C.ImplicitReplication(on)
