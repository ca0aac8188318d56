"""Programs written for torch.distributed.fsdp's fully_shard, with one import changed."""

import copy

import pytest
import torch
from torch.distributed.fsdp import _fully_shard as theirs

import tessera
from tessera import compat
from tessera.compat import Shard, init_device_mesh
from tessera.compat.debug import CommDebugMode
from tessera.compat.fsdp import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    FSDPMeshInfo,
    FSDPModule,
    MixedPrecisionPolicy,
    ShardPlacementResult,
    fully_shard,
)

LAYERS = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3))).double()
BATCH = torch.randn(8, 6, dtype=torch.float64)


def grads_of(model):
    return [p.grad for p in model.parameters()]


def plain_grads(batch=BATCH):
    plain = copy.deepcopy(LAYERS)
    plain(batch).square().sum().backward()
    return grads_of(plain)


def sharded(mesh, **options):
    model = copy.deepcopy(LAYERS)
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for layer in model:
        layer.set_gradient_divide_factor(1.0)
    return model


def check_grads(model, expected):
    for grad, want in zip(grads_of(model), expected, strict=True):
        torch.testing.assert_close(grad.full_tensor(), want, rtol=1e-10, atol=1e-10)


def test_every_name_of_fsdp2_is_there():
    assert not set(theirs.__all__) - set(vars(compat))
    public = {name for name in vars(theirs.FSDPModule) if not name.startswith("_")}
    assert not public - set(vars(FSDPModule))
    for policy in ("MixedPrecisionPolicy", "CPUOffloadPolicy", "DataParallelMeshDims"):
        if not hasattr(theirs, policy):
            continue  # an older torch
        fields = {field.name for field in getattr(theirs, policy).__dataclass_fields__.values()}
        assert fields <= set(getattr(compat, policy).__dataclass_fields__)


def test_a_program_of_fsdp2_runs(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).double()
        policy = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64)
        inner = MixedPrecisionPolicy(param_dtype=torch.float32)
        for layer in model[:2]:
            fully_shard(layer, mesh=mesh, mp_policy=inner, reshard_after_forward=False)
        fully_shard(
            model,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy(),
            shard_placement_fn=lambda p: Shard(1) if p.dim() == 2 else None,
        )
        assert isinstance(model, FSDPModule) and isinstance(model, torch.nn.Sequential)
        assert isinstance(model[0], FSDPModule) and not isinstance(model[2], FSDPModule)
        assert type(model).__name__ == "FSDPSequential" and type(model[:2]) is torch.nn.Sequential
        assert model[2].weight.placements == (Shard(1),)

        model.unshard()
        assert [group.gathered for group in tessera.sharded_groups(model)] == [False, False, True]
        model.reshard()
        model.unshard(async_op=True).wait()
        model.set_modules_to_forward_prefetch([model[0]])
        model.set_requires_gradient_sync(False)
        model.set_is_last_backward(False)
        x = torch.full((2, 4), rank + 1.0).double()
        model(x).sum().backward()
        assert model[0].weight.grad is None
        model.set_requires_gradient_sync(True, recurse=False)
        model(x).sum().backward()
        assert model[0].weight.grad is None and model[2].weight.grad.placements == (Shard(1),)
        model.set_requires_gradient_sync(True)
        seen = []

        def all_gather(output_tensor, input_tensor, group, async_op=False):
            seen.append("all_gather")
            return group._allgather_base(output_tensor, input_tensor)

        model.set_custom_all_gather(all_gather)
        model.set_all_reduce_hook(lambda reduced: seen.append("reduced"))
        out = model(x)
        out.sum().backward()
        assert {"all_gather", "reduced"} == set(seen)
        assert out.dtype == torch.float64 and model[0].weight.grad.placements == (Shard(0),)

    ranks(2, body)


def test_replicas_accumulate_before_they_agree(ranks):
    expected = plain_grads()

    def body(rank):
        model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fs")))
        first, second = BATCH.chunk(4)[rank].chunk(2)
        model.set_requires_all_reduce(False)
        with CommDebugMode() as mode:
            model(first).square().sum().backward()
        counts = mode.get_comm_counts()  # as FSDP2's are counted
        assert counts[torch.ops.c10d._reduce_scatter_base_] > 0
        assert counts[torch.ops.c10d.allreduce_] == 0
        assert grads_of(model) == [None] * 6
        model.set_requires_all_reduce(True)
        model(second).square().sum().backward()
        check_grads(model, expected)
        with pytest.raises(ValueError, match="stream"):
            model.set_all_reduce_hook(print, stream=torch.cpu.Stream())

    ranks(4, body)


