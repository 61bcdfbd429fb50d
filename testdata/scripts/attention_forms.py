#!/usr/bin/env python3
"""The forms of attention that PyTorch's exporters write, and which of them are found.

    python testdata/scripts/attention_forms.py [--trainyard BINARY] [--full] [--only TEXT]

A cell is an exporter with an opset, optimised or not, one call of `scaled_dot_product_attention` or its formula, a batch, a number of
heads a key head, and a mask. By default every pair of values is in some cell; `--full` takes the whole product. Prints each cell
that is not found and has no reason in `KNOWN`, and each entry of `KNOWN` that no cell needs. The exit code is 1 if there are any.
Needs the packages that testdata/requirements.txt lists.
"""

import argparse
import contextlib
import io
import itertools
import logging
import math
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
HEADS, TOKENS, WIDTH, VOCABULARY = 4, 6, 8, 11
AXES = {
    "exporter": ["dynamo", "legacy"],
    "form": ["optimised", "as traced"],
    "call": ["sdpa", "formula"],
    "batch": [1, 2],
    "heads a key head": [1, 2],
    "mask": ["none", "causal", "window", "padding", "bias", "alibi", "soft cap", "sinks"],
    "opset": [17, 18, 20, 21, 22, 23, 24],
}
# The reason why a cell is not found, by a condition on it.
KNOWN = [
    ("a soft cap or sinks stand between the scores and the softmax: the operator has neither", lambda c: c["mask"] in ("soft cap", "sinks")),
]


def exists(cell):
    """Whether an exporter writes such a file, and PyTorch has such a call."""
    if cell["exporter"] == "legacy" and (cell["opset"] > 20 or cell["form"] == "optimised"):
        return False
    if cell["exporter"] == "dynamo" and cell["opset"] < 18:
        return False
    return not (cell["call"] == "sdpa" and cell["mask"] in ("soft cap", "sinks"))


class Attention(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, width = cell, HEADS * WIDTH
        self.keys = HEADS // cell["heads a key head"]
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.query = nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, self.keys * WIDTH), nn.Linear(width, self.keys * WIDTH)
        self.output, self.head = nn.Linear(width, width), nn.Linear(width, VOCABULARY)
        self.bias = nn.Parameter(torch.randn(1, HEADS, TOKENS, TOKENS))
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def forward(self, ids, padding=None):
        x = self.embedding(ids)
        batch, tokens = ids.shape

        def split(y, heads):
            return y.view(batch, tokens, heads, WIDTH).transpose(1, 2)

        query = split(self.query(x), HEADS)
        key, value = split(self.key(x), self.keys), split(self.value(x), self.keys)
        repeats = self.cell["heads a key head"]
        if repeats > 1:
            # As Hugging Face's `repeat_kv`.
            shape = (batch, self.keys, repeats, tokens, WIDTH)
            key = key[:, :, None].expand(*shape).reshape(batch, HEADS, tokens, WIDTH)
            value = value[:, :, None].expand(*shape).reshape(batch, HEADS, tokens, WIDTH)
        y = self.attend(query, key, value, self.mask(tokens, padding))
        y = y.transpose(1, 2).reshape(batch, tokens, HEADS * WIDTH)
        return self.head(self.output(y))

    def mask(self, tokens, padding):
        """A sum onto the scores, or nothing."""
        kind, lowest = self.cell["mask"], torch.finfo(torch.float32).min
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
        if kind == "causal":
            return torch.where(distance >= 0, 0.0, lowest)
        if kind == "window":
            return torch.where((distance >= 0) & (distance < 3), 0.0, lowest)
        if kind == "padding":
            return (1.0 - padding[:, None, None, :].float()) * lowest
        if kind == "bias":
            return self.bias
        if kind == "alibi":
            slopes = torch.tensor([2.0 ** -(i + 1) for i in range(HEADS)])
            return torch.where(distance >= 0, 0.0, lowest) - slopes[:, None, None] * distance
        return None

    def attend(self, query, key, value, mask):
        if self.cell["call"] == "sdpa":
            causal = self.cell["mask"] == "causal"
            mask = None if causal else mask
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH)
        if self.cell["mask"] == "soft cap":
            scores = torch.tanh(scores / 30.0) * 30.0
        if mask is not None:
            scores = scores + mask
        if self.cell["mask"] == "sinks":
            sinks = self.sinks.view(1, HEADS, 1, 1).expand(query.shape[0], HEADS, query.shape[2], 1)
            return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ value
        return torch.softmax(scores, -1) @ value


def export(cell, path):
    torch.manual_seed(0)
    model = Attention(cell).train()
    ids = torch.randint(VOCABULARY, (cell["batch"], TOKENS))
    arguments, names = (ids,), ["ids"]
    if cell["mask"] == "padding":
        arguments, names = (ids, torch.ones_like(ids)), ["ids", "padding"]
    shared = {"input_names": names, "output_names": ["logits"], "opset_version": cell["opset"]}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if cell["exporter"] == "dynamo":
            optimised = cell["form"] == "optimised"
            torch.onnx.export(model, arguments, str(path), dynamo=True, optimize=optimised, verbose=False, external_data=False, **shared)
        else:
            training = torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(model, arguments, str(path), dynamo=False, training=training, **shared)


def covering(cells, size):
    """A few of the cells in which every combination of so many values stands that stands in any of them: pairs of values for 2."""
    of = [set(itertools.combinations(sorted(cell.items(), key=lambda item: item[0]), size)) for cell in cells]
    left, chosen = set().union(*of), []
    while left:
        best = max(range(len(cells)), key=lambda index: len(of[index] & left))
        chosen.append(cells[best])
        left -= of[best]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary to check")
    parser.add_argument("--full", action="store_true", help="the whole product")
    parser.add_argument("--only", help="cells whose text contains this")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    cells = [dict(zip(AXES, values)) for values in itertools.product(*AXES.values())]
    cells = [cell for cell in cells if exists(cell)]
    if not arguments.full:
        cells = covering(cells, 2)
    failures, used, found = [], set(), 0
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            text = ", ".join(f"{axis} {value}" for axis, value in cell.items())
            if arguments.only and arguments.only not in text:
                continue
            path = Path(folder) / "cell.onnx"
            try:
                export(cell, path)
            except Exception as error:
                failures.append(f"{text}: not exported: {str(error).splitlines()[0][:200]}")
                continue
            run = subprocess.run([arguments.trainyard, "inspect", path, "--why", "attention"], capture_output=True, text=True)
            reason = next((i for i, (_, holds) in enumerate(KNOWN) if holds(cell)), None)
            is_found = "`attention` was found" in run.stdout
            found += is_found
            if not is_found and reason is not None:
                used.add(reason)
            elif not is_found:
                failures.append(f"{text}: {(run.stdout + run.stderr).strip()}")
    print(f"{found} of {len(cells)} cells are found")
    if not arguments.only:
        failures += [f"no cell needs the reason: {KNOWN[i][0]}" for i in range(len(KNOWN)) if i not in used]
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
