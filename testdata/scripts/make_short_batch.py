#!/usr/bin/env python3
"""Writes testdata/short-batch.*: what PyTorch makes of data whose samples are no multiple of the batch.

A convolution with a batch norm and a linear layer, exported in training mode: once with logits (short-batch.onnx), once with
a mean squared error of its own (short-batch-mse.onnx). short-batch.npz has 22 samples for both; short-batch.json the losses
of three epochs of batches of four with `drop_last`, in the order in which Trainyard shuffles, and the loss over all 22
samples with the running statistics after them, and for the second model before them, then also of the last sample alone.

usage: OMP_NUM_THREADS=1 python testdata/scripts/make_short_batch.py
"""

import json
import warnings
from pathlib import Path

import numpy
import onnx
import torch
from onnx import numpy_helper

FOLDER = Path(__file__).resolve().parent.parent
SAMPLES, BATCH, EPOCHS, SEED = 22, 4, 3, 5
LR, MOMENTUM = 0.02, 0.9
MASK = 2**64 - 1


def mix(value: int) -> int:
    """SplitMix64, as runtime/data/order.rs has it."""
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def order(length: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch: a Feistel network with cycle walking, as runtime/data/order.rs has it."""
    half = max(1, -(-(length - 1).bit_length() // 2))
    key = mix(mix(seed) ^ epoch)
    keys = [mix((key + round) & MASK) for round in range(8)]

    def encrypt(value: int) -> int:
        mask = (1 << half) - 1
        left, right = value >> half, value & mask
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & mask)
        return (left << half) | right

    def index(position: int) -> int:
        while (position := encrypt(position)) >= length:
            pass
        return position

    return [index(position) for position in range(length)]


class Net(torch.nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4 * 16, outputs)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(1)

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.net(x), target)


def export(module, inputs, names, output, file):
    torch.onnx.export(
        module, inputs, FOLDER / file, input_names=names, output_names=[output], dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17,
    )
    # The exporter runs the module in training mode, which moves its running statistics: the file has those of some run.
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(FOLDER / file).graph.initializer}
    state = {name: torch.tensor(tensors[name]) for name in module.state_dict() if name in tensors}
    missing = module.load_state_dict(state, strict=False).missing_keys
    assert all(name.endswith("num_batches_tracked") for name in missing), missing


def train(module, loss_of):
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    module.train()
    for epoch in range(EPOCHS):
        shuffled = order(SAMPLES, SEED, epoch)
        for first in range(0, SAMPLES - SAMPLES % BATCH, BATCH):
            loss = loss_of(shuffled[first : first + BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def evaluate(module, loss_of, rows=range(SAMPLES)):
    module.eval()
    with torch.no_grad():
        return loss_of(list(rows)).item()


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 1, 6, 6) + torch.arange(SAMPLES).reshape(-1, 1, 1, 1) / 10
    labels = torch.randint(0, 3, (SAMPLES,))
    target = torch.randn(SAMPLES, 1)
    classifier, regression = Net(3), Regression()
    export(classifier, (x[:BATCH],), ["x"], "logits", "short-batch.onnx")
    export(regression, (x[:BATCH], target[:BATCH]), ["x", "target"], "loss", "short-batch-mse.onnx")
    arrays = {"x": x.numpy(), "labels": labels.numpy(), "target": target.numpy()}
    numpy.savez(FOLDER / "short-batch.npz", **arrays)
    entropy = lambda rows: torch.nn.functional.cross_entropy(classifier(x[rows]), labels[rows])
    error = lambda rows: regression(x[rows], target[rows])
    found = {"seed": SEED, "microbatch": BATCH, "lr": LR, "mse_eval_before": evaluate(regression, error)}
    found["mse_last_sample"] = evaluate(regression, error, [SAMPLES - 1])
    found |= {"losses": train(classifier, entropy), "eval": evaluate(classifier, entropy)}
    found |= {"mse_losses": train(regression, error), "mse_eval": evaluate(regression, error)}
    (FOLDER / "short-batch.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