def test_what_is_resharded_can_be_changed(ranks):
    expected = plain_grads()

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = sharded(mesh)
        first, second = BATCH.chunk(2)[rank].chunk(2)
        model.set_reshard_after_forward(False)
        model.set_reshard_after_backward(False)
        model(first).square().sum().backward()
        with tessera.Recorder() as recorder:
            model(second).square().sum().backward()
        assert recorder.count("all_gather") <= 1  # once more where groups were merged
        check_grads(model, expected)
        assert tessera.gathered_memory(mesh).bytes > 0
        model.set_reshard_after_backward(True)
        model.set_reshard_after_forward(True, recurse=False)
        model(second).sum().backward()
        assert tessera.gathered_memory(mesh).bytes == 0
        with pytest.raises(tessera.InvalidArgument, match="bool"):
            model.set_reshard_after_forward(2)

    ranks(2, body)


def test_ranks_may_use_different_parameters(ranks):
    both = LAYERS[0](BATCH[:1]).sum() + LAYERS[1](BATCH[1:2]).sum()
    expected = torch.autograd.grad(both, list(LAYERS[:2].parameters()))

    def body(rank):
        model = copy.deepcopy(LAYERS[:2])
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        model.set_gradient_divide_factor(1.0)
        model.set_reduce_scatter_unused_params(True)
        model[rank](BATCH[rank : rank + 1]).sum().backward()
        check_grads(model, expected)

    ranks(2, body)


def test_unshard_returns_before_the_gather_has_ended(ranks):
    def body(rank):
        model = sharded(init_device_mesh("cpu", (2,)))
        layer = model[1]
        assert layer.unshard() is None
        layer.reshard()
        handle = layer.unshard(async_op=True)
        assert isinstance(handle, compat.UnshardHandle)
        assert not tessera.sharded_groups(layer)[0].gathered
        handle.wait()
        assert tessera.sharded_groups(layer)[0].gathered
        handle.wait()

    ranks(2, body)


def test_parameters_may_have_a_mesh_of_their_own(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
        pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fs"))
        info = FSDPMeshInfo(pairs, shard_mesh_dim=1, replicate_mesh_dim=0)
        assert (info.replicate_mesh_size, info.shard_mesh_size) == tuple(pairs.shape)
        assert [info.replicate_mesh_rank, info.shard_mesh_rank] == list(pairs.get_coordinate())
        model = fully_shard(
            copy.deepcopy(LAYERS[0]),
            mesh=mesh,
            shard_placement_fn=lambda p: ShardPlacementResult(Shard(1), info) if p.dim() == 2 else None,
        )
        assert model.weight.device_mesh == pairs and model.weight.placements[1] == Shard(1)
        assert model.bias.device_mesh == mesh

    ranks(4, body)


def test_memory_of_the_programs_own_collective_is_used(ranks):
    class AllGather:
        def __init__(self):
            self.allocated = 0

        def allocate(self, size, *, dtype, device):
            self.allocated += 1
            return torch.empty(size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            return group._allgather_base(output_tensor, input_tensor)

    def body(rank):
        layer = fully_shard(copy.deepcopy(LAYERS[0]), mesh=init_device_mesh("cpu", (2,)))
        comm = AllGather()
        layer.set_custom_all_gather(comm)
        torch.testing.assert_close(layer(BATCH), LAYERS[0](BATCH))
        assert comm.allocated == 1
        with pytest.raises(AssertionError):
            layer.set_allocate_memory_from_process_group_for_comm(True)

    ranks(2, body)


def test_what_is_not_there_says_so_and_what_has_no_meaning_is_accepted(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = sharded(mesh)
        for refused in (
            lambda: model.set_symm_mem_for_comm(),
            lambda: fully_shard(torch.nn.Linear(2, 2), mesh=mesh, dp_mesh_dims=DataParallelMeshDims("dp")),
            lambda: FSDPMeshInfo(mesh, replicate_mesh_dim=0),
        ):
            with pytest.raises(tessera.NotSupported):
                refused()
        for wrong in (
            lambda: model.set_modules_to_forward_prefetch([torch.nn.Linear(2, 2)]),
            lambda: model.set_reduce_scatter_max_input_buffers(0),
            lambda: compat.register_fsdp_forward_method(model, "no_such_method"),
            lambda: compat.share_comm_ctx([torch.nn.Linear(2, 2)]),
        ):
            with pytest.raises(tessera.InvalidArgument):
                wrong()
        for count in (2.5, True):
            with pytest.raises(TypeError):
                model.set_reduce_scatter_max_input_buffers(count)
        model.set_allocate_memory_from_process_group_for_comm(True)  # Gloo has none to give
        model.set_is_last_backward(True)
        model.set_unshard_in_backward(False)
        model.set_force_sum_reduction_for_comms(True)
        model.set_reduce_scatter_max_input_buffers(2)
        model.set_separate_reduce_scatter_group()
        model.reset_iter_state()
        compat.share_comm_ctx([model])
        compat.register_fsdp_forward_method(model, "forward")
        model(BATCH.chunk(2)[rank]).square().sum().backward()
        check_grads(model, plain_grads())

    ranks(2, body)
