#!/usr/bin/env python3
"""Checks that a trained file can be used: that model.safetensors loads into the module of PyTorch which was exported, and
that the module then computes what ONNX Runtime computes of model.onnx.

    check_state_dict.py --trainyard PATH [--only NAME] [--steps N] [--accuracy]

For each module and each exporter: export, train a few steps with Trainyard, load model.safetensors with strict=False.
1. No key is unexpected. The missing keys are those that Trainyard named.
2. In eval mode the module's outputs and ONNX Runtime's are equal to 1e-4 of the largest, at the batch of the export.
With --accuracy: MobileNetV2 and ResNet-18, exported in training mode, are trained on the digits of
testdata/digits.csv.gz; their accuracy on held-out digits at batch 1 must be the same in PyTorch and in ONNX Runtime.

Needs torch, torchvision, onnx, onnxruntime and safetensors. Exits 1 with the differences when a check fails.
"""

import argparse
import gzip
import logging
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy
import onnxruntime
import torch
import torchvision
from safetensors.torch import load_file
from torch import nn

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

ROOT = Path(__file__).resolve().parent.parent.parent
TOLERANCE = 1e-4
SAMPLES = 8
CLASSES = 10


class Recurrent(nn.Module):
    """Recurrent layers of both directions; `hidden` decides whether the dynamo exporter folds their weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        return self.head(x[:, -1])


class Attention(nn.Module):
    """Attention with packed projections, an unused layer, dropout, PReLU and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.norm, self.dropout, self.slope = nn.BatchNorm1d(8), nn.Dropout(0.2), nn.PReLU(8)
        self.head, self.unused = nn.Linear(8, CLASSES), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        x = self.slope(self.norm(x.mean(1) + self.dropout(mixed.mean(1))))
        return self.head(x)


def modules() -> dict:
    """Name, what makes the module, the shape of a sample, and whether it is exported in training mode."""
    small = {"num_classes": CLASSES}
    return {
        "recurrent-small": (lambda: Recurrent(5), (7, 6), False),
        "recurrent-large": (lambda: Recurrent(48), (7, 6), False),
        "attention": (Attention, (5, 8), True),
        "resnet18": (lambda: torchvision.models.resnet18(**small), (3, 32, 32), True),
        "mobilenet": (lambda: torchvision.models.mobilenet_v2(width_mult=0.25, **small), (3, 32, 32), True),
    }


EXPORTERS = {
    "legacy": {"dynamo": False},
    "legacy-unfolded": {"dynamo": False, "do_constant_folding": False},
    "dynamo": {"dynamo": True, "external_data": False, "verbose": False},
    "dynamo-unoptimised": {"dynamo": True, "external_data": False, "verbose": False, "optimize": False},
}


def export(module: nn.Module, shape: tuple, path: Path, exporter: str, training: bool, batch: int) -> None:
    options = dict(EXPORTERS[exporter])
    module.train(training)
    if not options["dynamo"] and training:
        options["training"] = torch.onnx.TrainingMode.TRAINING
        options["do_constant_folding"] = False
    if not options["dynamo"]:
        options["dynamic_axes"] = {"x": {0: "batch"}, "logits": {0: "batch"}}
    torch.onnx.export(module, (torch.randn(batch, *shape),), str(path), input_names=["x"], output_names=["logits"], **options)


def train(trainyard: str, model: Path, data: Path, folder: Path, *flags: str) -> str:
    """Runs Trainyard and returns what it printed."""
    command = [trainyard, "compile", model, "--train", data, "-o", folder, *flags]
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stderr}")
    return ended.stderr


def announced(printed: str) -> set[str]:
    """The keys that Trainyard named as missing, but for the counters of batches, which it counts."""
    line = next((line for line in printed.splitlines() if "keys of the module's state_dict" in line), "")
    return set(re.findall(r"`([^`]+)`", line)) - {"num_batches_tracked"}


def check_keys(module: nn.Module, weights: Path, printed: str, has_record: bool) -> list[str]:
    """Loads the weights. Only files of the dynamo exporter say which keys there are."""
    result = module.load_state_dict(load_file(weights), strict=False)
    found = [f"{key} is unexpected" for key in result.unexpected_keys]
    # PyTorch itself fills counters of batches in.
    missing = {key for key in result.missing_keys if not key.endswith("num_batches_tracked")}
    print(f"    missing: {sorted(missing)}")
    if has_record and announced(printed) != missing:
        found.append(f"missing are {sorted(missing)}; Trainyard named {sorted(announced(printed))}")
    return found


