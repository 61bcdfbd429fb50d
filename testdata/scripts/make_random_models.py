#!/usr/bin/env python3
"""Writes testdata/random/: small networks in training mode that draw random numbers of their own.

`depth` drops by masks that are spelled out: stochastic depth as torchvision and timm (old and new) have it, and a dropout by
hand. `noise` adds normal numbers. Both as both exporters of PyTorch write them, the batch symbolic. `depth.io.npz` has what
PyTorch computes of `depth` in eval mode.

usage: python testdata/scripts/make_random_models.py
"""

from pathlib import Path

import numpy
import onnx
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parent.parent / "random"
BATCH, WIDTH, CLASSES, KEEP = 4, 16, 10, 0.75


def per_sample(x: Tensor) -> tuple[int, ...]:
    return (x.shape[0],) + (1,) * (x.ndim - 1)


class Masks(nn.Module):
    """x, dropped in one of four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        match self.way:
            case "torchvision":
                noise = torch.empty(per_sample(x), dtype=x.dtype).bernoulli_(KEEP)
                return x * noise.div_(KEEP)
            case "timm":
                return x * x.new_empty(per_sample(x)).bernoulli_(KEEP).div_(KEEP)
            case "timm-old":
                kept = KEEP + torch.rand(per_sample(x), dtype=x.dtype)
                return x.div(KEEP) * kept.floor_()
            case "by-hand":
                return x * (torch.rand_like(x) < KEEP) / KEEP


class Depth(nn.Module):
    """A residual network with a mask of each kind."""

    def __init__(self) -> None:
        super().__init__()
        ways = ["torchvision", "timm", "timm-old", "by-hand"]
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in ways)
        self.masks = nn.ModuleList(Masks(way) for way in ways)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block, mask in zip(self.blocks, self.masks):
            x = x + mask(torch.tanh(block(x)))
        return self.head(x)


class Noise(nn.Module):
    """Normal noise on a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc(x))
        return self.head(x + 0.5 * torch.randn_like(x))


def export(model: nn.Module, name: str, x: Tensor) -> None:
    mode = torch.onnx.TrainingMode.TRAINING
    names = {"input_names": ["x"], "output_names": ["logits"], "training": mode}
    path = FOLDER / f"{name}.legacy.onnx"
    torch.onnx.export(
        model, (x,), path, dynamo=False, do_constant_folding=False, dynamic_axes={"x": {0: "batch"}}, **names
    )
    path = FOLDER / f"{name}.dynamo.onnx"
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    program = torch.onnx.export(model, (x,), dynamo=True, optimize=False, dynamic_shapes=shapes, **names)
    program.save(path)
    # Where the exporter stood on this machine is nobody's business.
    proto = onnx.load(path)
    for node in proto.graph.node:
        del node.metadata_props[:]
    onnx.save(proto, path)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(0)
    depth, noise, x = Depth(), Noise(), torch.randn(BATCH, WIDTH)
    for model, name in [(depth, "depth"), (noise, "noise")]:
        model.train()
        export(model, name, x)
    depth.eval()
    labels = torch.arange(BATCH) % CLASSES
    logits = depth(x)
    nn.functional.cross_entropy(logits, labels).backward()
    numbers = {"input.x": x, "labels": labels, "output.logits": logits}
    numbers |= {f"grad.{name}": parameter.grad for name, parameter in depth.named_parameters()}
    arrays = {name: tensor.detach().numpy() for name, tensor in numbers.items()}
    numpy.savez(FOLDER / "depth.io.npz", **arrays)


if __name__ == "__main__":
    main()
