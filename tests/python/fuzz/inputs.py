"""The tensors a program starts with: their values, and their parts on a rank.

Values follow from the program's seed and the input's name, so every rank makes the same ones and
nothing is sent.
"""

from __future__ import annotations

import re
import zlib

import torch

import tessera
from program import Input

_PARTIAL = re.compile(r"P\((\w+)\)")


def _generator(seed: int, salt: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {salt}".encode()))


def value_of(item: Input, seed: int) -> torch.Tensor:
    """The whole tensor. Floats and complex numbers are normal, integers 0 to 5."""
    generator = _generator(seed, item.name)
    shape = item.shape[::-1] if item.transposed else item.shape
    dtype = getattr(torch, item.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        value = torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    elif dtype == torch.bool:
        value = torch.rand(shape, generator=generator) < 0.5
    else:
        value = torch.randint(0, 6, shape, generator=generator).to(dtype)
    return value.permute(*range(len(shape))[::-1]) if item.transposed else value


def as_placed(value: torch.Tensor) -> torch.Tensor:
    """A plain tensor with the strides that distribute_tensor gives: whether a reshape of it is a view
    depends on them. Call it inside a world of one rank."""
    mesh = tessera.init_device_mesh("one=1")
    stride = tessera.distribute_tensor(value, mesh, "R", src_data_rank=None).stride()
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)


def reductions_of(dtype: torch.dtype) -> tuple[str, ...]:
    """Of which a tensor of this type can be Partial."""
    if dtype.is_floating_point:
        return ("sum", "avg", "max", "min")
    if dtype.is_complex:
        return ("sum", "avg")
    return () if dtype == torch.bool else ("sum", "max", "min")


def _farther(value: torch.Tensor, by: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers that are less (by = -1) or more (by = 1); of integers that are at the end, the same."""
    if value.dtype.is_floating_point:
        return (value + by * (torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5)).to(
            value.dtype
        )
    off = torch.randint(1, 4, value.shape, generator=generator).to(value.dtype)
    limits = torch.iinfo(value.dtype)
    is_inside = value >= limits.min + 3 if by < 0 else value <= limits.max - 3
    return torch.where(is_inside, value - off if by < 0 else value + off, value)


def _addend(value: torch.Tensor, op: str, index: int, size: int, salt: str) -> torch.Tensor:
    """What rank `index` of an axis holds, so that all of them reduce to the value."""
    generator = _generator(size, salt)
    if op in ("max", "min"):
        owner = torch.randint(0, size, value.shape, generator=generator)
        other = _farther(value, -1 if op == "max" else 1, generator)
        return torch.where(owner == index, value, other)
    noise = torch.randn((size, *value.shape), generator=generator, dtype=torch.float64)
    noise -= noise.mean(0, keepdim=True)
    share = value.to(torch.float64) / size + noise[index]
    return (share * size if op == "avg" else share).to(value.dtype)


def _exact_addend(value: torch.Tensor, op: str, index: int, size: int, salt: str) -> torch.Tensor:
    """The same of values with few bits on 2 or 4 ranks, without rounding: whole numbers that add up
    to 0, and the value on top of one of them. Nothing is added to what is large or no number. Sums of
    short integers wrap around."""
    generator = _generator(size, salt)
    most = 4 if value.dtype.is_floating_point or value.dtype.is_complex else 120
    whole = torch.randint(-most, most + 1, (size, *value.shape), generator=generator)
    owner = torch.randint(0, size, value.shape, generator=generator)
    last = whole.sum(0) - whole.gather(0, owner.unsqueeze(0)).squeeze(0)
    share = torch.where(owner == index, -last, whole[index]).to(value.dtype)
    share = torch.where(value.abs() < 2**20, share, torch.zeros_like(share))
    share = torch.where(owner == index, share + value, share)
    return share * size if op == "avg" else share


def split_placements(text: str) -> tuple[list[str], list[int]]:
    """ "S0#1,S0#0" is (["S0", "S0"], [1, 0]): placements, and the axes in nesting order."""
    parts = re.findall(r"(?:[^,\[\(]|\[[^\]]*\]|\([^\)]*\))+", text)
    places = [part.split("#")[0] for part in parts]
    turns = {axis: int(part.split("#")[1]) for axis, part in enumerate(parts) if "#" in part}
    return places, sorted(turns, key=turns.__getitem__)


def place(
    item: Input, value: torch.Tensor, mesh: tessera.DeviceMesh, exact_sums: bool = False
) -> torch.Tensor:
    """The input on this rank of the mesh."""
    places, order = split_placements(item.placements)
    here = mesh.get_coordinate()
    for axis, text in enumerate(places):
        if (match := _PARTIAL.fullmatch(text)) and here is not None:
            salt = f"{item.name} {axis}"
            op, size = match.group(1), mesh.size(axis)
            exact = exact_sums or not value.dtype.is_floating_point
            split = _exact_addend if exact and op in ("sum", "avg") else _addend
            value = split(value, op, here[axis], size, salt)
    whole = tessera.distribute_tensor(value, mesh, ["R"] * mesh.ndim, src_data_rank=None)
    shards = ["R" if _PARTIAL.fullmatch(text) else text for text in places]
    sharding = tessera.sharding(whole).with_placements(shards, order)
    placed = tessera.redistribute(whole, sharding)
    if shards != places:
        local = tessera.to_local(placed)
        full = tessera.sharding(placed).with_placements(places, order)
        placed = tessera.from_local(local, mesh, full.placements, shape=item.shape)
    placed = placed.detach()
    return placed.requires_grad_() if item.grad else placed
