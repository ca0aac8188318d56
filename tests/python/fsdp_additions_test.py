"""Parameters that come into a module after fully_shard."""

import warnings

import pytest
import torch
from torch import nn

import tessera
from tessera.compat import init_device_mesh
from tessera.compat.fsdp import fully_shard

MESSAGE = "came after fully_shard and is in no group"


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))


ADDITIONS = {
    "parameter": ("0.weight", lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(9, 6)))),
    "further parameter": ("0.scale", lambda m: setattr(m[0], "scale", nn.Parameter(torch.ones(1)))),
    "module": ("2.weight, 2.bias", lambda m: m.__setitem__(2, nn.Linear(9, 4))),
    "appended": ("3.1.weight", lambda m: m.append(nn.Sequential(nn.Tanh(), nn.Linear(4, 4, bias=False)))),
}


def forwards(model, expected):
    """Two forwards; the first warns if a text is expected."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            model(torch.ones(2, 6)).sum().backward()
    texts = [str(one.message) for one in seen if MESSAGE in str(one.message)]
    assert len(texts) == (expected is not None), texts
    assert expected is None or texts[0].startswith(expected), texts


@pytest.mark.parametrize("addition", ADDITIONS)
@pytest.mark.parametrize("steps_before", [0, 1])
def test_the_next_forward_warns(addition, steps_before):
    """On a mesh of one rank, because warnings are recorded for the whole process."""
    names, add = ADDITIONS[addition]

    def body(rank):
        mesh, model = tessera.init_device_mesh("dp=1"), made()
        tessera.fully_shard(model[0], mesh)
        tessera.fully_shard(model, mesh)
        for _ in range(steps_before):
            model(torch.ones(2, 6)).sum().backward()
        add(model)
        forwards(model, names.removeprefix("0.") if "parameter" in addition else names)

    tessera.run_ranks(1, body)


def test_what_is_reduced_or_not_trained_is_no_reason_to_warn():
    def body(rank):
        mesh = tessera.init_device_mesh("dp=1")
        model = made()
        kept = model[0].bias
        tessera.fully_shard(model, mesh, ignored_params=[kept])
        model[0].bias = nn.Parameter(torch.zeros(9))              # was the caller's matter before
        model[2] = tessera.fully_shard(nn.Linear(9, 4), mesh)     # reduced
        model.append(nn.Linear(4, 4).requires_grad_(False))       # not trained
        model.append(nn.Linear(4, 4))
        del model[4]                                              # not there any more
        model[0].weight = model[0].weight
        model.load_state_dict(model.state_dict(), assign=True)
        forwards(model, None)

        taken = fully_shard(made(), mesh=init_device_mesh("cpu", (1,)))
        taken[2].weight = nn.Parameter(torch.ones(4, 9))          # compat takes it into the group
        forwards(taken, None)

    tessera.run_ranks(1, body)
