#!/usr/bin/env python3
"""Writes small models to testdata/models, with the numbers that PyTorch computes for them, in the form of make_fixtures.py.

t5              Hugging Face's T5 of one layer each: relative position bias, cross attention. `dynamo` is the exporter's own
                form, which folds the bias tables; `dynamo-dyn` keeps them, since its sequences have no size.
smoothed-loss   cross-entropy with label smoothing, weights for classes, and labels that do not count; taken apart before the
                export, for the exporter's own form of it leaves the smoothing out
weighted-loss   the same without smoothing, in the exporter's own form
positives-loss  binary cross-entropy of logits, with weights for the positives
joined-loss     0.7 times a cross-entropy and 0.3 times a mean squared error
clamped-loss    cross-entropies of tokens under an uneven mask, over a count that is at least 1; two samples have no token
parted-loss     a cross-entropy over the labels that count, 0.1 times squared errors over another count with an epsilon, and the
                squares of the weights; the parts are outputs as well
summed-loss     half the sum of squared errors
batch-loss      the sum of squared errors by the number of samples, and another by the number of all elements, as `total`
root-loss       the root of a mean squared error, which microbatches do not add up to

usage: python testdata/scripts/make_small_models.py [NAME...]    (default: all)
"""

import copy
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import onnx
import torch
import torch.nn.functional as functional
import transformers

from export import export_model, make_constant_parameters_distinct

FOLDER = Path(__file__).resolve().parent.parent / "models"
SEED = 1234
STEPS = 20
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
}
SETTINGS = {
    "adamw": "lr=1e-3 betas=(.9,.999) eps=1e-8 wd=0.01 on all params",
    "sgd_momentum": "lr=0.05 momentum=0.9 dampening=0",
    "loss": "the model's own, or mean cross entropy over all positions, no shift; losses[i] is before step i",
}


@dataclass
class Example:
    """A model with what it is fed."""

    model: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    # Of a model that gives logits; one that brings its loss has them among its inputs.
    labels: torch.Tensor | None = None
    # Options of the exporter, by the name of the export.
    exports: dict[str, dict] = field(default_factory=lambda: {"dynamo": {}})
    # Whether the exporter gets the model in PyTorch's smallest set of operators.
    taken_apart: bool = False

    def export(self, name: str) -> None:
        model = self.model
        if self.taken_apart:
            model = torch.export.export(model, tuple(self.inputs.values())).run_decompositions()
        for exporter, options in self.exports.items():
            export_model(model, self.inputs, FOLDER / f"{name}.{exporter}.onnx", small=True, **options)

    def loss(self, model: torch.nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
        out = model(*inputs)
        # The first is the loss where there are several.
        out = out[0] if isinstance(out, tuple) else out
        return out if self.labels is None else functional.cross_entropy(out.flatten(0, -2), self.labels.flatten())


class T5Logits(torch.nn.Module):
    """The logits alone, without a cache."""

    def __init__(self, model: transformers.T5ForConditionalGeneration):
        super().__init__()
        self.m = model

    def forward(self, input_ids, decoder_input_ids):
        return self.m(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits


def t5() -> Example:
    batch, vocabulary, encoded, decoded = 2, 24, 32, 24
    configuration = transformers.T5Config(
        d_model=32,
        d_kv=4,
        d_ff=24,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=2,
        vocab_size=vocabulary,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = T5Logits(transformers.T5ForConditionalGeneration(configuration))
    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, encoded)),
        "decoder_input_ids": torch.randint(vocabulary, (batch, decoded)),
    }
    sizes = {name: torch.export.Dim(name, min=2, max=64) for name in ("batch", "seq", "dseq")}
    dynamic = {"dynamic_shapes": tuple({0: sizes["batch"], 1: sizes[name]} for name in ("seq", "dseq"))}
    labels = torch.randint(vocabulary, (batch, decoded))
    return Example(model, inputs, labels, {"dynamo": {}, "dynamo-dyn": dynamic})