def check_outputs(module: nn.Module, model: Path, x: numpy.ndarray) -> list[str]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    actual = session.run(None, {"x": x})[0]
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x)).numpy()
    difference = numpy.abs(actual - expected).max() / max(numpy.abs(expected).max(), 1e-30)
    print(f"    largest difference of outputs {difference:.2e}")
    return [f"outputs differ by {difference:.2e}"] if not difference <= TOLERANCE else []


def check_module(trainyard: str, name: str, exporter: str, steps: int, folder: Path) -> list[str]:
    make, shape, training = modules()[name]
    torch.manual_seed(3)
    model, data = folder / f"{name}-{exporter}.onnx", folder / f"{name}.npz"
    export(make(), shape, model, exporter, training, SAMPLES)
    generator = numpy.random.default_rng(1)
    x = generator.standard_normal((4 * SAMPLES, *shape), dtype=numpy.float32)
    numpy.savez(data, x=x, labels=generator.integers(0, CLASSES, len(x)))
    output = folder / f"{name}-{exporter}"
    printed = train(trainyard, model, data, output, "--microbatch", SAMPLES, "--steps", steps, "--lr", 1e-3)
    module = make()
    problems = check_keys(module, output / "model.safetensors", printed, exporter.startswith("dynamo"))
    return problems + check_outputs(module, output / "model.onnx", x[:SAMPLES])


def digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    """The digits as images of 3 x 32 x 32, and their classes."""
    with gzip.open(ROOT / "testdata" / "digits.csv.gz", "rt") as file:
        rows = [line.strip().split(",") for line in file if not line[0].isalpha() and "," in line]
    table = numpy.array([[float(cell) for cell in row] for row in rows], numpy.float32)
    images = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 16
    images = nn.functional.interpolate(images, scale_factor=4, mode="bilinear").expand(-1, 3, -1, -1)
    return images.numpy().copy(), table[:, 64].astype(numpy.int64)


def check_accuracy(trainyard: str, name: str, steps: int, folder: Path) -> list[str]:
    make, shape, _ = modules()[name]
    torch.manual_seed(3)
    model, data, output = folder / f"{name}.onnx", folder / "digits.npz", folder / f"{name}-digits"
    export(make(), shape, model, "legacy", True, 64)
    images, classes = digits()
    held_out = 300
    numpy.savez(data, x=images[held_out:], labels=classes[held_out:])
    train(trainyard, model, data, output, "--microbatch", 64, "--steps", steps, "--lr", 3e-3)
    module = make()
    module.load_state_dict(load_file(output / "model.safetensors"), strict=False)
    module.eval()
    right = {}
    for file in ("model.onnx", "model-training.onnx"):
        session = onnxruntime.InferenceSession(str(output / file), providers=["CPUExecutionProvider"])
        answers = [session.run(None, {"x": image[None]})[0].argmax() for image in images[:held_out]]
        right[file] = int((numpy.array(answers) == classes[:held_out]).sum())
    with torch.no_grad():
        answers = [int(module(torch.from_numpy(image[None])).argmax()) for image in images[:held_out]]
    right["PyTorch"] = int((numpy.array(answers) == classes[:held_out]).sum())
    for where, count in right.items():
        print(f"    {where}: {100 * count / held_out:.1f} % of {held_out} at batch 1")
    if right["PyTorch"] != right["model.onnx"]:
        return [f"{right['model.onnx']} right in ONNX Runtime, {right['PyTorch']} in PyTorch"]
    return [f"only {right['PyTorch']} right: it was not trained"] if right["PyTorch"] < held_out / 2 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainyard", required=True, metavar="PATH")
    parser.add_argument("--only", metavar="NAME", help="a module, or MODULE/EXPORTER")
    parser.add_argument("--steps", type=int, help="3, and 200 with --accuracy")
    parser.add_argument("--accuracy", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        if arguments.accuracy:
            names = ["mobilenet", "resnet18"]
            checks = [(name, lambda name=name: check_accuracy(arguments.trainyard, name, arguments.steps or 200, Path(folder))) for name in names]
        else:
            pairs = [(name, exporter) for name in modules() for exporter in EXPORTERS]
            checks = [
                (f"{name}/{exporter}", lambda name=name, exporter=exporter: check_module(arguments.trainyard, name, exporter, arguments.steps or 3, Path(folder)))
                for name, exporter in pairs
            ]
        for label, check in checks:
            if arguments.only and arguments.only not in (label, label.split("/")[0]):
                continue
            print(label, flush=True)
            try:
                problems = check()
            except RuntimeError as error:
                problems = [str(error)]
            failed |= bool(problems)
            for problem in problems:
                print(f"    error: {problem}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
