#!/usr/bin/env python3
"""Writes testdata/models/recorded-loss.*: a freshly initialised network whose parameters the exporters merge and drop, with the numbers that
PyTorch computes for it, in the form of make_fixtures.py.

Two norms share their scales and biases, a bias of zeros is dropped, an embedding has a padding row, one branch is detached, and slopes,
a temperature and the scale of a group norm reach the file reshaped. The dynamo exporter's record tells all of it.

usage: python testdata/scripts/make_recorded_model.py
"""

import json

import numpy
import torch
from torch import nn
from torch.nn import functional

from export import export_model
from make_small_models import FOLDER, SEED, Example, numbers

TOKENS, CLASSES, WIDTH = 20, 5, 8


class Recorded(nn.Module):
    """Token classes, with every layer that loses its name or its tensor in an export."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.linear, self.conv = nn.Linear(WIDTH, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.group, self.slope = nn.GroupNorm(2, WIDTH), nn.PReLU(WIDTH)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, CLASSES)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x, labels):
        h = self.after(self.linear(self.before(self.embedding(x))))
        h = self.slope(self.group(self.conv(h.transpose(1, 2)))).transpose(1, 2)
        h = h + 0.5 * (h * h).detach()
        return functional.cross_entropy((self.head(h) * self.temperature).flatten(0, 1), labels.flatten())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    inputs = {"x": torch.randint(TOKENS, (4, 6)), "labels": torch.randint(CLASSES, (4, 6))}
    inputs["x"][:, -1] = 0
    example = Example(Recorded(), inputs)
    export_model(example.model.eval(), inputs, FOLDER / "recorded-loss.dynamo.onnx", output_names=["loss"])
    arrays, results = numbers(example)
    numpy.savez_compressed(FOLDER / "recorded-loss.train.npz", **arrays)
    (FOLDER / "recorded-loss.train.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
