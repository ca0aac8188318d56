"""Runs a program on whole tensors, which says what is right, or as a rank of a mesh.

Random numbers: what sharded tensors draw follows from the seed and the element's place, so those of
a single rank are right for all. The plain run makes such a statement on tensors of a mesh of one rank.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import inputs
import tessera
from program import NAME, Program, Statement
from rounding import Rounded

_UPDATED = re.compile(r"F\.batch_norm\(x\d+, (x\d+), (x\d+), training=True")  # statistics
LARGEST = 1e4  # beyond it sums in another order differ too much to compare
LARGEST_COARSE = 10.0  # once bfloat16 has rounded something


class NotAProgram(Exception):
    """The plain run itself does not work, or rounding decides its result."""


class Refused(Exception):
    """A rank raised; `index` is the statement's."""

    def __init__(self, index: int, error: BaseException):
        super().__init__(f"{type(error).__name__}: {error}")
        self.index = index
        self.error = error


class Halves(torch.autograd.Function):
    """A user's own function: saves a tensor, has two results, one of which may go unused."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        return x * 0.5, x * x * 0.25

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return a * 0.5 + b * x * 0.5


class Seen:
    """What hooks saw, by the statement that registered them. Autograd does not define the order of
    hooks of tensors that do not depend on each other."""

    def __init__(self) -> None:
        self.by_hook: dict[str, list[Any]] = {}

    def append(self, value: Any) -> None:
        self.by_hook.setdefault(sys._getframe(1).f_code.co_filename, []).append(value)


def _run(statement: Statement, env: dict[str, Any]) -> None:
    """Hooks that it registers are known by its text."""
    exec(compile(statement.text, statement.text, "exec"), env)


def _filled(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """With parameters that follow from the seed."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return module


def _toolbox(place: Any) -> dict[str, Any]:
    """What statements may call. `sharded`, `whole`, `placed` and `constant` are those of the plain run."""
    return {
        "torch": torch,
        "F": F,
        "math": math,
        "copy": copy,
        "checkpoint": checkpoint,
        "tessera": tessera,
        "Halves": Halves,
        "place": place,
        "seen": Seen(),
        "sharded": lambda module, seed, **options: _filled(module, seed),
        "whole": lambda x: x,
        "placed": lambda x: x,
        "constant": lambda x: x,
    }


def apart(x: torch.Tensor) -> bool:
    """No two values that rounding could swap."""
    values = x.detach().flatten().sort().values.double()
    return bool((values.diff() > 1e-6).all())


def away(x: torch.Tensor, value: float) -> bool:
    """No value that rounding could bring to the other side."""
    return bool(((x.detach().double() - value).abs() > 1e-6).all())


