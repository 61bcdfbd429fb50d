#!/usr/bin/env python3
"""Steps of PyTorch's optimizers under its schedulers, in f64: what `passes/tests/transforms/optimizers.rs` compares with.

Two parameters, a matrix and a bias, are given the same random gradients in every run. Writes testdata/optimizers.json.

usage: python testdata/scripts/make_optimizer_reference.py
"""

import json
from pathlib import Path

import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

STEPS = 12
SHAPES = {"w": (3, 4), "b": (4,)}
RECORDED = (0, 1, STEPS - 1)  # steps after which the parameters are kept
LR = 0.1

torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(5)
initial = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
gradients = [
    {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()} for _ in range(STEPS)
]


def warm(optimizer: torch.optim.Optimizer, steps: int) -> LinearLR:
    """Rates of 1/steps, 2/steps … of the highest."""
    return LinearLR(optimizer, start_factor=1 / steps, end_factor=1.0, total_iters=steps - 1)


def cosine(optimizer: torch.optim.Optimizer) -> SequentialLR:
    fall = CosineAnnealingLR(optimizer, T_max=STEPS - 3, eta_min=0.01)
    return SequentialLR(optimizer, [warm(optimizer, 3), fall], milestones=[3])


def linear(optimizer: torch.optim.Optimizer) -> SequentialLR:
    fall = LinearLR(optimizer, start_factor=1.0, end_factor=0.2, total_iters=STEPS - 2)
    return SequentialLR(optimizer, [warm(optimizer, 2), fall], milestones=[2])


def warmup_stable_decay(optimizer: torch.optim.Optimizer) -> SequentialLR:
    stable = ConstantLR(optimizer, factor=1.0, total_iters=STEPS)
    fall = LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=4)
    return SequentialLR(optimizer, [warm(optimizer, 3), stable, fall], milestones=[3, STEPS - 4])


def constant(optimizer: torch.optim.Optimizer) -> ConstantLR:
    return ConstantLR(optimizer, factor=1.0, total_iters=STEPS)


# How each run is written as a pass, and the same for PyTorch: a class, its arguments, those of the bias alone, a
# scheduler, and the largest norm of the gradients.
RUNS = [
    ("sgd", torch.optim.SGD, {}, {}, constant, None),
    ("momentum, momentum=0.8, weight-decay=0.1", torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.1}, {}, linear, None),
    ("nesterov, weight-decay=0.1", torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {}, cosine, 1.5),
    ("nesterov, momentum=0.5", torch.optim.SGD, {"momentum": 0.5, "nesterov": True}, {}, warmup_stable_decay, None),
    ("adagrad", torch.optim.Adagrad, {}, {}, constant, None),
    ("adagrad, eps=0.001, weight-decay=0.1", torch.optim.Adagrad, {"eps": 1e-3, "weight_decay": 0.1}, {}, warmup_stable_decay, 1.5),
    ("adam, weight-decay=0.1", torch.optim.Adam, {"weight_decay": 0.1}, {}, warmup_stable_decay, None),
    ("adam, beta1=0.8, beta2=0.95, eps=0.001", torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3}, {}, linear, None),
    ("adamw, weight-decay=0.1", torch.optim.AdamW, {"weight_decay": 0.1}, {}, cosine, 1.5),
    (
        'adamw, weight-decay=0.1, group="b:lr=0.5,weight-decay=0.0"',
        torch.optim.AdamW,
        {"weight_decay": 0.1},
        {"lr": LR * 0.5, "weight_decay": 0.0},
        linear,
        None,
    ),
    (
        'adagrad, group="b:lr=3.0,weight-decay=0.2"',
        torch.optim.Adagrad,
        {},
        {"lr": LR * 3.0, "weight_decay": 0.2},
        warmup_stable_decay,
        None,
    ),
]
SCHEDULES = {
    constant: "",
    linear: ", linear, warmup=2, min=0.02, steps=12",
    cosine: ", cosine, warmup=3, min=0.01, steps=12",
    warmup_stable_decay: ", wsd, warmup=3, decay=4, min=0.01, steps=12",
}


def run(name, kind, arguments, of_bias, schedule, clip) -> dict:
    parameters = {key: torch.nn.Parameter(value.clone()) for key, value in initial.items()}
    groups = [{"params": [parameters["w"]]}, {"params": [parameters["b"]], **of_bias}]
    optimizer = kind(groups, lr=LR, **arguments)
    scheduler = schedule(optimizer)
    rates, recorded = [], []
    for step, gradient in enumerate(gradients):
        for key, parameter in parameters.items():
            parameter.grad = gradient[key].clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        if step in RECORDED:
            recorded.append({key: parameter.detach().flatten().tolist() for key, parameter in parameters.items()})
    clipping = "" if clip is None else f", clip={clip}"
    return {
        "pass": f"optimizer({name}, lr={LR}, decay-all{SCHEDULES[schedule]}{clipping})",
        "rates": rates,
        "parameters": recorded,
    }


def flat(tensors: dict) -> dict:
    return {key: value.flatten().tolist() for key, value in tensors.items()}


reference = {
    "torch": torch.__version__.split("+")[0],
    "shapes": SHAPES,
    "recorded-loss": RECORDED,
    "initial": flat(initial),
    "gradients": [flat(gradient) for gradient in gradients],
    "runs": [run(*arguments) for arguments in RUNS],
}
path = Path(__file__).resolve().parent.parent / "optimizers.json"
path.write_text(json.dumps(reference, indent=1) + "\n")
