#!/usr/bin/env python3
"""Writes testdata/verify: models that `verify` has reported wrongly, and numbers of PyTorch for `verify --against`.

classifier      `classifier.py` exported, with the numbers that `scripts/reference.py` writes for it and a batch
convolutions    convolutions with biases that batch norms cancel, ReLU and max pooling, exported in training mode, with the numbers
                in f32, where the gradients of these biases are rounding alone
bf16            a network with weights in bf16

usage: python testdata/scripts/make_verify_models.py
"""

import subprocess
import sys
from pathlib import Path

import numpy
import torch
from torch import nn

from export import export_model, make_constant_parameters_distinct

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "testdata" / "verify"
sys.path[:0] = [str(ROOT / "scripts"), str(FOLDER)]

from classifier import make_model
from reference import write_reference


def classifier() -> None:
    torch.manual_seed(6)
    x = torch.randn(6, 12)
    export_model(make_model(), {"x": x}, FOLDER / "classifier.onnx")
    batch = FOLDER / "batch.npz"
    numpy.savez(batch, x=x.numpy(), labels=torch.randint(0, 5, (6,)).numpy())
    script = [sys.executable, ROOT / "scripts" / "reference.py", f"{FOLDER / 'classifier.py'}:make_model", batch]
    subprocess.run([*script, "-o", FOLDER / "classifier.npz"], check=True)
    batch.unlink()


def convolutions() -> None:
    torch.manual_seed(7)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)]
    model = nn.Sequential(*layers).train()
    make_constant_parameters_distinct(model)
    x, labels = torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,))
    write_reference(model, {"x": x}, FOLDER / "convolutions.npz", labels=labels, dtype=torch.float32)
    torch.onnx.export(
        model,
        (x,),
        str(FOLDER / "convolutions.onnx"),
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["logits"],
    )


def bf16() -> None:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 5)).bfloat16()
    with torch.no_grad():
        for parameter in model[1].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    export_model(model, {"x": torch.randn(6, 12, dtype=torch.bfloat16)}, FOLDER / "bf16.onnx")


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    classifier()
    convolutions()
    bf16()


if __name__ == "__main__":
    main()
