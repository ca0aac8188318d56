"""Plans that cannot be meant, and modules that styles do not reach."""

import copy

import pytest
import torch
from torch import nn

import tessera


def test_of_two_styles_for_a_module_that_of_its_full_path_counts():
    def body(rank):
        mesh, model = tessera.init_device_mesh("tp=2"), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        styles = tessera.RowwiseParallel(), tessera.ColwiseParallel()
        with pytest.raises(tessera.InvalidArgument, match=r"'\*' and '\[01\]' are paths of one module"):
            tessera.parallelize_module(model, mesh, {"*": styles[0], "[01]": styles[1]})
        assert not any(tessera.is_dtensor(p) for p in model.parameters())
        tessera.parallelize_module(model, mesh, {"*": styles[0], "1": styles[1]})
        return [str(tessera.placements(layer.weight)[0]) for layer in model]

    assert tessera.run_ranks(2, body) == [["S1", "S0"]] * 2


def test_another_style_replaces_the_first():
    torch.manual_seed(1)
    plain = nn.Linear(4, 6)
    x = torch.randn(3, 4)

    def body(rank):
        mesh, layer = tessera.init_device_mesh("tp=2"), copy.deepcopy(plain)
        whole = tessera.Replicate()
        for style in (tessera.ColwiseParallel(), tessera.RowwiseParallel(input_layouts=whole),
                      tessera.ColwiseParallel(output_layouts=whole)):
            tessera.parallelize_module(layer, mesh, style)
            if style.output_layouts == (whole,):
                torch.testing.assert_close(layer(x), plain(x))
                torch.testing.assert_close(copy.deepcopy(layer)(x), plain(x))
        return len(layer._forward_hooks), len(layer._forward_pre_hooks)

    assert tessera.run_ranks(2, body) == [(1, 1)] * 2


def test_a_whole_input_where_a_part_is_expected():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        layer = tessera.parallelize_module(nn.Linear(4, 6), mesh, tessera.RowwiseParallel())
        with pytest.raises(tessera.InvalidArgument, match=r"input_layouts=Replicate\(\) takes whole ones"):
            layer(torch.ones(3, 4))
        return True

    assert all(tessera.run_ranks(2, body))


def test_two_stars_stand_for_several_levels():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))),
                               "b": nn.Linear(4, 4)})
        tessera.parallelize_module(model, mesh, {"**.0": tessera.ColwiseParallel()})
        return [name for name, p in model.named_parameters() if tessera.is_dtensor(p)]

    assert tessera.run_ranks(2, body)[0] == ["a.0.weight", "a.0.bias", "a.1.0.weight", "a.1.0.bias"]


def test_attention_that_does_not_call_its_projection():
    """Styles refuse it; its parameters can be distributed, and then it sends one all_reduce."""
    torch.manual_seed(1)
    plain = nn.MultiheadAttention(12, 4, batch_first=True).double()
    x = torch.arange(72, dtype=torch.float64).view(1, 6, 12).sin()
    expected = plain(x, x, x, need_weights=False)[0]
    layouts = {"in_proj_weight": [tessera.StridedShard(0, 3)], "out_proj.weight": [tessera.Shard(1)],
               "in_proj_bias": [tessera.StridedShard(0, 3)], "out_proj.bias": [tessera.Replicate()]}

    def body(rank):
        mesh, model = tessera.init_device_mesh("tp=2"), copy.deepcopy(plain)
        with pytest.raises(NotImplementedError, match="without calling it"):
            tessera.parallelize_module(model, mesh, {"out_proj": tessera.RowwiseParallel()})
        for name, parameter in model.named_parameters():
            tessera.distribute_(parameter, mesh, layouts[name])
        given = tessera.distribute_tensor(x, mesh, "R")
        with tessera.Recorder() as recorder:
            out = tessera.full_tensor(model(given, given, given, need_weights=False)[0])
        torch.testing.assert_close(out, expected)
        return recorder.count("all_reduce", "tp"), recorder.count()

    assert tessera.run_ranks(2, body) == [(1, 1)] * 2


def test_ops_made_of_others_need_no_rule_of_their_own():
    """Norms, prelu and convolutions of a partial sum: the ops that they are made of have rules."""
    x = torch.arange(48, dtype=torch.float64).view(3, 4, 4).sin()
    w, kernel, slope = torch.ones(4, 5).double(), torch.ones(2, 4, 3).double(), torch.ones(4).double()

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        placed = [tessera.distribute_tensor(t, mesh, "R") for t in (kernel, slope)]
        with tessera.strict_rules():
            total = tessera.distribute_tensor(x, mesh, "S2") @ tessera.distribute_tensor(w, mesh, "S0")
            with tessera.Recorder() as recorder:
                got = torch.rms_norm(total, [5]), torch.prelu(total, placed[1])
            got = *got, torch.conv1d(total, placed[0])
        wanted = torch.rms_norm(x @ w, [5]), torch.prelu(x @ w, slope), torch.conv1d(x @ w, kernel)
        for own, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(tessera.full_tensor(own), other)
        return recorder.count("all_reduce", "tp"), recorder.count()

    assert tessera.run_ranks(2, body) == [(1, 1)] * 2
