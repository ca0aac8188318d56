"""Programs that the fuzzer found wrong or refused once, as it made them short; all are right now."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import worker  # noqa: E402
from found import conjugates, copies, edges, modes, shared_elements, views  # noqa: E402

RIGHT = {
    **conjugates.PROGRAMS,
    **copies.PROGRAMS,
    **edges.PROGRAMS,
    **modes.PROGRAMS,
    **shared_elements.PROGRAMS,
    **views.PROGRAMS,
}


@pytest.mark.parametrize("what", RIGHT)
def test_a_program_that_was_wrong_is_right(what):
    for verdict in worker.judge_here(RIGHT[what]):
        assert verdict.kind == "right", verdict.text
