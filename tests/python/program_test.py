"""Exported programs run by the C++ part against Python running the same file, bit by bit."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import exported_models
import tessera


def same_bits(path, *calls):
    """Runs the file here and there; every call twice, since buffers may change."""
    program = tessera.load_program(path)
    module = torch.export.load(path).module()
    for args, kwargs in calls:
        for _ in range(2):
            with torch.no_grad():
                expected = pytree.tree_leaves(module(*args, **kwargs))
            results = program.run([leaf for leaf in pytree.tree_leaves((args, kwargs)) if leaf is not None])
            assert len(results) == len(expected)
            for mine, theirs in zip(results, expected):
                if isinstance(theirs, torch.Tensor):
                    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
                    assert torch.equal(mine, theirs)
                else:
                    assert mine == theirs
    return program


@pytest.fixture(scope="module")
def models():
    return exported_models.cases()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", exported_models.FORMS)
@pytest.mark.parametrize("name", ["mlp", "gpt", "llama", "bert", "vit", "moe"])
def test_models_give_the_bits_that_python_gives(models, tmp_path, name, form, dynamic):
    if reason := exported_models.refusal(name, dynamic=dynamic):
        pytest.skip(reason)
    case = models[name]
    path = tmp_path / "model.pt2"
    torch.export.save(exported_models.exported(case, form, dynamic=dynamic), path)
    same_bits(path, (case.args, case.kwargs), *([case.other] if dynamic else []))


def save(tmp_path, module, args, kwargs=None, **options):
    path = tmp_path / "model.pt2"
    torch.export.save(export(module, args, kwargs, **options), path)
    return path


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count.add_(x.sum())
        return self.count * 2, x.mul_(3)


@pytest.mark.parametrize("functional", [False, True])
def test_buffers_and_inputs_are_written_to(tmp_path, functional):
    program = export(Counter(), (torch.ones(2),))
    path = tmp_path / "model.pt2"
    torch.export.save(program.run_decompositions({}) if functional else program, path)
    mine, theirs = tessera.load_program(path), torch.export.load(path).module()
    for value in (1.0, 2.0):
        x, y = torch.full((2,), value), torch.full((2,), value)
        for a, b in zip(mine.run([x]), theirs(y)):
            assert torch.equal(a, b)
        assert torch.equal(x, y) and x[0] == 3 * value
    assert mine.tensor("count")[0] == 6


class Arithmetic(nn.Module):
    def forward(self, x, y):
        rows, columns = x.shape
        z = torch.cat((x, y)).view(rows * 2, columns)[: (rows + 1) // 2, : columns - 1]
        pads = torch.full((rows % 3 + 2, columns**2 - 1), 0.5) * (rows / 2)
        return {"z": z * rows, "pads": pads, "numbers": [rows * columns, rows // 2], "none": None}


def test_sizes_are_computed(tmp_path):
    rows, columns = Dim("rows", min=4, max=64), Dim("columns", min=4, max=64)
    shape = {0: rows, 1: columns}
    path = save(tmp_path, Arithmetic(), (torch.ones(4, 6), torch.ones(4, 6)), dynamic_shapes=(shape, shape))
    calls = [((torch.randn(n, m), torch.randn(n, m)), {}) for n, m in ((4, 6), (7, 4), (13, 5))]
    program = same_bits(path, *calls)
    assert program.output_names == ["z", "pads", "numbers.0", "numbers.1", "none"]
    with pytest.raises(tessera.InvalidArgument, match="input y: dim 1 is .* which is 6 in input x"):
        program.run([torch.ones(4, 6), torch.ones(4, 5)])
    with pytest.raises(tessera.InvalidArgument, match="node"):  # the file ties their rows by a guard alone
        program.run([torch.ones(4, 6), torch.ones(5, 6)])


class DerivedSizes(nn.Module):
    def forward(self, x, y):
        return x.repeat(2, 1) + y


def test_sizes_that_follow_from_others_are_checked(tmp_path):
    n = Dim("n", min=3, max=50)
    path = save(tmp_path, DerivedSizes(), (torch.ones(4, 2), torch.ones(8, 2)), dynamic_shapes=({0: n}, {0: 2 * n}))
    program = same_bits(path, ((torch.randn(5, 2), torch.randn(10, 2)), {}))
    with pytest.raises(tessera.InvalidArgument, match=r"dim 0 must be 2\*s\d+ = 10"):
        program.run([torch.ones(5, 2), torch.ones(9, 2)])
    with pytest.raises(tessera.InvalidArgument, match="3 to 50"):
        program.run([torch.ones(2, 2), torch.ones(4, 2)])


class Indexed(nn.Module):
    def forward(self, x, i, *, scale, names, factor=2, missing=None):
        y = x[i, :, None] + x[:, i].sum() * scale
        first, *rest = torch.unbind(x.sort(-1)[0])
        y[0] = 7
        parts = torch.ops.aten.split_with_sizes(x, [1, x.shape[0] - 1])
        total = torch.stack(rest).sum(0) + first.to(torch.float64) * factor
        return y, total, names["a"][1] + 1, torch.meshgrid(i, i, indexing="ij"), parts


def test_lists_indices_and_nested_arguments(tmp_path):
    args = (torch.randn(4, 4), torch.tensor([0, 3, 1]))
    kwargs = {"scale": torch.tensor(0.5), "names": {"a": [torch.ones(1), torch.ones(2)]}}
    program = same_bits(save(tmp_path, Indexed(), args, kwargs), (args, kwargs))
    assert program.input_names == ["x", "i", "scale", "names.a.0", "names.a.1"]
    named = dict(zip(program.input_names, pytree.tree_leaves((args, kwargs))))
    assert torch.equal(program.run(named)["0"], program.run(list(named.values()))[0])


class DataDependent(nn.Module):
    def forward(self, x):
        count = x.max().item()
        torch._check(count >= 1)
        torch._check(count < 100)
        return torch.ones(count) * x.nonzero().shape[0], x > count - 1


def test_sizes_that_depend_on_data(tmp_path):
    path = save(tmp_path, DataDependent(), (torch.tensor([3, 0, 5]),))
    program = same_bits(path, ((torch.tensor([3, 0, 5]),), {}), ((torch.tensor([2, 0, 0]),), {}))
    with pytest.raises(tessera.InvalidArgument, match="node"):
        program.run([torch.tensor([0, 0, 0])])


class WithoutGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            frozen = self.linear(x).sin()
            both = frozen + 1, frozen * 2
        with torch.autocast("cpu", enabled=False):
            y = x.float() @ x.float().T
        return self.linear(x) * both[0] + both[1], y


def test_blocks_without_grad_or_autocast_are_run_in_place(tmp_path):
    x = torch.randn(3, 3)
    same_bits(save(tmp_path, WithoutGrad(), (x,)), ((x,), {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_element_types(tmp_path, dtype):
    case = exported_models.cases()["llama"]
    case.model.to(dtype)
    path = save(tmp_path, case.model, case.args)
    same_bits(path, (case.args, {}))


def test_random_numbers_come_from_the_default_generator(tmp_path):
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn(4), torch.nn.functional.dropout(x, 0.5)

    path = save(tmp_path, Noise(), (torch.ones(4),))
    torch.manual_seed(5)
    mine = tessera.load_program(path).run([torch.ones(4)])
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(mine, torch.export.load(path).module()(torch.ones(4))))


def test_weights_are_mapped_and_shared(tmp_path):
    path = tmp_path / "model.pt2"
    case = exported_models.cases()["gpt"]
    torch.export.save(exported_models.exported(case, "raw", dynamic=False), path)
    before = path.read_bytes()
    program = tessera.load_program(path)
    words, head = program.tensor("words.weight"), program.tensor("head.weight")
    assert words.data_ptr() == head.data_ptr()
    first = program.run(case.args)[0]
    with torch.no_grad():
        words.zero_()
    assert not torch.equal(program.run(case.args)[0], first)
    assert path.read_bytes() == before
    assert torch.equal(tessera.load_program(path).run(case.args)[0], first)


def test_errors_say_what_is_wrong(tmp_path):
    path = save(tmp_path, nn.Linear(3, 2), (torch.ones(4, 3),))
    program = tessera.load_program(path)
    with pytest.raises(tessera.InvalidArgument, match="tensors and numbers"):
        program.run(["text"])
    with pytest.raises(tessera.InvalidArgument, match="no input y"):
        program.run({"y": torch.ones(4, 3)})
    with pytest.raises(tessera.InvalidArgument, match="missing.pt2"):
        tessera.load_program(tmp_path / "missing.pt2")
    with pytest.raises(tessera.NotSupported, match="higher-order"):
        tessera.load_program("tests/program/data/branch.pt2")


class Aliases(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        y = x + self.weight
        return y, y, self.weight, x, self.steps, x.view(1, 3), None, 5


@pytest.mark.parametrize("functional", [False, True])
def test_outputs_that_are_inputs_weights_constants_or_each_other(tmp_path, functional):
    program = export(Aliases(), (torch.ones(3),))
    path = tmp_path / "model.pt2"
    torch.export.save(program.run_decompositions({}) if functional else program, path)
    same_bits(path, ((torch.randn(3),), {}))


class Nothing(nn.Module):
    def forward(self):
        return torch.arange(4) * 2


def test_a_program_without_inputs(tmp_path):
    same_bits(save(tmp_path, Nothing(), ()), ((), {}))


class Scalars(nn.Module):
    def forward(self, x, n, flag, scale=2.0):
        return x * n * scale if flag else x


def test_arguments_that_were_fixed_are_left_out(tmp_path):
    path = save(tmp_path, Scalars(), (torch.ones(3), 4, True), {"scale": 0.5})
    program = tessera.load_program(path)
    assert program.input_names == ["x"]
    assert torch.equal(program.run([torch.ones(3)])[0], torch.full((3,), 2.0))


class Empty(nn.Module):
    def forward(self, x, y):
        return torch.cat((x, y)), x.sum(), (x @ y.T).softmax(-1), torch.zeros(0), torch.tensor(3.5)


def test_tensors_without_elements_or_dims(tmp_path):
    args = (torch.zeros(0, 3), torch.randn(2, 3))
    same_bits(save(tmp_path, Empty(), args), (args, {}))
