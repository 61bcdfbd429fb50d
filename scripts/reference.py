#!/usr/bin/env python3
"""Writes the numbers that PyTorch computes for a module and one batch, for `trainyard verify MODEL.onnx --against FILE.npz`.

The file holds the batch, the outputs, the loss, and every parameter of the module with its gradient, under the names of
`state_dict()`. Whatever the module does not train (buffers, frozen parameters, parameters that the loss does not reach) has a
gradient of zeros, so `verify` notices when Trainyard trains it. docs/verify.md says how the numbers are compared.

From the command line, with a function that returns the module and a file with the batch:

    python scripts/reference.py mymodule.py:make_model batch.npz -o reference.npz
    trainyard verify mymodel.onnx --against reference.npz

From Python, with the module that was exported:

    from reference import write_reference
    torch.onnx.export(module, tuple(inputs.values()), "mymodel.onnx", dynamo=True, input_names=list(inputs))
    write_reference(module, inputs, "reference.npz", labels=labels)

Needs torch and numpy.
"""

import argparse
import contextlib
import copy
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy
import torch

# Labels that do not count, as in torch.nn.functional.cross_entropy and in Trainyard.
IGNORE_INDEX = -100

Tensors = Mapping[str, torch.Tensor]


def cross_entropy(outputs, labels: torch.Tensor) -> torch.Tensor:
    """The loss that Trainyard adds to a model without one: the mean over all labels that count, without a shift."""
    logits = list(named_outputs(outputs).values())[0]
    logits = logits.reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(logits, labels.reshape(-1), ignore_index=IGNORE_INDEX)


def own_loss(outputs) -> torch.Tensor:
    """The loss among the outputs of a module that computes it: the output named `loss`, or the only scalar."""
    named = named_outputs(outputs)
    if "loss" in named:
        return named["loss"]
    scalars = [name for name, value in named.items() if value.is_floating_point() and value.numel() == 1]
    if len(scalars) != 1:
        raise SystemExit(
            f"{len(scalars)} of the outputs {list(named)} are float scalars, so the loss is not known: give labels, or a "
            "function of the outputs (--loss FILE.py:FUNCTION)"
        )
    return named[scalars[0]].reshape(())


def named_outputs(outputs) -> dict[str, torch.Tensor]:
    """The tensors that a module returned. Those without a name of their own have their position: `0`, `1`, ..."""
    if isinstance(outputs, torch.Tensor):
        return {"0": outputs}
    if isinstance(outputs, Mapping):
        pairs = outputs.items()
    else:
        pairs = ((str(position), output) for position, output in enumerate(outputs))
    return {name: value for name, value in pairs if isinstance(value, torch.Tensor)}


