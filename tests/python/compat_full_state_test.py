"""torch.distributed.checkpoint.state_dict with full_state_dict: whole tensors out of, and into, the
shards of a model and its optimizer, beside FSDP2."""

import pytest

COMMON = """
    import itertools
    from torch import nn
    from torch.distributed import fsdp as peer_fsdp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict,
        set_model_state_dict, set_optimizer_state_dict, set_state_dict)
    from tessera.compat import fsdp as own_fsdp

    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    LIBS = {"ours": own_fsdp, "theirs": peer_fsdp}
    batch = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))

    def made(lib, seed, device="cpu"):
        torch.manual_seed(seed)
        with torch.device(device):
            model = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))
        for layer in (model[0], model[2], model):
            LIBS[lib].fully_shard(layer, mesh=mesh)
        return model

    def step(model, optimizer):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def adam(model):
        return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.2)

    def whole(model):
        return {name: p.full_tensor().detach() for name, p in model.named_parameters()}
"""

SAVES = COMMON + """
    for lib in LIBS:
        model = made(lib, 1)
        optimizer = adam(model)
        step(model, optimizer)
        for offload in (False, True):
            options = StateDictOptions(full_state_dict=True, cpu_offload=offload)
            weights, moments = get_state_dict(model, optimizer, options=options)
            if offload and rank > 0:
                assert weights == {} and moments == {}
            torch.testing.assert_close(weights, get_model_state_dict(model, options=options))
            moments = get_optimizer_state_dict(model, optimizer, options=options)
            if rank == 0:
                torch.save((weights, moments), f"FOLDER/{lib}_{offload}.pt")
        # PyTorch sets a flattened state of an optimizer only where it is sharded.
        for offload in (False, True):
            options = StateDictOptions(cpu_offload=offload, flatten_optimizer_state_dict=True)
            copied = made(lib, 3)
            again = adam(copied)
            weights, moments = get_state_dict(model, optimizer, options=options)
            assert "state.0.weight.exp_avg" in moments
            set_state_dict(
                copied, again, model_state_dict=weights, optim_state_dict=moments, options=options)
            for p, q in zip(model.parameters(), copied.parameters()):
                torch.testing.assert_close(q.full_tensor(), p.full_tensor())
                mine, other = optimizer.state[p]["exp_avg_sq"], again.state[q]["exp_avg_sq"]
                torch.testing.assert_close(other.full_tensor(), mine.full_tensor())
        step(model, optimizer)
        step(model, optimizer)
        expected = whole(model)
        if rank == 0:
            torch.save(expected, f"FOLDER/{lib}_expected.pt")
    print("all right on rank " + str(rank))
"""

LOADS = COMMON + """
    expected = torch.load("FOLDER/theirs_expected.pt")
    torch.testing.assert_close(torch.load("FOLDER/ours_expected.pt"), expected)

    def resumed(lib, weights, moments, options, together, device):
        model = made(lib, 2, device)
        if device == "meta":
            set_model_state_dict(model, weights, options=options)
            optimizer = adam(model)
            set_optimizer_state_dict(model, optimizer, moments, options=options)
        elif together:
            optimizer = adam(model)
            set_state_dict(
                model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
        else:
            optimizer = adam(model)
            step(model, optimizer)
            set_model_state_dict(model, weights, options=options)
            set_optimizer_state_dict(model, optimizer, moments, options=options)
        before = [p.placements for p in model.parameters()]
        for p in model.parameters():
            assert optimizer.state[p]["exp_avg"].placements == p.placements
        step(model, optimizer)
        step(model, optimizer)
        assert before == [p.placements for p in model.parameters()]
        return whole(model)

    cases = itertools.product(LIBS, (True, False), (True, False), (True, False), ("cpu", "meta"))
    for lib, broadcast, offload, together, device in cases:
        if device == "meta" and together:
            continue  # an optimizer of parameters without memory
        saved_by = "theirs" if lib == "ours" else "ours"
        weights, moments = torch.load(f"FOLDER/{saved_by}_{offload}.pt")
        if broadcast and rank > 0:
            # PyTorch's set_state_dict leaves out the model on a rank that gives no weights.
            weights = {name: torch.zeros_like(w) for name, w in weights.items()} if together else {}
            moments = {}
        options = StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=broadcast, cpu_offload=offload)
        found = resumed(lib, weights, moments, options, together, device)
        torch.testing.assert_close(
            found, expected, msg=lambda m: f"{lib} {broadcast} {offload} {together} {device} " + m)
    print("all right on rank " + str(rank))
"""


@pytest.mark.parametrize("loading", [1, 3])
def test_a_full_state_of_two_ranks_resumes_on_others(beside_torch, tmp_path, loading):
    saved = beside_torch(2, SAVES.replace("FOLDER", str(tmp_path)))
    assert saved.count("all right on rank") == 2
    loaded = beside_torch(loading, LOADS.replace("FOLDER", str(tmp_path)))
    assert loaded.count("all right on rank") == loading, loaded
