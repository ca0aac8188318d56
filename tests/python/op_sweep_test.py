"""Every operator with a sample and a few layouts, by seed; `make sweep` takes many.

TESSERA_SWEEP_SEED=7 takes other samples and placements, TESSERA_SWEEP=full as many as `make sweep`.
"""

import os

import op_sweep
import pytest
import torch

MOST_EXCEPTIONS = 4
SEED = int(os.environ.get("TESSERA_SWEEP_SEED") or 0)
FULL = os.environ.get("TESSERA_SWEEP") == "full"


@pytest.mark.parametrize("way, share", [("value", 1.0), ("in_place", 0.3), ("out", 0.15), ("second", 0.3)])
def test_operators_give_on_shards_what_they_give_plain(way, share):
    print(f"seed {SEED}")
    options = op_sweep.Options(
        seed=SEED,
        samples=8 if FULL else 1,
        layouts=5 if FULL else 2,
        share=1.0 if FULL else share,
        form=op_sweep.Form(way=way),
    )
    totals = op_sweep.sweep(options)
    print(totals)
    assert totals.cases > 50
    assert not totals.failed, [failures[0].line() for failures in totals.failed.values()]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_operators_give_on_integers_what_they_give_plain(dtype):
    """Integers wrap around and are rounded, so fewer Partial inputs pass through an op."""
    options = op_sweep.Options(
        seed=SEED,
        samples=8 if FULL else 2,
        layouts=5 if FULL else 2,
        share=1.0 if FULL else 0.5,
        form=op_sweep.Form((dtype,)),
    )
    totals = op_sweep.sweep(options)
    print(totals)
    assert totals.cases > 50
    assert not totals.failed, [failures[0].line() for failures in totals.failed.values()]


def test_operators_give_on_processes_what_they_give_plain():
    words = ["--seed", str(SEED), "--samples", "1", "--layouts", "2"]
    words += ["--share", "1.0" if FULL else "0.05"]
    assert op_sweep.sweep_on_processes(2, words) == 0


def test_few_operators_are_left_out_and_all_of_them_exist():
    names = {op_sweep.name_of(op) for op in op_sweep.op_db}
    assert len(op_sweep.exceptions()) <= MOST_EXCEPTIONS
    left_out = op_sweep.exceptions(*op_sweep.WAYS, "integers")
    assert set(left_out) <= names, set(left_out) - names
    assert all(reason.strip() for reason in left_out.values())
