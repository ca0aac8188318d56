"""Thread ranks that share one GPU train as one rank does; needs a GPU and a torch with CUDA."""

import copy

import models
import pytest
import torch

import tessera

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
STEPS = 3


@pytest.fixture(scope="module")
def gpt():
    initial = copy.deepcopy(models.make("gpt").state_dict())
    return initial, models.train(models.make("gpt"), STEPS)[1]


def like(initial):
    model = models.GPT().double()
    model.load_state_dict(initial)
    return model.cuda()


def on_cpu(state):
    return {name: value.cpu() for name, value in state.items()}


@pytest.mark.parametrize("mesh_text", ["cuda:tp=2", "cuda:dp=2,tp=2"])
def test_weights_distributed_by_hand(ranks, gpt, mesh_text):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        model = models.distribute(like(initial), mesh)
        found = models.train(
            model, STEPS, my_part=lambda tensor: models.spread_batch(tensor.cuda(), mesh)
        )[1]
        models.compare_state(on_cpu(found), expected)

    ranks(tessera.DeviceMesh.parse(mesh_text).size(), body)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_fully_shard(ranks, gpt, size, fused):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh(f"cuda:dp={size}")
        model = shard_blocks(like(initial), mesh)
        found = models.train(
            model,
            STEPS,
            make_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=fused),
            my_part=lambda tensor: tensor.chunk(size)[rank].cuda(),
        )[1]
        models.compare_state(on_cpu(found), expected)
        assert tessera.gathered_memory(mesh).bytes == 0

    ranks(size, body)


@pytest.mark.parametrize("mesh_text", ["cuda:dp=2,tp=2", "cuda:dp=4,tp=2"])
def test_fully_shard_over_tensor_parallelism(ranks, gpt, mesh_text):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        model = shard_blocks(models.distribute(like(initial), mesh["tp"]), mesh["dp"])

        def my_part(tensor):
            mine = tensor.chunk(mesh["dp"].size())[mesh.get_local_rank("dp")].cuda()
            return tessera.distribute_tensor(mine, mesh["tp"], "R", src_data_rank=None)

        found = models.train(model, STEPS, my_part=my_part)[1]
        models.compare_state(on_cpu(found), expected)

    ranks(tessera.DeviceMesh.parse(mesh_text).size(), body)


def shard_blocks(model, mesh):
    for block in model.blocks:
        tessera.fully_shard(block, mesh)
    tessera.fully_shard(model, mesh)
    return model


FORMS = {
    "plain": lambda model, mesh: model,
    "sharded": lambda model, mesh: tessera.distribute_module(model, mesh) or model,
    "fully_shard": shard_blocks,
}


class Step:
    """A training step of fixed data on one rank; its optimizer can be captured."""

    def __init__(self, initial, form):
        mesh = tessera.init_device_mesh("cuda:dp=1")
        self.model = FORMS[form](like(initial), mesh)
        self.tokens, self.targets = (part.cuda() for part in next(models.batches(1)))
        if form == "sharded":
            self.tokens = tessera.distribute_tensor(self.tokens, mesh, "R")
            self.targets = tessera.distribute_tensor(self.targets, mesh, "R")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-2, fused=True, capturable=True
        )

    def __call__(self):
        logits = self.model(self.tokens).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, self.targets.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {
            name: (tessera.full_tensor(p.detach()) if tessera.is_dtensor(p) else p.detach()).cpu()
            for name, p in self.model.named_parameters()
        }


def stepped(initial, form, steps):
    step = Step(initial, form)
    for _ in range(steps):
        step()
    return step.state()


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_a_warm_step_does_not_wait_for_the_device(ranks, gpt, form):
    def body(rank):
        step = Step(gpt[0], form)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    ranks(1, body)


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_a_captured_step_is_the_step(ranks, gpt, form):
    def body(rank):
        expected = stepped(gpt[0], "plain", 3 + 4)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step = Step(gpt[0], form)
            for _ in range(3):
                step()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                step()
            for _ in range(4):
                graph.replay()
            side.synchronize()
        models.compare_state(step.state(), expected)

    ranks(1, body)


def test_random_numbers_are_those_of_the_host(ranks):
    def drawn(mesh_text, placements):
        tessera.manual_seed(7)
        mesh = tessera.init_device_mesh(mesh_text)
        x = tessera.zeros(6, 5, device_mesh=mesh, placements=placements)
        filled = torch.cat([torch.empty_like(x).uniform_(), torch.empty_like(x).normal_()])
        kept = torch.nn.functional.dropout(x + 1, 0.5)
        return tessera.full_tensor(filled).cpu(), tessera.full_tensor(kept).cpu()

    alone = ranks(1, lambda rank: drawn("cuda:dp=1", "R"))[0]
    host = ranks(2, lambda rank: drawn("dp=2", "S0"))[0]
    for placements in ("R", "S0", "S1"):
        for uniform, kept in ranks(2, lambda rank: drawn("cuda:dp=2", placements)):
            torch.testing.assert_close(uniform, alone[0], rtol=0, atol=0)
            assert torch.equal(kept, alone[1])
            torch.testing.assert_close(uniform, host[0], rtol=1e-6, atol=1e-6)
            assert torch.equal(kept, host[1])
