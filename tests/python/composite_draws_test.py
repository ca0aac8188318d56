"""Functions of torch that are written in Python and draw numbers: the copies on all ranks are the same."""

import pytest

FUNCTIONS = {
    "svd_lowrank": "torch.svd_lowrank(matrix, q=2, niter=0)[1]",
    "pca_lowrank": "torch.pca_lowrank(matrix, q=2, niter=0)[1]",
    "lobpcg": "torch.lobpcg(matrix @ matrix.t() + torch.eye(12), k=1, niter=1)[0]",
    "fractional_max_pool2d": "F.fractional_max_pool2d(images, 3, output_size=2)",
    "fractional_max_pool2d with indices": "F.fractional_max_pool2d(images, 3, output_size=2, return_indices=True)[1]",
    "fractional_max_pool3d": "F.fractional_max_pool3d(images[:, :, None].expand(1, 1, 12, 12, 12), 3, output_size=2)",
}


@pytest.mark.parametrize("seeds", ["", "tessera.manual_seed(42)", "torch.manual_seed(7)"])
def test_copies_are_the_same_on_all_ranks(beside_torch, seeds):
    """Also where nobody seeded the processes."""
    cases = "\n".join(f"check({name!r}, lambda: {text})" for name, text in FUNCTIONS.items())
    beside_torch(2, f"""
import torch.nn.functional as F

mesh = tessera.init_device_mesh("tp=2")
numbers = torch.arange(144.0).sin()
{seeds}


def check(name, function):
    with tessera.implicit_replication():
        x = function()
    mine = tessera.to_local(tessera.redistribute(x, "R")) if tessera.is_dtensor(x) else x
    mine = mine.contiguous()
    others = [torch.empty_like(mine) for _ in range(2)]
    torch.distributed.all_gather(others, mine)
    assert torch.equal(*others), name


for placement in ("R", "S0"):
    matrix = tessera.distribute_tensor(numbers.view(12, 12), mesh, placement)
    images = tessera.distribute_tensor(numbers.view(1, 1, 12, 12), mesh, placement)
    {cases.replace(chr(10), chr(10) + "    ")}
""")


def test_ranks_that_are_seeded_differently_are_named(beside_torch):
    beside_torch(2, """
import pytest
mesh = tessera.init_device_mesh("tp=2")
tessera.manual_seed(42 + rank)
matrix = tessera.distribute_tensor(torch.arange(144.0).view(12, 12), mesh, "R")
with pytest.raises(tessera.Error, match="generators of its ranks differ"):
    torch.svd_lowrank(matrix, q=2)
""")
