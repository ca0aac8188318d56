"""No op of libtorch writes to a tensor without saying so, in its schema or in tessera's list.

The operator database, the norms and the recurrent modules run on plain tensors, forward and
backward; below them every op that reaches a kernel is watched. What it changed among its arguments
must be announced by its schema, or be listed in tessera/dtensor/dispatch/op/hidden_writes.cpp.
"""

import pathlib
import re
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

TABLE = pathlib.Path(__file__).parents[2] / "tessera" / "dtensor" / "dispatch" / "op" / "hidden_writes.cpp"
LARGEST = 100_000  # elements; what is larger is not compared


def listed() -> set[tuple[str, str]]:
    rows = re.findall(r'\{"aten::(\w+)", "(\w+)", "\w*"\}', TABLE.read_text())
    assert len(rows) > 10
    return set(rows)


def tensors_in(value) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of the values; None where there is nothing to compare."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    if not plain or tensor.is_meta or not 0 < tensor.numel() <= LARGEST:
        return None
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def same(before: torch.Tensor, now: torch.Tensor) -> bool:
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    now = now.contiguous()
    whole = torch.equal(before, now)
    return whole or torch.equal(
        before.view(-1).view(torch.uint8), now.view(-1).view(torch.uint8)
    )


class Watch(TorchDispatchMode):
    """Collects (op, argument) of writes that schemas do not announce."""

    def __init__(self):
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.ops: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(zip(func._schema.arguments, args, strict=False))
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        before = []
        for argument, value in given:
            if argument.alias_info is not None and argument.alias_info.is_write:
                continue
            before += [(argument.name, t, bits(t)) for t in tensors_in(value)]
        result = func(*args, **kwargs)
        # An announced write may reach another argument that shares its memory.
        written = {
            t.untyped_storage().data_ptr()
            for argument, value in given
            if argument.alias_info is not None and argument.alias_info.is_write
            for t in tensors_in(value)
            if t.layout == torch.strided and not t.is_nested
        }
        name = func._schema.name.removeprefix("aten::")
        self.ops.add(name)
        for argument, tensor, was in before:
            if was is None or tensor.untyped_storage().data_ptr() in written:
                continue
            if not same(was, tensor):
                self.found.add((name, argument))
        return result


def run_operator(op) -> None:
    dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), None)
    if dtype is None:
        return
    grad = dtype == torch.float32 and op.supports_autograd
    for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if index == 1:
            break
        result = op(sample.input, *sample.args, **sample.kwargs)
        outputs = [t for t in tensors_in(result) if t.requires_grad and t.dtype == dtype]
        if outputs:
            torch.autograd.backward([t.sum() for t in outputs])


def modules():
    yield torch.nn.BatchNorm1d(4), torch.randn(6, 4)
    yield torch.nn.BatchNorm2d(4), torch.randn(6, 4, 3, 3)
    yield torch.nn.BatchNorm3d(4), torch.randn(2, 4, 3, 3, 2)
    yield torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True), torch.randn(2, 4, 3, 3)
    yield torch.nn.GroupNorm(2, 4), torch.randn(2, 4, 3)
    yield torch.nn.RReLU(), torch.randn(5, 4)
    yield torch.nn.LSTM(4, 3, num_layers=2), torch.randn(5, 2, 4)
    yield torch.nn.GRU(4, 3), torch.randn(5, 2, 4)
    yield torch.nn.Embedding(7, 3, max_norm=0.5), torch.arange(7)
    yield torch.nn.EmbeddingBag(7, 3, max_norm=0.5, mode="mean"), torch.arange(7)[None]
    yield torch.ao.quantization.FusedMovingAvgObsFakeQuantize(), torch.randn(4, 4)


def test_every_hidden_write_is_listed():
    watch = Watch()
    with warnings.catch_warnings(), watch:
        warnings.simplefilter("ignore")
        for op in op_db:
            try:
                run_operator(op)
            except Exception:  # noqa: BLE001, S112: samples that a mode cannot run, not our subject
                continue
        for module, x in modules():
            result = module(x)
            first = tensors_in(result)[0]
            if first.requires_grad:
                first.sum().backward()
    assert len(watch.ops) > 500, len(watch.ops)
    assert watch.found <= listed(), sorted(watch.found - listed())
    assert ("native_batch_norm", "running_mean") in watch.found


def test_the_list_names_arguments_that_exist():
    schemas = torch._C._jit_get_all_schemas()
    arguments = {s.name.removeprefix("aten::"): {a.name for a in s.arguments} for s in schemas}
    for op, argument in listed():
        assert argument in arguments[op], (op, argument)