class Trained(torch.nn.Module):
    """A small network that ends in its loss. `loss` gets what the network gives, then the other inputs."""

    def __init__(self, loss: Callable[..., torch.Tensor], outputs: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs))
        self.loss = loss


class Supervised(Trained):
    def forward(self, x, labels):
        return self.loss(self.net(x), labels)


class DoublySupervised(Trained):
    def forward(self, x, labels, targets):
        return self.loss(self.net(x), labels, targets)


def weighted(label_smoothing: float = 0.0) -> Example:
    classes = 10
    weight = 0.5 + torch.rand(classes)

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = weight.to(logits.dtype)
        return functional.cross_entropy(logits, labels, weights, ignore_index=-100, label_smoothing=label_smoothing)

    labels = torch.randint(classes, (8,))
    labels[[1, 6]] = -100
    return own_loss(Supervised(loss, classes), {"x": torch.randn(8, 12), "labels": labels})


def smoothed() -> Example:
    return dataclasses.replace(weighted(label_smoothing=0.1), taken_apart=True)


def positives() -> Example:
    outputs = 4
    weight = 0.5 + 3 * torch.rand(outputs)

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights, labels = weight.to(logits.dtype), labels.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights)

    labels = torch.randint(2, (8, outputs)).to(torch.float32)
    return own_loss(Supervised(loss, outputs), {"x": torch.randn(8, 12), "labels": labels})


def joined() -> Example:
    classes = 6

    def loss(out: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        named = functional.cross_entropy(out[:, :classes], labels)
        return 0.7 * named + 0.3 * functional.mse_loss(out[:, classes:], targets)

    inputs = {"x": torch.randn(8, 12), "labels": torch.randint(classes, (8,)), "targets": torch.randn(8, 3)}
    return own_loss(DoublySupervised(loss, classes + 3), inputs)


class Tokens(torch.nn.Module):
    """A network of tokens that ends in a loss under a mask."""

    def __init__(self, classes: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(classes, 8)
        self.head = torch.nn.Linear(8, classes)

    def forward(self, tokens, labels, mask):
        logits = self.head(torch.tanh(self.embedding(tokens)))
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return (losses * mask.flatten()).sum() / mask.sum().clamp(min=1.0)


def clamped() -> Example:
    classes, counts = 12, [6, 0, 1, 2, 0, 5, 3, 6]
    tokens, labels = torch.randint(classes, (8, 6)), torch.randint(classes, (8, 6))
    mask = (torch.arange(6) < torch.tensor(counts)[:, None]).to(torch.float32)
    return own_loss(Tokens(classes), {"tokens": tokens, "labels": labels, "mask": mask})


class Parts(torch.nn.Module):
    """The whole loss, and what it is the sum of."""

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        self.net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, classes + 3))

    def forward(self, x, labels, targets, weights):
        out = self.net(x)
        named = functional.cross_entropy(out[:, : self.classes], labels, ignore_index=-100)
        errors = (out[:, self.classes :] - targets).square().mean(dim=1)
        errors = (errors * weights).sum() / (weights.sum() + 1e-3)
        decay = sum(parameter.square().sum() for parameter in (self.net[0].weight, self.net[2].weight))
        return named + 0.1 * errors + 1e-3 * decay, named, errors


def parted() -> Example:
    classes = 6
    labels = torch.randint(classes, (8,))
    labels[[0, 1, 2, 5]] = -100
    inputs = {"x": torch.randn(8, 12), "labels": labels, "targets": torch.randn(8, 3)}
    inputs["weights"] = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.5, 3.0, 0.0, 1.0])
    # Optimised, the squares of the weights would be a constant.
    names = {"output_names": ["loss", "ce", "mse"], "optimize": False}
    return Example(Parts(classes), inputs, exports={"dynamo": names})


