#!/usr/bin/env python3
"""Writes testdata/kinks.tar.gz: functions at the points where they have no derivative, or where a formula of it is no number.

Each function has a model for each of PyTorch's exporters, whose loss is the mean of `f(x + p, q) * r` for parameters p and q, and a
`reference.npz` for `verify --against` with PyTorch's loss and gradients in f64. Prints the table of docs/kinks.md.

usage: python testdata/scripts/make_kinks.py
"""

import gzip
import io
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional

from export import export_model

TESTDATA = Path(__file__).resolve().parent.parent
PAGE = TESTDATA.parent / "docs" / "kinks.md"

# Name, function, points p, and points q of a second parameter.
KINKS: list[tuple[str, Callable, list, list | None]] = [
    ("relu(p)", functional.relu, [0.0], None),
    ("leaky_relu(p, 0.1)", lambda p: functional.leaky_relu(p, 0.1), [0.0], None),
    ("prelu(p, q)", functional.prelu, [0.0, -1.0], [0.25]),
    ("elu(p, 0.5)", lambda p: functional.elu(p, 0.5), [0.0], None),
    ("selu(p)", functional.selu, [0.0], None),
    ("celu(p, 0.5)", lambda p: functional.celu(p, 0.5), [0.0], None),
    ("hardsigmoid(p)", functional.hardsigmoid, [-3.0, 3.0], None),
    ("hardswish(p)", functional.hardswish, [-3.0, 3.0], None),
    ("hardtanh(p)", functional.hardtanh, [-1.0, 1.0], None),
    ("relu6(p)", functional.relu6, [0.0, 6.0], None),
    ("clamp(p, -1, 1)", lambda p: p.clamp(-1, 1), [-1.0, 1.0], None),
    ("clamp(p, min=-1)", lambda p: p.clamp(min=-1), [-1.0], None),
    ("clamp(p, max=1)", lambda p: p.clamp(max=1), [1.0], None),
    ("clamp(p, min=q)", lambda p, q: torch.clamp(p, min=q), [1.0, 2.0], [1.0, 1.0]),
    ("maximum(p, q)", torch.maximum, [1.0, 2.0], [1.0, 3.0]),
    ("minimum(p, q)", torch.minimum, [1.0, 2.0], [1.0, 3.0]),
    ("maximum(p, zeros)", lambda p: torch.maximum(p, torch.zeros(2, dtype=p.dtype)), [0.0, 2.0], None),
    ("amax(p)", lambda p: p.amax(-1, keepdim=True), [1.0, 1.0, 0.0], None),
    ("max(p, dim)", lambda p: p.max(-1, keepdim=True).values, [0.0, 1.0, 1.0], None),
    ("softshrink(p)", functional.softshrink, [-0.5, 0.5], None),
    ("hardshrink(p)", functional.hardshrink, [-0.5, 0.5], None),
    ("threshold(p, 1, 5)", lambda p: functional.threshold(p, 1.0, 5.0), [1.0], None),
    ("softplus(p)", functional.softplus, [20.0, 30.0], None),
    ("logsigmoid(p)", functional.logsigmoid, [0.0], None),
    ("softsign(p)", functional.softsign, [0.0], None),
    ("abs(p)", torch.abs, [0.0], None),
    ("norm(p)", lambda p: p.norm(dim=-1, keepdim=True), [0.0, 0.0], None),
    ("normalize(p)", lambda p: functional.normalize(p, dim=-1), [0.0, 0.0], None),
    ("std(p)", lambda p: p.std(-1, keepdim=True), [1.0, 1.0], None),
    ("p**0", lambda p: p**0, [0.0, 2.0], None),
    ("p**2", lambda p: p**2, [0.0, -2.0], None),
    ("p**3", lambda p: p**3, [0.0, -2.0], None),
    ("p**q", torch.pow, [0.0, 0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 1.5, 2.0, 0.0]),
    ("2**q", lambda p, q: p + 2.0**q, [0.0], [0.0]),
    ("0**q", lambda p, q: p + 0.0**q, [0.0, 0.0], [0.0, 2.0]),
    ("prod(p)", lambda p: p.prod(-1, keepdim=True), [0.0, 2.0, 3.0], None),
    ("cumprod(p)", lambda p: p.cumprod(-1), [0.0, 2.0, 3.0], None),
    ("remainder(p, q)", torch.remainder, [4.0], [2.0]),
    ("smooth_l1(p)", lambda p: functional.smooth_l1_loss(p, torch.zeros_like(p), reduction="none"), [-1.0, 0.0, 1.0], None),
    ("huber(p)", lambda p: functional.huber_loss(p, torch.zeros_like(p), reduction="none"), [-1.0, 0.0, 1.0], None),
    ("l1(p)", lambda p: functional.l1_loss(p, torch.zeros_like(p), reduction="none"), [0.0], None),
    ("max_pool(p)", lambda p: functional.max_pool1d(p.unsqueeze(-2), 2).squeeze(-2), [1.0, 1.0, 2.0, 2.0], None),
]
SAMPLES = 2


