"""Training steps of a small GPT on a GPU, for the tests that need one."""

import copy

import models
import torch

import tessera

STEPS = 3


def state_of_gpt():
    """The state at the start, and what one rank trains it to."""
    initial = copy.deepcopy(models.make("gpt").state_dict())
    return initial, models.train(models.make("gpt"), STEPS)[1]


def like(initial):
    model = models.GPT().double()
    model.load_state_dict(initial)
    return model.cuda()


def on_cpu(state):
    return {name: value.cpu() for name, value in state.items()}


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