def steady(optimizer: torch.optim.Optimizer) -> bool:
    """No gradient so small that its rounding decides a step of about its sign."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    sizes = [g.detach().double().abs() for g in grads]
    return all(bool(((s == 0) | (s > 1e-6)).all()) for s in sizes)


def _bounded(value: Any, most: float) -> bool:
    if isinstance(value, torch.nn.Module):
        return all(_bounded(p, most) and _bounded(p.grad, most) for p in value.parameters())
    if not isinstance(value, torch.Tensor) or not value.numel():
        return True
    if not value.is_floating_point() and not value.is_complex():
        return True
    largest = float(value.detach().abs().max())
    return math.isfinite(largest) and largest <= most


class PlainRun:
    """Statement by statement on whole tensors; call it inside a world of one rank."""

    def __init__(self, program: Program):
        tessera.manual_seed(program.seed)
        self.env = _toolbox(lambda x, placements: x.clone())
        self.rounded = Rounded()
        for item in program.inputs:
            value = inputs.as_placed(inputs.value_of(item, program.seed))
            self.env[item.name] = value.requires_grad_() if item.grad else value

    def step(self, statement: Statement) -> None:
        """Raises NotAProgram; what was written until then stays written."""
        checks = {**self.env, "apart": apart, "away": away, "steady": steady}
        try:
            if statement.guard and (self._is_coarse() or not eval(statement.guard, checks)):
                raise NotAProgram(f"rounding decides {statement.text}")
            if statement.draws:
                self._draw(statement)
            else:
                _run(statement, self.env)
            self._count_updates(statement)
            self._check_values(statement)
            self.rounded.follow(statement, self.env)
        except NotAProgram:
            raise
        except Exception as error:
            raise NotAProgram(f"{statement.text}: {error}") from error

    def _is_coarse(self) -> bool:
        """Values have so few digits that rounding decides what guards look at, and sums that cancel."""
        return self.rounded.dtype == torch.bfloat16

    def _count_updates(self, statement: Statement) -> None:
        """libtorch's batch norm updates running statistics without counting a write. A backward that
        saved them before would then be computed from the new ones; counted, it raises. It loses the
        update where memory holds the negative or conjugate: x.conj().imag."""
        for match in _UPDATED.finditer(statement.text):
            for name in match.groups():
                if self.env[name].is_neg() or self.env[name].is_conj():
                    raise NotAProgram(f"libtorch loses what {statement.text} writes to {name}")
                if not self.env[name].is_inference():
                    torch.autograd.graph.increment_version(self.env[name])

    def _check_values(self, statement: Statement) -> None:
        for name, value in self.env.items():
            if not NAME.fullmatch(name):
                continue
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_inference():
                # libtorch records mul of it, but neither sum nor sin: kernels decide, not ops.
                raise NotAProgram(f"{name}, of inference mode, requires grad after {statement.text}")
            largest = LARGEST_COARSE if self._is_coarse() else LARGEST
            if not _bounded(value, largest) or not _bounded(_grad_of(value), largest):
                raise NotAProgram(f"{name} is too large after {statement.text}")

    def _draw(self, statement: Statement) -> None:
        mesh = tessera.init_device_mesh("one=1")
        env = dict(self.env)
        names = [n for n in statement.names() if isinstance(env.get(n), torch.Tensor)]
        for name in names:
            env[name] = tessera.from_local(env[name], mesh, "R")
        exec(statement.text, env)
        if target := statement.target():
            same = [n for n in names if env[target] is env[n]]  # dropout of nothing
            self.env[target] = self.env[same[0]] if same else tessera.to_local(env[target])
            return
        with torch.no_grad():
            for name in names:  # what was written
                self.env[name].copy_(tessera.to_local(env[name].detach()))


def _grad_of(value: Any) -> torch.Tensor | None:
    """Does not ask for is_leaf: that gives a view its new grad_fn if its base was written to, and moves
    what retain_grad registered from the old one to it."""
    return value.grad if isinstance(value, torch.Tensor) and value.requires_grad else None


@dataclasses.dataclass
class Expected:
    values: dict[str, Any]  # see snapshot
    rounded: Rounded


def run_plain(program: Program) -> Expected:
    """What all variables are at the end."""
    run = PlainRun(program)
    for statement in program.statements:
        run.step(statement)
    return Expected(snapshot(run.env), run.rounded)


def _module_tools(mesh: tessera.DeviceMesh) -> dict[str, Any]:
    """Modules under fully_shard compute with plain tensors, here the same on all ranks."""
    data = mesh if mesh.ndim <= 2 else mesh[mesh.axis_names[:2]]
    replicated = ["R"] * mesh.ndim

    def sharded(module: torch.nn.Module, seed: int, **options: Any) -> torch.nn.Module:
        return tessera.fully_shard(_filled(module, seed), data, **options)

    return {
        "sharded": sharded,
        "whole": lambda x: tessera.full_tensor(x, grad_placements=replicated),
        "placed": lambda x: tessera.from_local(x, mesh, replicated),
    }


def run_rank(program: Program) -> dict[str, Any]:
    """The same as a rank of the program's mesh. Raises Refused."""
    tessera.manual_seed(program.seed)
    mesh = tessera.init_device_mesh(program.mesh)

    def place(x: torch.Tensor, placements: str) -> torch.Tensor:
        places = (inputs.split_placements(placements)[0] + ["R"] * mesh.ndim)[: mesh.ndim]
        return tessera.redistribute(x.clone(), places)

    env = _toolbox(place)
    env.update(_module_tools(mesh))
    env["constant"] = lambda x: tessera.distribute_tensor(x, mesh, ["R"] * mesh.ndim, src_data_rank=None)
    for item in program.inputs:
        env[item.name] = inputs.place(item, inputs.value_of(item, program.seed), mesh)
    for index, statement in enumerate(program.statements):
        try:
            _run(statement, env)
        except Exception as error:  # noqa: BLE001 - every kind is judged by the caller
            raise Refused(index, error) from error
    return snapshot(env, has_values=mesh.get_coordinate() is not None)


def snapshot(env: dict[str, Any], has_values: bool = True) -> dict[str, Any]:
    """Every variable in full, with gradients, optimizer states and what hooks saw; on meta where a rank
    outside of the mesh has no values."""
    _whole = _whole_value if has_values else _described
    names = sorted((n for n in env if NAME.fullmatch(n)), key=lambda n: int(n.lstrip("xopnet")))
    found: dict[str, Any] = {}
    for name in names:
        value = env[name]
        if isinstance(value, torch.Tensor):
            found[name] = _whole(value)
        if _grad_of(value) is not None:
            found[f"{name}.grad"] = _whole(value.grad)
        if isinstance(value, torch.nn.Module):
            for key, parameter in value.named_parameters():
                found[f"{name}.{key}"] = _whole(parameter)
                if _grad_of(parameter) is not None:
                    found[f"{name}.{key}.grad"] = _whole(parameter.grad)
            found[name] = type(value).__name__
        if isinstance(value, torch.optim.Optimizer):
            states = [value.state[p] for group in value.param_groups for p in group["params"]]
            for i, state in enumerate(states):
                for key, entry in state.items():
                    found[f"{name}.state[{i}][{key!r}]"] = _whole(entry)
            found[name] = type(value).__name__
    for hook, values in sorted(env["seen"].by_hook.items()):
        for i, value in enumerate(values):
            found[f"seen[{i}] by {hook}"] = _whole(value)
    return found


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta"), value.requires_grad
    return [_described(v) for v in value] if isinstance(value, (list, tuple)) else value


def _whole_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            flat = value.detach()
            whole = tessera.full_tensor(flat) if tessera.is_dtensor(flat) else flat.clone()
        return whole, value.requires_grad
    if isinstance(value, (list, tuple)):
        return [_whole_value(v) for v in value]
    return value