class Kink(nn.Module):
    """The mean of `f(x + p, q) * r`."""

    def __init__(self, function: Callable, p: list, q: list | None) -> None:
        super().__init__()
        self.function = function
        self.p = nn.Parameter(torch.tensor(p))
        self.q = None if q is None else nn.Parameter(torch.tensor(q))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        operands = (x + self.p,) if self.q is None else (x + self.p, self.q)
        return (self.function(*operands) * r).mean()


def reference(model: Kink, x: torch.Tensor, r: torch.Tensor) -> dict[str, numpy.ndarray]:
    """Loss and gradients in f64, under the names that `verify --against` reads."""
    model = model.double()
    loss = model(x.double(), r.double())
    loss.backward()
    numbers = {"input.x": x.numpy(), "input.r": r.numpy(), "loss": loss.detach().numpy()}
    numbers |= {f"grad.{name}": parameter.grad.numpy() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.float()
    return numbers


def exported(model: Kink, inputs: tuple, exporter: str) -> bytes | None:
    """The model as an exporter writes it; None if the exporter does not know the function."""
    names = {"output_names": ["loss"], "opset_version": 20}
    # An optimizer of graphs folds nodes of q into a constant that is no parameter by its name.
    optimizes = model.q is None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            if exporter == "dynamo":
                export_model(model, dict(zip("xr", inputs, strict=True)), path, optimize=optimizes, **names)
            else:
                names |= {"input_names": ["x", "r"], "do_constant_folding": optimizes}
                torch.onnx.export(model, inputs, str(path), dynamo=False, **names)
        except Exception as error:
            print(f"{exporter}: {type(error).__name__}: {str(error).splitlines()[0]}")
            return None
        return path.read_bytes()


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    archive = io.BytesIO()
    rows = []
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        for name, function, p, q in KINKS:
            model = Kink(function, p, q).eval()
            x = torch.zeros(SAMPLES, len(p))
            wide = model(x, torch.ones(())).detach()
            assert wide.isfinite(), name
            size = function(*([x + model.p] if q is None else [x + model.p, model.q])).shape[-1]
            r = torch.arange(1.0, 1 + SAMPLES * size).reshape(SAMPLES, size)
            numbers = reference(model, x, r)
            folder = f"{name.replace(' ', '').replace('*', 'x')}"
            for exporter in ["dynamo", "legacy"]:
                content = exported(model, (x, r), exporter)
                if content is not None:
                    add(f"{folder}/{exporter}.onnx", content)
            file = io.BytesIO()
            numpy.savez(file, **numbers)
            add(f"{folder}/reference.npz", file.getvalue())
            # The gradient of the sum of f, for the page.
            values = [(x[0] + model.p).detach().double().requires_grad_()]
            values += [] if q is None else [model.q.detach().double().requires_grad_()]
            function(*values).sum().backward()
            numbers = lambda tensor: ", ".join(f"{number:g}" for number in tensor.tolist())
            cells = [numbers(values[0].detach()), numbers(values[0].grad)]
            cells += ["", ""] if q is None else [numbers(values[1].detach()), numbers(values[1].grad)]
            rows.append(f"| `{name}` | {' | '.join(cells)} |")
    with open(TESTDATA / "kinks.tar.gz", "wb") as file:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
            packed.write(archive.getvalue())
    head = PAGE.read_text().split("| f |")[0] if PAGE.exists() else ""
    table = ["| f | p | gradient of p | q | gradient of q |", "| --- | --- | --- | --- | --- |", *rows]
    PAGE.write_text(head + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
