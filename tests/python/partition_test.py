"""Exported programs, sharded for several ranks and run on them."""

import pathlib

import pytest
import torch
from torch import nn

import tessera
from tessera.compat.experimental import tensor_parallel_transformation as torch_transformation

DATA = pathlib.Path(__file__).parent.parent / "partition"


class Mlp(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.up = nn.Linear(6, 16, bias=bias)
        self.down = nn.Linear(16, 6, bias=bias)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def calls(program, name):
    return sum(name in str(node.target) for node in program.graph.nodes)


def exported(bias=True, shape=(4, 6)):
    torch.manual_seed(0)
    return torch.export.export(Mlp(bias).double(), (torch.randn(shape).double(),))


def test_a_rank_gets_its_part_of_the_weights_and_one_all_reduce():
    whole = exported()
    for rank in range(3):
        local = tessera.tensor_parallel_transformation(
            whole, "tp=3", {"up": "colwise", "down": "rowwise"}, rank=rank
        )
        begin, end = 6 * rank, min(16, 6 * rank + 6)  # 16 over 3: 6, 6, 4
        assert torch.equal(local.state_dict["up.weight"], whole.state_dict["up.weight"][begin:end])
        assert torch.equal(
            local.state_dict["down.weight"], whole.state_dict["down.weight"][:, begin:end]
        )
        assert calls(local, "all_reduce") == 1
        assert calls(local, "all_gather") == 0
        local.validate()


def test_plans_are_modules_or_whole_or_files(tmp_path):
    whole = exported()
    (tmp_path / "plan.json").write_text('{"modules": {"up": "colwise", "down": "rowwise"}}')
    plans = [
        {"modules": {"up": "colwise", "down": "rowwise"}},
        tmp_path / "plan.json",
        {"weights": {"up.weight": "S0", "up.bias": "S0", "down.weight": "S1"}},
    ]
    for plan in plans:
        local = tessera.tensor_parallel_transformation(whole, "tp=2", plan, rank=0)
        assert local.state_dict["up.weight"].shape == (8, 6)
        assert calls(local, "all_reduce") == 1
    shards = {"modules": {"up": "colwise"}, "outputs": {"output": "S1"}, "weights": {"down.weight": "S0"}}
    local = tessera.tensor_parallel_transformation(whole, "tp=2", shards, rank=0)
    assert local.state_dict["down.weight"].shape == (3, 16)


def test_wrong_calls_say_what_is_wrong():
    whole = exported()
    with pytest.raises(tessera.InvalidArgument, match="upp"):
        tessera.tensor_parallel_transformation(whole, "tp=2", {"upp": "colwise"}, rank=0)
    with pytest.raises(tessera.InvalidArgument, match="styles are"):
        tessera.tensor_parallel_transformation(whole, "tp=2", {"up": nn.Linear}, rank=0)
    with pytest.raises(tessera.InvalidArgument, match="rank 2"):
        tessera.tensor_parallel_transformation(whole, "tp=2", {"up": "colwise"}, rank=2)
    with pytest.raises(tessera.InvalidArgument, match="which rank"):
        tessera.tensor_parallel_transformation(whole, "tp=2", {"up": "colwise"})


def test_instances_of_styles_are_what_they_say():
    """PyTorch compares a style with its class: ColwiseParallel() is taken as row-wise there."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    whole = exported()
    for styles in ((ColwiseParallel, RowwiseParallel), (ColwiseParallel(), RowwiseParallel())):
        plan = dict(zip(("up", "down"), styles))
        local = torch_transformation(whole, 1, 2, "cpu", plan)
        assert local.state_dict["up.weight"].shape == (8, 6)
        assert local.state_dict["down.weight"].shape == (6, 8)


def test_the_three_tests_of_pytorch(torchrun):
    """The counterparts of PyTorch's tests of its transformation, on two processes: a stack of layers,
    layers without bias, and an op without a rule; and what fails there: three dims, as exported."""
    torchrun(
        2,
        """
        import torch
        import torch.distributed as dist
        from tessera.compat.experimental import tensor_parallel_transformation
        from torch import nn
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()

        class Layer(nn.Module):
            def __init__(self, bias=True):
                super().__init__()
                self.net1, self.net2 = nn.Linear(6, 10, bias=bias), nn.Linear(10, 6, bias=bias)

            def forward(self, x):
                return torch.sigmoid(self.net2(torch.relu(self.net1(x))))

        class Stack(nn.Module):
            def __init__(self, bias=True):
                super().__init__()
                self.mlps = nn.ModuleList(Layer(bias) for _ in range(2))

            def forward(self, x):
                for mlp in self.mlps:
                    x = mlp(x)
                return torch.cumprod(x, -1)        # no rule: runs on whole tensors

        def check(model, x, reduces, **options):
            program = torch.export.export(model, (x,))
            if options.get("core"):
                program = program.run_decompositions()
            plan = {}
            for i in range(2):
                plan[f"mlps.{i}.net1"], plan[f"mlps.{i}.net2"] = ColwiseParallel, RowwiseParallel
            local = tensor_parallel_transformation(program, rank, world, "cpu", plan)
            names = [str(node.target) for node in local.graph.nodes]
            assert sum("all_reduce" in name for name in names) == reduces, names
            assert not any("all_gather" in name for name in names), names
            with torch.no_grad():
                torch.testing.assert_close(local.module()(x), model(x), rtol=1e-10, atol=1e-10)

        torch.manual_seed(0)
        for core in (True, False):
            for shape in ((4, 6), (2, 4, 6)):
                x = torch.rand(shape).double()
                check(Stack().double(), x, 2, core=core)
                check(Stack(bias=False).double(), x, 2, core=core)
        dist.destroy_process_group()
        """,
    )


MODELS = ["mlp_core_dynamic", "gpt_raw", "llama_infer", "bert_raw_dynamic", "vit_infer", "moe_raw"]


def test_files_of_ranks_run_in_python(torchrun, tmp_path):
    """Sharded files, loaded by torch.export.load and run on two Gloo processes, equal the whole."""
    for name in MODELS:
        model = name.split("_")[0]
        plan = DATA / "plans" / f"{model}.json"
        source = DATA / "data" / f"{name}.pt2"
        tessera.shard_program(source, "tp=2", plan, directory=tmp_path / name)
        with pytest.raises(tessera.InvalidArgument, match="exists"):
            tessera.shard_program(source, "tp=2", plan, directory=tmp_path / name)
    torchrun(
        2,
        f"""
        import pathlib
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()

        def inputs_of(program):
            torch.manual_seed(1)
            for node in program.graph.nodes:
                if node.op != "placeholder" or node.name not in program.graph_signature.user_inputs:
                    continue
                value = node.meta["val"]
                shape = [d if isinstance(d, int) else d.node.hint for d in value.shape]
                if value.dtype.is_floating_point:
                    yield torch.randn(shape, dtype=value.dtype)
                else:
                    yield torch.randint(0, 2, shape, dtype=value.dtype)

        for name in {MODELS!r}:
            whole = torch.export.load(f"{DATA}/data/{{name}}.pt2")
            local = torch.export.load(f"{tmp_path}/{{name}}/rank_{{rank}}.pt2")
            local.validate()
            inputs = list(inputs_of(whole))
            with torch.no_grad():
                expected = torch.utils._pytree.tree_leaves(whole.module()(*inputs))
                found = torch.utils._pytree.tree_leaves(local.module()(*inputs))
            assert len(expected) == len(found)
            for a, b in zip(expected, found):
                limit = 1e-10 if a.dtype == torch.float64 else 1e-4
                assert a.shape == b.shape
                assert (a - b).abs().max() <= limit * a.abs().max(), name
        dist.barrier()  # a rank that ends early may abort the other in PyTorch's own shutdown
        dist.destroy_process_group()
        """,
    )


def test_a_sharded_directory_runs_from_python(tmp_path):
    """By position and by name, on thread ranks, with the results of the whole; in another world it is refused."""
    source = DATA / "data" / "gpt_raw_dynamic.pt2"
    tessera.shard_program(source, "tp=2", DATA / "plans" / "gpt.json", directory=tmp_path / "gpt")
    torch.manual_seed(0)
    tokens = torch.randint(0, 60, (3, 5))
    (expected,) = tessera.load_program(source).run([tokens])

    def body(_rank):
        program = tessera.load_sharded_program(tmp_path / "gpt")
        assert program.mesh == "tp=2"
        assert program.input_names == ["tokens"]
        by_position = program.run([tokens])[0]
        by_name = program.run({"tokens": tokens})[program.output_names[0]]
        return (by_position - expected).abs().max().item(), (by_name - expected).abs().max().item()

    for differences in tessera.run_ranks(2, body):
        assert max(differences) < 1e-10
    with pytest.raises(tessera.InvalidArgument, match="2 ranks, but there are 1"):
        tessera.load_sharded_program(tmp_path / "gpt")


def test_a_single_file_of_all_ranks_is_read_here_and_by_python(tmp_path):
    """One archive: the same parts as files of ranks, which PyTorch's reader of packages finds by name."""
    from torch.export.pt2_archive._package import load_pt2

    source, plan = DATA / "data" / "gpt_raw_dynamic.pt2", DATA / "plans" / "gpt.json"
    single = tmp_path / "gpt_all.pt2"
    tessera.shard_program(source, "tp=2", plan, directory=single, single_file=True)
    tessera.shard_program(source, "tp=2", plan, directory=tmp_path / "gpt")
    programs = load_pt2(single).exported_programs
    assert sorted(programs) == ["rank_0", "rank_1"]
    for rank in range(2):
        alone = torch.export.load(tmp_path / "gpt" / f"rank_{rank}.pt2")
        programs[f"rank_{rank}"].validate()
        for name, weight in alone.state_dict.items():
            assert torch.equal(weight, programs[f"rank_{rank}"].state_dict[name]), name
    tokens = torch.randint(0, 60, (3, 5))
    (expected,) = tessera.load_program(source).run([tokens])

    def body(_rank):
        return (tessera.load_sharded_program(single).run([tokens])[0] - expected).abs().max().item()

    assert max(tessera.run_ranks(2, body)) < 1e-10
    with pytest.raises(tessera.InvalidArgument, match="no program 'model'"):
        tessera.load_program(single)


class LookUps(nn.Module):
    """Rows of a table by indices that are strided, transposed, repeated, none at all and one without dims."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4, padding_idx=2)

    def forward(self, tokens):
        every_other = self.embed(tokens[:, ::2])
        turned = self.embed(tokens.t())
        spread = self.embed(tokens[0, 0].expand(3, 2))
        return every_other, turned, spread, self.embed(tokens[:0]), self.embed(tokens[1, 1])


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("core", [False, True], ids=["raw", "core"])
def test_look_ups_of_any_layout_in_a_sharded_table(tmp_path, ranks, core):
    """10 rows over 2, 3 and 4 ranks: 5,5; 4,4,2; 3,3,3,1."""
    torch.manual_seed(0)
    model, tokens = LookUps().double(), torch.tensor([[0, 9, 2, 5], [3, 8, 7, 2]])
    program = torch.export.export(model, (tokens,))
    torch.export.save(program.run_decompositions() if core else program, tmp_path / "model.pt2")
    tessera.shard_program(
        tmp_path / "model.pt2", f"tp={ranks}", {"embed": "vocabulary"}, directory=tmp_path / "sharded"
    )
    expected = [t.detach() for t in model(tokens)]

    def body(_rank):
        program = tessera.load_sharded_program(tmp_path / "sharded")
        return [t.clone() for t in program.run([tokens])]

    for found in tessera.run_ranks(ranks, body):
        for a, b in zip(expected, found, strict=True):
            assert a.shape == b.shape and torch.equal(a, b)


class Turned(nn.Linear):
    """A linear layer that some models write by hand, as transformers' Falcon."""

    def __init__(self, turn, *sizes):
        super().__init__(*sizes, bias=False)
        self.turn = turn

    def forward(self, x):
        return x @ self.turn(self.weight)


class TurnedMlp(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.up, self.down = Turned(turn, 6, 16), Turned(turn, 16, 6)

    def forward(self, x):
        hidden = nn.functional.pad(self.up(x), (0, 0, 1, 2))  # of the rows, not of the sharded dim
        return self.down(nn.functional.gelu(hidden))


WEIGHTS = {"weights": {"up.weight": "S0", "down.weight": "S1"}}


@pytest.mark.parametrize(
    ("turn", "plan"),
    [
        (lambda w: w.T, {"up": "colwise", "down": "rowwise"}),
        (lambda w: w.mT, {"up": "colwise", "down": "rowwise"}),
        (lambda w: w.mH, WEIGHTS),
        (lambda w: w.H, WEIGHTS),
        (lambda w: w.adjoint(), WEIGHTS),
    ],
    ids=["T", "mT", "mH", "H", "adjoint"],
)
def test_weights_that_are_transposed_by_hand_are_sharded(tmp_path, turn, plan):
    torch.manual_seed(0)
    model, x = TurnedMlp(turn).double(), torch.randn(2, 4, 6).double()
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    local = tessera.tensor_parallel_transformation(program, "tp=2", plan, rank=1)
    assert local.state_dict["up.weight"].shape == (8, 6)
    assert calls(local, "all_reduce") == 1 and calls(local, "all_gather") == 0
    tessera.shard_program(tmp_path / "model.pt2", "tp=2", plan, directory=tmp_path / "sharded")
    for found in tessera.run_ranks(2, lambda _rank: tessera.load_sharded_program(tmp_path / "sharded").run([x])):
        torch.testing.assert_close(found[0], model(x).detach(), rtol=1e-10, atol=1e-10)


class Pooled(nn.Module):
    """The mean of all positions as a pooling, which core ATen has as a mean and an as_strided."""

    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        pooled = nn.functional.adaptive_avg_pool1d(self.up(x).transpose(1, 2), 1)
        return self.head(pooled.flatten(1))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_pooling_to_one_element_in_core_aten(tmp_path, dynamic):
    torch.manual_seed(0)
    model, x = Pooled().double(), torch.randn(2, 5, 6).double()
    sizes = {0: torch.export.Dim("batch", min=2, max=16)} if dynamic else None
    program = torch.export.export(model, (x,), dynamic_shapes=(sizes,)).run_decompositions()
    assert calls(program, "as_strided") == 1
    torch.export.save(program, tmp_path / "model.pt2")
    tessera.shard_program(tmp_path / "model.pt2", "tp=2", {"up": "colwise"}, directory=tmp_path / "sharded")
    for rank in range(2):
        torch.export.load(tmp_path / "sharded" / f"rank_{rank}.pt2").validate()
    for found in tessera.run_ranks(2, lambda _rank: tessera.load_sharded_program(tmp_path / "sharded").run([x])):
        torch.testing.assert_close(found[0], model(x).detach(), rtol=1e-10, atol=1e-10)


def test_what_cannot_be_divided_is_refused_before_anything_is_written(tmp_path):
    """The reason names the weight; neither a directory nor a file is left, not even for a moment's name."""
    torch.export.save(exported(), tmp_path / "model.pt2")
    folder = tmp_path / "out"
    folder.mkdir()
    for single in (False, True):
        with pytest.raises(tessera.InvalidArgument, match="up.*too few elements|too few elements.*up"):
            tessera.shard_program(
                tmp_path / "model.pt2",
                "tp=32",  # 16 columns
                {"up": "colwise", "down": "rowwise"},
                directory=folder / "sharded",
                single_file=single,
            )
        assert not list(folder.iterdir())
