"""What a step does on the device and when: no waits, no needless copies, transfers beside computation."""

import threading

import pytest
import torch
from cuda_steps import Step, state_of_gpt

import tessera

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def gpt():
    return state_of_gpt()


class WaitsAreErrors:
    """While it is open, a host that waits for the device gets an error, in all threads."""

    def __enter__(self):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_a_warm_step_does_not_wait_for_the_device(ranks, gpt, form):
    def body(rank):
        step = Step(gpt[0], form)
        for _ in range(3):
            step()
        with WaitsAreErrors():
            step()
            with pytest.raises(RuntimeError):
                torch.ones(1, device="cuda").item()  # the check sees a wait

    ranks(1, body)


def step_of_layers(mesh):
    net = make_layers(4, 64)
    for layer in net:
        tessera.fully_shard(layer, mesh)
    tessera.fully_shard(net, mesh)
    x = torch.randn(8, 64, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step():
        net(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_warm_step_of_several_ranks_does_not_wait(ranks):
    together = threading.Barrier(2, timeout=30)

    def body(rank):
        step = step_of_layers(tessera.init_device_mesh("cuda:dp=2"))
        for _ in range(3):
            step()
        together.wait()
        if rank == 0:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        together.wait()
        try:
            step()
        finally:
            together.wait()
            if rank == 0:
                torch.cuda.set_sync_debug_mode("default")

    ranks(2, body)


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_a_warm_step_calls_nothing_that_waits(ranks, gpt, form):
    """In the calls of CUDA's runtime, which include waits for events and streams."""

    def body(rank):
        def waits(action):
            with DeviceTrace() as trace:
                action()
            return trace.waits

        step = Step(gpt[0], form)
        for _ in range(3):
            step()
        none = waits(lambda: None)
        assert waits(torch.cuda.current_stream().synchronize) > none  # the count sees a wait
        assert waits(step) == none

    ranks(1, body)


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_gradients_need_no_order_between_streams(ranks, gpt, form):
    """Of a model that was made, and warmed up, on another stream than the one it is trained on."""

    def body(rank):
        def orders(action):
            with DeviceTrace() as trace:
                action()
            return sum("EventRecord" in call or "WaitEvent" in call for call in trace.calls)

        def step_of(form):
            with torch.cuda.stream(torch.cuda.Stream()):
                step = Step(gpt[0], form)
                step()
            for _ in range(3):
                step()
            return step

        none = orders(lambda: None)
        assert orders(torch.cuda.current_stream().record_event) > none  # the count sees one
        assert orders(step_of(form)) <= orders(step_of("plain"))

    ranks(1, body)


def test_a_warm_step_of_several_ranks_calls_nothing_that_waits(ranks):
    together = threading.Barrier(2, timeout=30)

    def body(rank):
        step = step_of_layers(tessera.init_device_mesh("cuda:dp=2"))
        none = trace_of_two(rank, together, lambda: None)
        found = trace_of_two(rank, together, step)
        assert rank != 0 or found.waits == none.waits

    ranks(2, body)


def test_offloaded_shards_travel_without_waiting(ranks):
    """Their copies to the device and those of the gradients back are of page-locked memory."""

    def body(rank):
        mesh = tessera.init_device_mesh("cuda:dp=1")
        net = make_layers(4, 64)
        for layer in net:
            tessera.fully_shard(layer, mesh, offload_policy=tessera.CPUOffloadPolicy())
        x = torch.randn(8, 64, device="cuda")
        for _ in range(3):
            net(x).pow(2).mean().backward()
            net.zero_grad()
        assert all(tessera.to_local(p.detach()).is_pinned() for p in net.parameters())
        with WaitsAreErrors():
            net(x).pow(2).mean().backward()
        assert all(tessera.to_local(p.grad).is_cpu for p in net.parameters())

    ranks(1, body)


def make_layers(count, width):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count))).cuda()


