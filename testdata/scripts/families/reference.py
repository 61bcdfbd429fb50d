"""Ten steps in PyTorch on one batch, in f32, and which parameters have no gradient."""

from dataclasses import dataclass

import torch
from family import constructed
from models import slug

STEPS = 10
# Of 16 runs of SqueezeNet from weights changed in their last bit, one takes the other side of a kink.
MOVED = 16


@dataclass(frozen=True)
class Recipe:
    """How steps change the weights, but for the learning rate, which depends on the model.

    `clip` is the largest norm of the gradients, as a part of the norm before the first step.
    """

    optimizer: str
    decay: float = 0.0
    clip: float | None = None

    def __str__(self):
        return f"{self.optimizer}-{self.decay}-{self.clip}"


KINDS = {"sgd": Recipe("momentum"), "adamw": Recipe("adamw", 0.1)}

# The optimizers whose steps are as long as their gradients.
PROPORTIONAL = ("sgd", "momentum", "nesterov")
OPTIMIZERS = (*PROPORTIONAL, "adagrad", "adam", "adamw")


def settings(recipe, loss, gradients):
    """Returns an optimizer's settings for a model with this loss and these gradients.

    A step of SGD lowers the loss by at most a twentieth. The others divide by the gradient's own size, so that an element whose
    gradient is rounding alone moves by lr x rounding / eps: this eps keeps that below the tolerance.
    """
    square = sum((gradient**2).sum().item() for gradient in gradients.values())
    clip = recipe.clip and short(recipe.clip * square**0.5)
    if recipe.optimizer in PROPORTIONAL:
        return {"lr": short(min(0.01, 0.05 * loss / square)), "eps": None, "decay": recipe.decay, "clip": clip}
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    return {"lr": 0.001, "eps": short(1e-4 * largest), "decay": recipe.decay, "clip": clip}


def short(number):
    """Returns a number with one digit."""
    return float(f"{number:.0e}")


def flags(recipe, chosen):
    """Returns the flags that ask Trainyard for an optimizer."""
    name, eps = recipe.optimizer, chosen["eps"] and f"eps={chosen['eps']:.0e}"
    keys = {"momentum": "momentum=0.9", "nesterov": "momentum=0.9", "adagrad": eps}
    keys |= dict.fromkeys(["adam", "adamw"], f"beta1=0.9,beta2=0.999,{eps}")
    name += f":{keys[name]}" if name in keys else ""
    clip = ["--clip", chosen["clip"]] if chosen["clip"] else []
    return ["--optimizer", name, "--lr", chosen["lr"], "--weight-decay", chosen["decay"], "--decay", "all", *clip]


def make(recipe, parameters, chosen):
    """Returns the same optimizer of PyTorch."""
    lr, eps, decay = chosen["lr"], chosen["eps"], chosen["decay"]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, weight_decay=decay)
    if recipe.optimizer in PROPORTIONAL:
        return torch.optim.SGD(parameters, lr, 0.9, weight_decay=decay, nesterov=recipe.optimizer == "nesterov")
    if recipe.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr, weight_decay=decay, eps=eps)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    return kind(parameters, lr, (0.9, 0.999), eps, decay)


def trained(folder, name, family, weights, recipe):
    """Returns the losses of the steps, the state after them, the settings, and the parameters without a gradient.

    The learning rate is lowered until PyTorch's own rounding does not decide the result. The run is kept in the folder.
    """
    kept = folder / f"{slug(name)}.{weights}.{recipe}.pt"
    if kept.exists():
        return torch.load(kept)
    first = gradients(folder, name, family, weights)
    chosen = settings(recipe, *first)
    for attempt in range(3):
        losses, state = steps(folder, name, family, weights, recipe, chosen, torch.float32)
        last = gradients(folder, name, family, weights, state)
        still = idle(first[1]) & idle(last[1])
        exact = steps(folder, name, family, weights, recipe, chosen, torch.float64)

        def moved(seed):
            run = steps(folder, name, family, weights, recipe, chosen, torch.float32, moved=seed)
            return distances(run, exact, still)

        noise = largest(distances((losses, state), exact, still), moved(1))
        decides = noise[0] >= 3e-6 or noise[1] >= 3e-5
        if not decides or attempt == 2:
            break
        chosen["lr"] = short(chosen["lr"] / 10)
    if decides:
        # A kink lies within rounding. It takes several runs until one goes the other way.
        noise = largest(noise, *map(moved, range(2, 10)))
    result = {"losses": losses, "state": state, "settings": chosen, "idle": still, "noise": noise}
    torch.save(result, kept)
    return result


