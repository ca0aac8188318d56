"""Thread ranks that share one GPU train as one rank does; needs a GPU and a torch with CUDA."""

import models
import pytest
import torch
from cuda_steps import STEPS, Step, like, on_cpu, shard_blocks, state_of_gpt, stepped
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def gpt():
    return state_of_gpt()


@pytest.mark.parametrize("mesh_text", ["cuda:tp=2", "cuda:tp=4", "cuda:tp=8", "cuda:dp=2,tp=2", "cuda:dp=4,tp=2"])
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
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_fully_shard(ranks, gpt, size, fused):
    initial, expected = gpt
    rows = min(size, 4)  # of a batch; eight ranks have each twice, which leaves the mean as it is

    def body(rank):
        mesh = tessera.init_device_mesh(f"cuda:dp={size}")
        model = shard_blocks(like(initial), mesh)
        found = models.train(
            model,
            STEPS,
            make_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=fused),
            my_part=lambda tensor: tensor.chunk(rows)[rank % rows].cuda(),
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


OPTIMIZERS = {
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "foreach SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_whose_kernels_take_lists(ranks, gpt, name):
    """On sharded weights, with clipped gradients: what plain CUDA tensors are trained to."""

    def trained(model, my_part):
        return on_cpu(models.train(model, STEPS, None, OPTIMIZERS[name], my_part)[1])

    expected = trained(like(gpt[0]), lambda tensor: tensor.cuda())

    def body(rank):
        mesh = tessera.init_device_mesh("cuda:dp=2,tp=2")
        model = models.distribute(like(gpt[0]), mesh)
        found = trained(model, lambda tensor: models.spread_batch(tensor.cuda(), mesh))
        models.compare_state(found, expected)

    ranks(4, body)


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


def test_scaled_losses_skip_the_same_step_on_every_rank(ranks):
    """Float16 with a GradScaler: in step 1 one rank's gradient is infinite."""

    def trained(rank, size):
        tessera.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        net = net.cuda()
        x, y = torch.randn(8, 8).cuda(), torch.randn(8, 4).cuda()
        if size > 0:
            mesh = tessera.init_device_mesh(f"cuda:dp={size}")
            for layer in (net[0], net[2], net):
                tessera.fully_shard(layer, mesh)
            x, y = x.chunk(size)[rank], y.chunk(size)[rank]
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        scales = []
        for step in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = torch.nn.functional.mse_loss(net(x), y)
            if step == 1 and rank == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        whole = tessera.full_tensor if size > 0 else (lambda p: p)
        return scales, [whole(p.detach()).cpu() for p in net.parameters()]

    scales, expected = trained(0, 0)
    assert scales == [1024.0, 512.0, 512.0, 512.0]
    for size in (1, 2, 4):
        for found in ranks(size, lambda rank, size=size: trained(rank, size)):
            assert found[0] == scales
            torch.testing.assert_close(found[1], expected, rtol=2e-3, atol=2e-3)


def test_bfloat16_parameters_are_reduced_in_float32(ranks):
    def trained(rank, size):
        tessera.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
        net = net.cuda()
        x, y = torch.randn(8, 8).cuda(), torch.randn(8, 4).cuda()
        mesh = tessera.init_device_mesh(f"cuda:dp={size}")
        policy = tessera.MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
        tessera.fully_shard(net, mesh, mp_policy=policy)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        seen = []
        for _ in range(3):
            with tessera.Recorder() as recorder:
                out = net(x.chunk(size)[rank].bfloat16())
                assert out.dtype == torch.bfloat16
                torch.nn.functional.mse_loss(out.float(), y.chunk(size)[rank]).backward()
            seen += [(e.op, e.dtype) for e in recorder.events]
            assert all(p.grad.dtype == torch.float32 for p in net.parameters())
            optimizer.step()
            optimizer.zero_grad()
        return seen, [tessera.full_tensor(p.detach()).cpu() for p in net.parameters()]

    expected = ranks(1, lambda rank: trained(rank, 1))[0][1]
    for seen, found in ranks(4, lambda rank: trained(rank, 4)):
        assert {str(dtype) for op, dtype in seen if "reduce_scatter" in str(op)} == {"torch.float32"}
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
def test_attention_with_dropout_is_the_same_on_any_mesh(ranks, kernel):
    """The kernels draw in the order of their own blocks, so every rank computes the whole."""
    dtype = torch.float32 if kernel == "EFFICIENT_ATTENTION" else torch.float16
    whole = torch.randn(2, 4, 64, 32, dtype=dtype)

    def attended(rank, size, placements, dropped):
        tessera.manual_seed(5)
        mesh = tessera.init_device_mesh(f"cuda:tp={size}")
        x = tessera.distribute_tensor(whole.cuda(), mesh, placements).requires_grad_()
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropped)
        y.float().pow(2).sum().backward()
        return tessera.full_tensor(y.detach()).cpu(), tessera.full_tensor(x.grad).cpu()

    with sdpa_kernel(getattr(SDPBackend, kernel)):
        kept = ranks(1, lambda rank: attended(rank, 1, "R", 0.0))[0]
        alone = ranks(1, lambda rank: attended(rank, 1, "R", 0.5))[0]
        assert not torch.allclose(kept[0], alone[0], rtol=1e-2, atol=1e-2)
        for placements in ("R", "S0", "S1"):
            for found in ranks(2, lambda rank: attended(rank, 2, placements, 0.5)):
                torch.testing.assert_close(found, alone, rtol=1e-2, atol=1e-2)