def without_dropout(module: torch.nn.Module) -> list[str]:
    """Switches dropout off, since its random numbers differ between programs. Returns the names of the layers."""
    switched_off = []
    for name, layer in module.named_modules():
        # Dropout layers have a share `p`; attention, recurrent and other layers have a number such as `dropout`.
        is_dropout = isinstance(layer, torch.nn.modules.dropout._DropoutNd)
        for attribute, value in list(vars(layer).items()):
            is_share = isinstance(value, float) and 0.0 < value <= 1.0
            if is_share and (is_dropout and attribute == "p" or "drop" in attribute):
                setattr(layer, attribute, 0.0)
                if layer.training:
                    switched_off.append(name or "the module")
    return switched_off


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    """Lets tensors that the module makes have this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run(
    module: torch.nn.Module, inputs: Tensors, labels: torch.Tensor | None, loss: Callable | None, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, torch.Tensor | None]]:
    """Runs a copy of the module forward and backward in `dtype`: its outputs, its loss, its gradients."""
    module = copy.deepcopy(module).to(dtype)
    dropped = without_dropout(module)
    if dropped:
        print(f"dropout is off in {len(dropped)} layers: give `verify` --dropout off", file=sys.stderr)
    cast = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    parameters = inspect.signature(module.forward).parameters
    if labels is not None and labels.is_floating_point():
        labels = labels.to(dtype)

    def forward():
        by_name = all(name in parameters for name in cast)
        outputs = module(**cast) if by_name else module(*cast.values())
        if labels is not None:
            return outputs, (loss or cross_entropy)(outputs, labels)
        return outputs, (loss or own_loss)(outputs)

    with default_dtype(dtype):
        buffers = copy.deepcopy(dict(module.named_buffers()))
        with torch.no_grad():
            first = forward()[1]
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        outputs, value = forward()
        value.backward()
    if not torch.equal(first, value):
        raise SystemExit(
            f"the module has a loss of {first.item()} and then of {value.item()} on the same batch: it draws random numbers "
            "(dropout, stochastic depth); switch them off, or give --eval"
        )
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return named_outputs(outputs), value, gradients


def array(tensor: torch.Tensor) -> numpy.ndarray:
    """A tensor as NumPy has it. NumPy has no bf16: f32 holds the same numbers."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def write_reference(
    module: torch.nn.Module,
    inputs: Tensors,
    path: str | Path,
    *,
    labels: torch.Tensor | None = None,
    loss: Callable | None = None,
    output_names: list[str] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Writes the file for `trainyard verify --against`.

    module        in the mode (train or eval) and with the weights with which it was exported; it is not changed
    inputs        by the names that they have in the ONNX file, in the order of the export
    labels        for a module that returns logits. A module that computes its loss has its labels among the inputs
    loss          a function of (outputs, labels), or, without labels, of the outputs. By default the cross-entropy with the
                  labels; without labels the module's own loss
    output_names  names of the outputs in the ONNX file. By default the keys of a dict, else positions
    dtype         computes in this type; by default f64, or f32 for a module that does not run in f64
    """
    if dtype is not None:
        outputs, value, gradients = run(module, inputs, labels, loss, dtype)
    else:
        try:
            outputs, value, gradients = run(module, inputs, labels, loss, torch.float64)
        except RuntimeError as error:
            print(f"the module does not run in f64 ({error}); f32 is used", file=sys.stderr)
            outputs, value, gradients = run(module, inputs, labels, loss, torch.float32)
    if output_names:
        outputs = dict(zip(output_names, outputs.values()))
    numbers = {f"input.{name}": array(value) for name, value in inputs.items()}
    numbers |= {f"output.{name}": array(value) for name, value in outputs.items() if value.is_floating_point()}
    numbers["loss"] = array(value)
    if labels is not None:
        numbers["labels"] = array(labels)
    parameters = dict(module.named_parameters())
    # Real ties are one parameter with two names; `named_parameters` has the first alone.
    for name, tensor in [*parameters.items(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        numbers[f"param.{name}"] = array(tensor)
        gradient = gradients.get(name)
        numbers[f"grad.{name}"] = array(torch.zeros_like(tensor) if gradient is None else gradient)
    numpy.savez_compressed(path, **numbers)
    trained = sum(gradients.get(name) is not None for name in parameters)
    untrained = len([key for key in numbers if key.startswith("grad.")]) - trained
    print(f"{path}: loss {value.item():.9g}, {trained} gradients, {untrained} tensors that are not trained")


def load(place: str):
    """The object that `FILE.py:NAME` says."""
    file, _, name = place.rpartition(":")
    if not file:
        raise SystemExit(f"{place}: give FILE.py:NAME")
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or not Path(file).is_file():
        raise SystemExit(f"{file}: not a Python file")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    if not hasattr(code, name):
        raise SystemExit(f"{file} has no `{name}`")
    return getattr(code, name)


def read_batch(path: str) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """The inputs of an .npz file, with or without `input.` before their names, and its labels."""
    with numpy.load(path) as batch:
        tensors = {key.removeprefix("input."): torch.from_numpy(batch[key]) for key in batch.files}
    return tensors, tensors.pop("labels", None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", metavar="FILE.py:NAME", help="the module, or a function without arguments that makes it")
    parser.add_argument("batch", metavar="BATCH.npz", help="arrays under the names of the inputs, and `labels`")
    parser.add_argument("-o", "--output", default="reference.npz", help="the file to write [default: reference.npz]")
    parser.add_argument("--loss", metavar="FILE.py:NAME", help="a function of (outputs, labels) [default: cross-entropy]")
    parser.add_argument("--outputs", metavar="NAME,…", help="names of the outputs in the ONNX file")
    parser.add_argument("--labels-are-an-input", action="store_true", help="the module takes `labels` and returns its loss")
    parser.add_argument("--eval", action="store_true", help="put the module in eval mode; else it stays in its own")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="the type to compute in [default: float64]")
    arguments = parser.parse_args()
    made = load(arguments.module)
    module = made if isinstance(made, torch.nn.Module) else made()
    if arguments.eval:
        module.eval()
    inputs, labels = read_batch(arguments.batch)
    if arguments.labels_are_an_input and labels is not None:
        inputs, labels = {**inputs, "labels": labels}, None
    write_reference(
        module,
        inputs,
        arguments.output,
        labels=labels,
        loss=load(arguments.loss) if arguments.loss else None,
        output_names=arguments.outputs.split(",") if arguments.outputs else None,
        dtype=getattr(torch, arguments.dtype) if arguments.dtype else None,
    )


if __name__ == "__main__":
    main()
