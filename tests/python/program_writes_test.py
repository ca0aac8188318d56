"""Exported programs that write in place, sharded: a write that no other op reads hinders nothing, and what is
written through a view stays whole."""

import re
import subprocess

import pytest
import torch
from torch import nn

from python_process import TESSERA

pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")


class Parallel(nn.Module):
    """Attention and feed-forward side by side, as in Falcon: their sum is made in place."""

    def __init__(self):
        super().__init__()
        self.left_up, self.left_down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)
        self.right_up, self.right_down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x):
        left = self.left_down(nn.functional.relu(self.left_up(x), inplace=True))
        right = self.right_down(nn.functional.gelu(self.right_up(x)))
        right += left
        return x + right


class Residual(nn.Module):
    """Two convolutions with norms and ReLUs in place, as in ResNet."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.second(self.act(self.norm(self.first(x))))
        out += x
        return self.act(out)


class WrittenThroughView(nn.Module):
    """The product is read after it was written through a view of it."""

    def __init__(self, turn):
        super().__init__()
        self.up, self.down, self.turn = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), turn

    def forward(self, x):
        hidden = self.up(x)
        self.turn(hidden).add_(1)
        return self.down(hidden)


class OtherTypes(nn.Module):
    """Writes that a functional op would give another type: a comparison, and a product of two types."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x):
        hidden = self.up(x).float()
        hidden.mul_(x.new_full((32,), 2.0))
        hidden.gt_(0.25)
        return self.down(hidden.to(x.dtype))


def cli(*words):
    done = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shard_and_verify(tmp_path, model, x, *, memory=None):
    torch.manual_seed(0)
    program = torch.export.export(model.double().eval(), (x.double(),))
    assert any(re.search(r"_\.", str(node.target)) for node in program.graph.nodes)  # there are writes
    torch.export.save(program, tmp_path / "model.pt2")
    limit = [] if memory is None else ["--memory", memory]
    text = cli("shard", tmp_path / "model.pt2", "--mesh", "tp=2", *limit, "-o", tmp_path / "sharded")
    cli("verify", tmp_path / "model.pt2", tmp_path / "sharded", "--tolerance", "1e-12")
    for file in sorted((tmp_path / "sharded").glob("*.pt2")):
        torch.export.load(file).validate()
    return text


def test_a_sum_in_place_takes_one_all_reduce(tmp_path):
    text = shard_and_verify(tmp_path, Parallel(), torch.randn(1, 8), memory="55%")
    assert "collectives: 1 all_reduce;" in text


def test_convolutions_before_a_relu_in_place_are_sharded(tmp_path):
    text = shard_and_verify(tmp_path, Residual(), torch.randn(1, 8, 5, 5), memory="65%")
    assert "collectives: 1 all_reduce;" in text


TURNS = [lambda x: x.mT, lambda x: x.T, lambda x: x.unfold(1, 8, 8), lambda x: nn.functional.dropout(x, training=False)]


@pytest.mark.parametrize("turn", TURNS, ids=["mT", "T", "unfold", "dropout"])
def test_what_is_written_through_a_view_is_not_sharded(tmp_path, turn):
    x = torch.randn(4, 8)
    shard_and_verify(tmp_path, WrittenThroughView(turn), x, memory="80%")
    (tmp_path / "plan.json").write_text('{"weights": {"up.weight": "S0", "down.weight": "S1"}}')
    words = ["shard", tmp_path / "model.pt2", "--mesh", "tp=2", "--plan", tmp_path / "plan.json"]
    done = subprocess.run([TESSERA, *map(str, words), "-o", tmp_path / "by_plan"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"the plan is not possible" in done.stderr


def test_writes_keep_the_type_of_their_tensor(tmp_path):
    shard_and_verify(tmp_path, OtherTypes(), torch.randn(1, 8))
