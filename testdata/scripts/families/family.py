"""A family of models: how one of it is built, and how it is trained beside PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Family:
    """One row of the table.

    `build` returns a module and its inputs. The first dimension of each input is the batch.
    """

    build: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    # Whether the module is exported and trained in training mode. Families in training mode have no dropout.
    training: bool = False
    # The loss that `Objective` adds. "own" says that the module returns its output and its loss.
    loss: str = "classes"
    # Parameters with `requires_grad=False`. No exporter records them, so the user names them with `--freeze`.
    frozen: tuple[str, ...] = ()
    # Buffers that look like parameters. The legacy exporter does not record what is a buffer, so the user names them too.
    buffers: tuple[str, ...] = ()
    # The seed of the weights and the batch. With some, an activation lies within rounding of a kink.
    seed: int = 0
    # A part of the module's meaning that a file does not hold, by exporter or variant. Such files are not trained beside PyTorch.
    lost: dict[str, str] = field(default_factory=dict)


class Objective(nn.Module):
    """A module with its loss, so that every family is trained by `--loss model`."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs):
        if self.loss == "own":
            return self.model(*inputs)
        *inputs, target = inputs
        output = self.model(*inputs)
        if self.loss == "distance":
            return output, functional.mse_loss(output, target)
        return output, functional.cross_entropy(output.flatten(0, -2), target.flatten())


def constructed(family):
    """Returns the objective, its inputs and the names of those. The same call gives the same weights and inputs each time."""
    torch.manual_seed(family.seed)
    model, inputs = family.build()
    names = [f"x{index}" for index in range(len(inputs))]
    objective = Objective(model, family.loss).train(family.training)
    for name, parameter in objective.named_parameters():
        if name in family.frozen:
            parameter.requires_grad_(False)
    if family.loss == "own":
        return objective, inputs, names
    with torch.no_grad():
        # Batch statistics of this copy's run must not enter the module's buffers.
        model.eval()
        output = model(*inputs)
        model.train(family.training)
    if family.loss == "distance":
        target = torch.randn(output.shape)
    else:
        target = torch.randint(0, output.shape[-1], output.shape[:-1])
    return objective, (*inputs, target), [*names, "target"]


def perturb(objective):
    """Gives every trained parameter and running statistic other values, as after training.

    Other tensors stay: masks, rotary and sinusoidal tables have their values by definition.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (own for own in objective.parameters() if own.requires_grad):
            spread = parameter.std().item() if parameter.numel() > 1 else 0.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += noise * (0.1 * spread if spread > 0 else 0.1)
        for name, buffer in objective.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn(buffer.shape, generator=generator)
            if name.endswith("running_var"):
                buffer *= 0.5 + torch.rand(buffer.shape, generator=generator)
