"""Every operator with a few samples and layouts, by seed; `op_sweep.py` by itself takes many."""

import os

import op_sweep

MOST_EXCEPTIONS = 4


def test_operators_give_on_shards_what_they_give_plain():
    seed = int(os.environ.get("TESSERA_SWEEP_SEED") or 0)
    full = os.environ.get("TESSERA_SWEEP") == "full"
    print(f"seed {seed} (TESSERA_SWEEP_SEED={seed} repeats it; TESSERA_SWEEP=full takes more)")
    totals = op_sweep.sweep(seed, samples=8 if full else 2, layouts=5 if full else 1)
    print(totals)
    assert totals.cases > 100
    assert not totals.failed, [failures[0].line() for failures in totals.failed.values()]


def test_few_operators_are_left_out_and_all_of_them_exist():
    names = {op_sweep.name_of(op) for op in op_sweep.op_db}
    left_out = op_sweep.exceptions()
    assert len(left_out) <= MOST_EXCEPTIONS
    assert set(left_out) <= names, set(left_out) - names
    assert all(reason.strip() for reason in left_out.values())
