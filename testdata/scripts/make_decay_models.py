#!/usr/bin/env python3
"""Writes testdata/decay/: a network whose norm and slopes have more dims in the file than in the module, and PyTorch's step on it.

The exporter writes a GroupNorm's scale [4] as [4, 1, 1] and a PReLU's slopes as [1, 4, 1, 1]. `dynamo.onnx` and `unoptimized.onnx` are the
same module. `data.npz` has a batch, and `step.json` the parameters after one step of AdamW whose weight decay leaves out biases,
norms and slopes.

usage: python testdata/scripts/make_decay_models.py
"""

import json
from pathlib import Path

import export
import numpy
import torch
from torch import nn

DECAY = Path(__file__).resolve().parent.parent / "decay"
RATE, WEIGHT_DECAY = 0.1, 1.0


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.slopes, self.head = nn.PReLU(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.slopes(self.norm(self.conv(x))).mean((2, 3)))


def main():
    DECAY.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = Network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, labels = torch.randn(4, 2, 5, 5), torch.randint(3, (4,))
    for name, optimize in [("dynamo", True), ("unoptimized", False)]:
        export.export_model(model, {"x": x}, DECAY / f"{name}.onnx", optimize=optimize)
    numpy.savez(DECAY / "data.npz", x=x.numpy(), labels=labels.numpy())
    decaying = [p for name, p in model.named_parameters() if name in ("conv.weight", "head.weight")]
    others = [p for p in model.parameters() if all(p is not own for own in decaying)]
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    step = {name: [round(value, 6) for value in p.flatten().tolist()] for name, p in model.named_parameters()}
    (DECAY / "step.json").write_text(json.dumps(step) + "\n")


if __name__ == "__main__":
    main()
