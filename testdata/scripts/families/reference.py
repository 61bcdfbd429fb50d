"""Ten steps in PyTorch on one batch, in f32, and which parameters have no gradient."""

import copy

import torch
from family import constructed
from models import slug

STEPS = 10
OPTIMIZERS = {
    "sgd": ("momentum:momentum=0.9", 0.01, 0.0),
    # An element whose gradient is rounding alone moves by lr x noise / eps: this eps keeps that below the tolerance.
    "adamw": ("adamw:beta1=0.9,beta2=0.999,eps=1e-5", 0.001, 0.1),
}


def make(kind, parameters):
    """Returns the optimizer of PyTorch that the flags ask of Trainyard."""
    _, lr, decay = OPTIMIZERS[kind]
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=0.9)
    return torch.optim.AdamW(parameters, lr, (0.9, 0.999), 1e-5, decay)


def trained(folder, name, family, weights, kind, dtype=torch.float32):
    """Returns the losses of the steps and the state after them. The f32 run is kept in the folder."""
    kept = folder / f"{slug(name)}.{weights}.{kind}.pt"
    if dtype == torch.float32 and kept.exists():
        return torch.load(kept)
    objective, inputs = loaded(folder, name, family, weights, dtype)
    optimizer, losses = make(kind, [p for p in objective.parameters() if p.requires_grad]), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = objective(*inputs)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    result = {"losses": losses, "state": objective.state_dict()}
    if kind == "sgd" and dtype == torch.float32:
        result["idle"] = idle(objective, inputs) & idle(*loaded(folder, name, family, weights, dtype))
    if dtype == torch.float32:
        torch.save(result, kept)
    return result


def loaded(folder, name, family, weights, dtype):
    """Returns the objective with the weights that were exported, and the batch."""
    objective, _, _ = constructed(family)
    saved = torch.load(folder / f"{slug(name)}.{weights}.pt")
    objective.load_state_dict(saved["state"])
    inputs = [value.to(dtype) if value.is_floating_point() else value for value in saved["inputs"]]
    return objective.to(dtype), inputs


def idle(objective, inputs):
    """Returns the parameters whose true gradient is zero: in f64 it is below 1e-10 of the largest of the model's.

    Such are a bias before a norm over the batch, and the bias of keys. In f32 their gradient is rounding, which an optimizer
    with normalised steps follows.
    """
    double = copy.deepcopy(objective).double()
    double(*[value.double() if value.is_floating_point() else value for value in inputs])[1].backward()
    largest = {key: p.grad.abs().max().item() for key, p in double.named_parameters() if p.grad is not None}
    bound = 1e-10 * max(largest.values())
    return {key for key, value in largest.items() if value <= bound}
