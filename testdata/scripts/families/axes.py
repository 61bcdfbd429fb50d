#!/usr/bin/env python3
"""The set of trained tensors does not depend on sizes: families of layers over widths, layers, directions and batches.

    python testdata/scripts/families/axes.py FOLDER [--trainyard BINARY] [--triples]

A cell exports a module with one of the values of each axis, and compares the number of elements that `inspect` trains with the module's
own, with the batch of the file and with `--microbatch 1`. By default every pair of values is in some cell, with `--triples` every
combination of three values. A line is printed for each cell that differs, and the exit code is 1 if there is one. Needs what testdata/requirements.txt lists.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from attention_forms import covering  # noqa: E402
from export import dynamo, legacy  # noqa: E402
from family import Objective, perturb  # noqa: E402
from torch import nn  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TOKENS = 7
AXES = {
    "kind": ["LSTM", "GRU", "RNN", "attention", "encoder", "convolution"],
    # Around the width at which a matrix of so many gates has 8,192 elements, which the exporter does not fold.
    "width": [12, 24, 36, 48, 60, 72],
    "layers": [1, 2, 3],
    "directions": [1, 2],
    # A batch that equals the number of heads, the length of the sequence and the width.
    "batch": ["1", "2", "4", "tokens", "width"],
    "weights": ["fresh", "random"],
    "exporter": ["dynamo", "noopt", "legacy"],
}


def exists(cell):
    """Whether the exporter keeps all of the module, and the axis has a meaning for it."""
    if cell["kind"] == "RNN" and cell["exporter"] == "dynamo":
        # The exporter writes each step by itself, and folds the first one's product with a state of zeros and its bias.
        return False
    if cell["kind"] in ("attention", "encoder") and cell["exporter"] == "legacy":
        # In evaluation mode PyTorch calls a fused layer, which the older exporter does not know.
        return False
    recurrent = cell["kind"] in ("LSTM", "GRU", "RNN")
    return recurrent or cell["directions"] == 1


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        width, both = cell["width"], cell["directions"] == 2
        self.layer = getattr(nn, cell["kind"])(width, width, cell["layers"], batch_first=True, bidirectional=both)
        self.head = nn.Linear(width * cell["directions"], 10)

    def forward(self, x):
        return self.head(self.layer(x)[0].mean(1))


class Attending(nn.Module):
    def __init__(self, cell):
        super().__init__()
        width = cell["width"]
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(cell["layers"]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(cell["layers"]))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            y = norm(x)
            x = x + layer(y, y, y, need_weights=False)[0]
        return self.head(x.mean(1))


class Convolving(nn.Module):
    def __init__(self, cell):
        super().__init__()
        width = cell["width"]
        layers = [nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.GroupNorm(2, width), nn.PReLU(width)) for _ in range(cell["layers"])]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.layers(x.transpose(1, 2)).mean(2))


def encoder(cell):
    layer = nn.TransformerEncoderLayer(cell["width"], 4, 2 * cell["width"], batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, cell["layers"]), nn.Flatten(), nn.Linear(TOKENS * cell["width"], 10))


MAKE = {"attention": Attending, "encoder": encoder, "convolution": Convolving}


def check(arguments, cell):
    """Returns a line for each number of elements that differs."""
    torch.manual_seed(0)
    objective = Objective(MAKE.get(cell["kind"], Recurrent)(cell), "classes").eval()
    if cell["weights"] == "random":
        perturb(objective)
    batch = {"tokens": TOKENS, "width": cell["width"]}.get(cell["batch"]) or int(cell["batch"])
    inputs = (torch.randn(batch, TOKENS, cell["width"]), torch.randint(10, (batch,)))
    path = arguments.folder / "cell.onnx"
    paths, names = {cell["exporter"]: path}, ["x", "target"]
    error = (legacy if cell["exporter"] == "legacy" else dynamo)(objective, inputs, names, paths)
    if error is not None:
        return [f"not exported: {error.splitlines()[0][:200]}"]
    wanted, lines = sum(own.numel() for own in objective.parameters()), []
    for flags in [[], ["--microbatch", "1"]]:
        run = subprocess.run([arguments.trainyard, "inspect", path, "--loss", "model", "--format", "json", *flags], capture_output=True, text=True)
        try:
            found = json.loads(run.stdout)["parameters"]["trained"]
        except (ValueError, TypeError, KeyError):
            lines.append(f"{' '.join(flags)}: {(run.stderr or run.stdout).strip()[:300]}")
            continue
        if found != wanted:
            lines.append(f"{' '.join(flags)}: {found} elements are trained, {wanted} are the module's")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary to check")
    parser.add_argument("--triples", action="store_true", help="every combination of three values")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    cells = [dict(zip(AXES, values)) for values in itertools.product(*AXES.values())]
    cells = [cell for cell in cells if exists(cell)]
    cells = covering(cells, 3 if arguments.triples else 2)
    failures = []
    for cell in cells:
        text = ", ".join(f"{axis} {value}" for axis, value in cell.items())
        failures += [f"{text}: {line}" for line in check(arguments, cell)]
    print(f"{len(cells)} cells, {len(failures)} differences")
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
