"""Which values of a program float32, or bfloat16 under autocast, rounded on their way.

Ranks round the parts of a Partial sum, the plain run rounds the sum: such values agree to the digits
of that type, also where they are float64 again.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from program import Statement

_ROUNDS = re.compile(r"\.float\(\)|torch\.float32")
_CASTS = re.compile(r"autocast\('cpu', torch\.bfloat16\)(?!, torch\.autocast)")
_PASSES_GRADIENTS = re.compile(r"\bbackward\(|clip_grad_norm_\(")
_WRITES = re.compile(r"_norm\(|\bwith\b")  # statements with a result that may write to their arguments


def _memory(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


class Rounded:
    """Follows the statements of a plain run."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.dtype = torch.float32  # the coarsest so far
        self.gradients = False  # of leaves, what hooks saw, states of optimizers

    def follow(self, statement: Statement, env: dict[str, Any]) -> None:
        """Called after each statement."""
        names = {n for n in statement.names() if n in env}
        steps = self.gradients and re.search(r"\bopt\d+\.step\(", statement.text)
        if not steps and not self.touches(statement, env):
            return
        if _CASTS.search(statement.text):
            self.dtype = torch.bfloat16
        target = statement.target()
        if target is None or _WRITES.search(statement.text):
            self.names |= names
        if target is not None:
            self.names.add(target)
        self.gradients |= bool(_PASSES_GRADIENTS.search(statement.text))
        if steps:
            self.names |= {n for n, v in env.items() if isinstance(v, torch.Tensor) and v.requires_grad}
        memory = {_memory(env.get(n)) for n in self.names} - {None, 0}
        self.names |= {n for n, v in env.items() if _memory(v) in memory}

    def touches(self, statement: Statement, env: dict[str, Any]) -> bool:
        """Whether the statement rounds, or computes with what was rounded."""
        names = {n for n in statement.names() if n in env}
        return bool(_ROUNDS.search(statement.text)) or any(self._is_rounded(n, env[n]) for n in names)

    def _is_rounded(self, name: str, value: Any) -> bool:
        low = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16)
        return low or name in self.names

    def holds(self, key: str) -> torch.dtype | None:
        """The type whose digits are right, if it is not that of the value. Of a key of execute.snapshot: "x3", "x3.grad", "seen[0] by x3.register_hook(...)", "opt4.state[0]['exp_avg']"."""
        follows = self.gradients and ("." in key or key.startswith("seen"))
        return self.dtype if key in self.names or follows else None
