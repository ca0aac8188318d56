"""Recorder, expectations, policies."""

import json

import pytest
import torch

import tessera
from tessera import Replicate


def rows(mesh):
    return tessera.distribute_tensor(torch.ones(8, 4), mesh, "S0", src_data_rank=None)


def test_a_recorder_sees_what_starts_while_it_listens(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = rows(mesh)
        with tessera.Recorder() as recorder:
            tessera.redistribute(x, [Replicate()])
            x.cumprod(0)
        x.cumprod(0)
        assert recorder.count() == 2 and recorder.count("all_gather", "tp") == 1
        assert recorder.implicit == 1
        first, second = recorder.events
        assert (first.site, first.implicit) == ("user", False)
        assert (second.site, second.implicit) == ("aten::cumprod", True)
        assert first.bytes == 8 * 4 * 4 and first.ranks == [0, 1]
        assert "all_gather" in str(recorder)
        recorder.expect("1 all_gather on tp, 1 implicit, ...")

    ranks(2, body)


def test_unexpected_communication_is_an_error_with_the_difference(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = rows(mesh)
        with tessera.expect_comm("nothing"):
            x.relu()
        with pytest.raises(tessera.Error, match="all_gather"):
            with tessera.expect_comm("nothing"):
                tessera.full_tensor(x)

    ranks(2, body)


def test_traces_are_json_that_tracing_tools_open(ranks, tmp_path):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        with tessera.Recorder(mesh) as recorder:
            tessera.full_tensor(rows(mesh))
        path = tmp_path / f"trace{rank}.json"
        tessera.write_trace(path, recorder)
        return path

    for path in ranks(2, body):
        assert "traceEvents" in json.loads(path.read_text(encoding="utf-8"))


def test_forbidden_communication_names_op_and_remedy(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = rows(mesh)
        with tessera.implicit_comm("forbid"):
            with pytest.raises(RuntimeError, match=r"aten::cumprod would communicate.*redistribute"):
                x.cumprod(0)
            with pytest.raises(RuntimeError, match="tolist communicates"):
                x.tolist()
            with tessera.implicit_comm("allow"):
                x.cumprod(0)
                x.tolist()
        x.cumprod(0)

    ranks(2, body)


library = torch.library.Library("tessera_test", "FRAGMENT")
library.define("no_rule(Tensor x) -> Tensor")
library.impl("no_rule", lambda x: x + x, "CPU")


def test_strict_rules_refuse_what_has_none(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = rows(mesh)
        with tessera.strict_rules(), pytest.raises(RuntimeError, match="has no sharding rule"):
            torch.ops.tessera_test.no_rule(x)
        assert tessera.full_tensor(torch.ops.tessera_test.no_rule(x)).sum() == 64

    ranks(2, body)