def summed() -> Example:
    def loss(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 0.5 * functional.mse_loss(out, labels, reduction="sum")

    return own_loss(Supervised(loss, 3), {"x": torch.randn(8, 12), "labels": torch.randn(8, 3)})


def by_batch() -> Example:
    def loss(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        errors = (out - labels).square()
        return errors.sum() / errors.shape[0] + 0.01 * out.abs().sum() / out.numel()

    inputs = {"x": torch.randn(8, 12), "labels": torch.randn(8, 3)}
    return Example(Supervised(loss, 3), inputs, exports={"dynamo": {"output_names": ["total"]}})


def root() -> Example:
    def loss(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(out, labels).sqrt()

    return own_loss(Supervised(loss, 3), {"x": torch.randn(8, 12), "labels": torch.randn(8, 3)})


def own_loss(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Example:
    return Example(model, inputs, exports={"dynamo": {"output_names": ["loss"]}})


def numbers(example: Example) -> tuple[dict[str, numpy.ndarray], dict]:
    """The arrays of NAME.train.npz and the content of NAME.train.json."""
    arrays = {f"input.{name}": value.numpy() for name, value in example.inputs.items() if name != "labels"}
    labels = example.inputs.get("labels") if example.labels is None else example.labels
    arrays["labels"] = labels.numpy()
    results: dict = {}
    for dtype, name in ((torch.float32, "f32"), (torch.float64, "f64")):
        inputs = [value.to(dtype) if value.is_floating_point() else value for value in example.inputs.values()]
        model = copy.deepcopy(example.model).to(dtype)
        loss = example.loss(model, inputs)
        loss.backward()
        results[f"loss_{name}"] = loss.item()
        if isinstance(parts := model(*inputs), tuple):
            results[f"parts_{name}"] = [part.item() for part in parts[1:]]
        if name == "f32":
            for parameter, value in model.named_parameters():
                arrays[f"param.{parameter}"] = value.detach().numpy()
                arrays[f"grad.{parameter}"] = value.grad.numpy()
        for optimizer in OPTIMIZERS:
            model = copy.deepcopy(example.model).to(dtype)
            results[f"losses_{optimizer}_{name}"] = trained(example, model, inputs, optimizer)
    return arrays, {**results, "optim": SETTINGS}


def trained(example: Example, model: torch.nn.Module, inputs: list[torch.Tensor], optimizer: str) -> list[float]:
    """The losses before each step."""
    update, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for _ in range(STEPS):
        update.zero_grad()
        loss = example.loss(model, inputs)
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


EXAMPLES = {
    "t5": t5,
    "smoothed-loss": smoothed,
    "weighted-loss": weighted,
    "positives-loss": positives,
    "joined-loss": joined,
    "clamped-loss": clamped,
    "parted-loss": parted,
    "summed-loss": summed,
    "batch-loss": by_batch,
    "root-loss": root,
}


def write_quotient_of_means() -> None:
    """Writes `clamped-loss` with means over all tokens in place of sums: PyTorch's numbers are the same."""
    model = onnx.load(FOLDER / "clamped-loss.dynamo.onnx")
    for node in model.graph.node:
        if node.op_type == "ReduceSum":
            node.op_type = "ReduceMean"
        if node.op_type == "Clip":
            floor = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
            tokens = torch.Size([8, 6]).numel()
            floor.CopyFrom(onnx.numpy_helper.from_array(numpy.float32(1 / tokens), floor.name))
    onnx.save(model, FOLDER / "quotient-loss.dynamo.onnx")


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or EXAMPLES:
        torch.manual_seed(SEED)
        example = EXAMPLES[name]()
        example.model.eval()
        make_constant_parameters_distinct(example.model)
        example.export(name)
        arrays, results = numbers(example)
        numpy.savez_compressed(FOLDER / f"{name}.train.npz", **arrays)
        (FOLDER / f"{name}.train.json").write_text(json.dumps(results, indent=1))
        if example.labels is not None:
            with torch.no_grad():
                logits = example.model(*example.inputs.values()).numpy()
            given = {key: value for key, value in arrays.items() if key.startswith("input.")}
            numpy.savez_compressed(FOLDER / f"{name}.io.npz", logits=logits, labels=arrays["labels"], **given)
        if name == "clamped-loss":
            write_quotient_of_means()


if __name__ == "__main__":
    main()
