#!/usr/bin/env python3
"""What a training step of PyTorch eager keeps alive: the number that Trainyard's arena is compared with.

Every operator of forward, backward and AdamW passes a dispatch mode, which counts the bytes of each storage from the
operator that makes it until the storage is freed. What a kernel allocates inside and frees again is not a tensor, and not
counted. The first step is not measured: it makes the moments.

usage: python testdata/scripts/torch_peak.py [mlp] [gpt2] [resnet18] [--threads N] [--export FOLDER]

A line of JSON for each model, in bytes: `peak`, the most that is alive at a time, and in which part of the step that is;
`sum`, what stands there whichever way the step is cut: parameters, moments, gradients, buffers, inputs, and what autograd has saved when
the forward pass ends. `--export` writes the models as `bench-NAME-loss.onnx`, ResNet-18 in training mode.
"""

import argparse
import json
import warnings
import weakref
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

warnings.filterwarnings("ignore")


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, weakref.ref] = {}
        self.now = self.peak = 0

    def watch(self, tensors) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self._watch(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self.alive and self.alive[key]() is storage:
            return

        def freed(_) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, freed)
        self.now += size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.watch(results)
        return results


class Loss(nn.Module):
    """Cross-entropy of a model's logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(x)
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class Tokens(nn.Module):
    """A Hugging Face language model from tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def mlp():
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(128, 784), torch.randint(0, 10, (128,))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = dict(n_layer=4, n_embd=256, n_head=4, vocab_size=8192, n_positions=128)
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    tokens, labels = (torch.randint(0, 8192, (8, 128)) for _ in range(2))
    return Tokens(GPT2LMHeadModel(config)), tokens, labels


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=10), torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))


MODELS = {"mlp": mlp, "gpt2": gpt2, "resnet18": resnet18}


def total(tensors) -> int:
    """Bytes of the storages of tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def measure(name: str) -> dict:
    torch.manual_seed(0)
    model, x, labels = MODELS[name]()
    model = Loss(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    parameters = list(model.parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        moments = [t for state in optimizer.state.values() for t in state.values()]
        held = {"parameters": total(parameters), "moments": total(moments), "buffers": total(model.buffers())}
        held["inputs"] = total([x, labels])
        peaks = {}
        with LiveBytes() as live:
            live.watch([parameters, list(model.buffers()), x, labels, moments])
            before = live.now
            loss = model(x, labels)
            held["saved"] = live.now - before
            peaks["forward"], live.peak = live.peak, 0
            loss.backward()
            peaks["backward"], live.peak = live.peak, 0
            optimizer.step()
            peaks["update"] = live.peak
        held["gradients"] = total([p.grad for p in parameters])
        del loss, live
    part = max(peaks, key=peaks.get)
    return {"model": name, "peak": peaks[part], "in": part, "sum": sum(held.values()), "parts": peaks, **held}


def export(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    model, x, labels = MODELS[name]()
    with torch.no_grad():  # the exporter merges parameters that are equal, and drops zeros
        for parameter in model.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.05 * torch.randn(parameter.shape))
    trains = name == "resnet18"  # its batch norms would be folded into the convolutions
    model = Loss(model).train(trains)
    options = dict(input_names=["x", "labels"], output_names=["loss"], dynamo=not trains)
    if trains:
        options |= dict(training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    else:
        options |= dict(external_data=False, verbose=False)
    torch.onnx.export(model, (x, labels), folder / f"bench-{name}-loss.onnx", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="mlp, gpt2, resnet18 (default: all)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the models here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.models or MODELS:
        print(json.dumps(measure(name)), flush=True)
        if arguments.export:
            export(name, arguments.export)


if __name__ == "__main__":
    main()