class DeviceTrace:
    """What ran on the device, of all threads: `events` are (stream, name, (start, end)); `calls` are
    those of the host to CUDA, and `waits` how many of them wait, a few of them for the trace itself."""

    def __enter__(self):
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        self.profile = torch.profiler.profile(activities=activities)
        self.profile.start()
        return self

    def __exit__(self, *_):
        torch.cuda.synchronize()
        self.profile.stop()
        found = self.profile.profiler.kineto_results.events()
        self.calls = [e.name() for e in found if e.device_type() != torch.autograd.DeviceType.CUDA]
        self.waits = sum("Synchronize" in call for call in self.calls)
        self.events = [
            (e.device_resource_id(), e.name(), (e.start_ns(), e.start_ns() + e.duration_ns()))
            for e in found
            if e.device_type() == torch.autograd.DeviceType.CUDA and e.duration_ns() > 0
        ]

    def count(self, *parts):
        """The events whose names have one of the parts, in lower case."""
        return sum(any(part in name.lower() for part in parts) for _, name, _ in self.events)


@pytest.mark.parametrize("form", ["sharded", "fully_shard"])
def test_nothing_is_copied_on_an_axis_of_one_rank(ranks, gpt, form):
    def copies(form):
        step = Step(gpt[0], form)
        for _ in range(3):
            step()
        with DeviceTrace() as trace:
            step()
        assert trace.count("gemm", "nvjet", "cutlass", "kernel") > 0, trace.events[:5]
        return trace.count("copy", "memcpy")

    def body(rank):
        plain = copies("plain")
        assert copies(form) <= plain

    ranks(1, body)


def trace_of_two(rank, together, step):
    """A warm step of two ranks; the trace on rank 0, None on the other."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    together.wait()
    trace = DeviceTrace()
    if rank == 0:
        trace.__enter__()
    together.wait()
    step()
    torch.cuda.synchronize()
    together.wait()
    if rank == 0:
        trace.__exit__()
    together.wait()
    return trace if rank == 0 else None


def test_a_group_is_copied_by_one_kernel_each_way(ranks):
    """However many parameters it has: those that are too small to travel alone."""
    together = threading.Barrier(2, timeout=30)

    def kernels(rank, layers, shard):
        """Of copies, in a step of both ranks."""
        net = make_layers(layers, 16)
        shard(net)
        x = torch.randn(4, 16, device="cuda")

        def step():
            net(x).pow(2).mean().backward()
            net.zero_grad()

        trace = trace_of_two(rank, together, step)
        return trace.count("copy") - trace.count("memcpy") if trace else 0

    def added(rank, layers):
        mesh = tessera.init_device_mesh("cuda:dp=2")
        plain = kernels(rank, layers, lambda net: None)
        return kernels(rank, layers, lambda net: tessera.fully_shard(net, mesh)) - plain

    few, many = ranks(2, lambda rank: (added(rank, 2), added(rank, 12)))[0]
    assert many <= few, f"{few} kernels of 2 layers, {many} of 12"


def overlapped(intervals, others):
    """Seconds of `intervals` in which one of `others` runs too; both are (start, end) lists."""
    return sum(
        max(0, min(end, theirs[1]) - max(start, theirs[0]))
        for start, end in intervals
        for theirs in others
    )


def test_gathers_and_reductions_run_beside_computation(ranks):
    """In a trace of the device, copies of collectives on streams that compute nothing run while
    matrices are multiplied."""
    width, layers = 2048, 6
    together = threading.Barrier(2, timeout=30)

    def body(rank):
        mesh = tessera.init_device_mesh("cuda:dp=2")
        net = make_layers(layers, width)
        for layer in net:
            tessera.fully_shard(layer, mesh)
        x = torch.randn(8192, width, device="cuda")

        def step():
            net(x).pow(2).mean().backward()
            net.zero_grad()

        return trace_of_two(rank, together, step)

    trace = ranks(2, body)[0]
    computes = {
        stream
        for stream, name, _ in trace.events
        if any(part in name for part in ("gemm", "nvjet", "cutlass"))
    }
    products = [span for stream, _, span in trace.events if stream in computes]
    copies = [span for stream, _, span in trace.events if stream not in computes]
    assert copies, sorted({stream for stream, _, _ in trace.events})
    assert overlapped(copies, products) > 0