def largest(*distances):
    """Returns the largest distance of a loss, and that of a tensor."""
    return [max(parts) for parts in zip(*distances)]


def steps(folder, name, family, weights, recipe, chosen, dtype, moved=None):
    """Returns the losses of ten steps, and the state after them.

    With `moved`, a seed, the weights are changed in their last bit: where two numbers are equal but for rounding, a maximum or a ReLU
    chooses by it, and a whole gradient goes another way.
    """
    objective, inputs = loaded(folder, name, family, weights, dtype)
    if moved is not None:
        drawn = torch.Generator().manual_seed(moved)
        with torch.no_grad():
            for parameter in objective.parameters():
                sign = torch.randint(-1, 2, parameter.shape, generator=drawn)
                parameter.mul_(1 + sign * torch.finfo(dtype).eps)
    parameters = [own for own in objective.parameters() if own.requires_grad]
    optimizer, losses = make(recipe, parameters, chosen), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = objective(*inputs)[1]
        loss.backward()
        if chosen["clip"]:
            torch.nn.utils.clip_grad_norm_(parameters, chosen["clip"])
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: value.detach() for key, value in objective.state_dict().items()}


def moved_runs(folder, name, family, weights, recipe, chosen):
    """Returns the losses and the state of runs in f32 whose weights are changed in their last bit, one after the other."""
    for seed in range(1, MOVED + 1):
        yield steps(folder, name, family, weights, recipe, chosen, torch.float32, moved=seed)


def distances(run, exact, still):
    """Returns the largest relative distance of a loss and of a tensor between two runs."""
    loss = max(abs(a - b) / abs(b) for a, b in zip(run[0], exact[0]))
    worst = 0.0
    for key, own in exact[1].items():
        if own.is_floating_point() and key not in still:
            least = 1e-3 if key.endswith(("running_mean", "running_var")) else 1e-30
            off = (run[1][key].double() - own.double()).abs().max() / own.abs().max().clamp(min=least)
            worst = max(worst, off.item())
    return loss, worst


def fill(objective, state):
    """Gives an objective these values. `load_state_dict` of some modules wants their version too, which is not kept."""
    with torch.no_grad():
        for key, tensor in objective.state_dict().items():
            tensor.copy_(state[key])


def loaded(folder, name, family, weights, dtype):
    """Returns the objective with the weights that were exported, and the batch."""
    objective, _, _ = constructed(family)
    saved = torch.load(folder / f"{slug(name)}.{weights}.pt")
    fill(objective, saved["state"])
    inputs = [value.to(dtype) if value.is_floating_point() else value for value in saved["inputs"]]
    return objective.to(dtype), inputs


def gradients(folder, name, family, weights, state=None):
    """Returns the loss and the gradients in f64, of the weights that were exported or of those given."""
    objective, inputs = loaded(folder, name, family, weights, torch.float64)
    if state is not None:
        fill(objective, state)
    loss = objective(*inputs)[1]
    loss.backward()
    return loss.item(), {key: p.grad for key, p in objective.named_parameters() if p.grad is not None}


def idle(gradients):
    """Returns the parameters whose true gradient is zero: in f64 it is below 1e-10 of the largest of the model's.

    Such are a bias before a norm over the batch, and the bias of keys. In f32 their gradient is rounding, which an optimizer
    with normalised steps follows.
    """
    largest = {key: gradient.abs().max().item() for key, gradient in gradients.items()}
    bound = 1e-10 * max(largest.values())
    return {key for key, value in largest.items() if value <= bound}
