"""Finds out, without Trainyard, which of a module's parameters an ONNX file holds."""

import json
import re
from dataclasses import dataclass

import numpy
import onnx
import torch
from models import slug
from onnx import numpy_helper

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
CALL = "pkg.torch.onnx.fx_node"


@dataclass
class Module:
    """What the exported module has: `parameters` have a gradient; each maps to the names that are tied to it."""

    facts: dict
    state: dict[str, numpy.ndarray]

    @property
    def parameters(self):
        unused = {*self.facts["unused"], *self.facts["frozen"]}
        return {entry["name"]: entry["ties"] for entry in self.facts["parameters"] if entry["name"] not in unused}

    def owner(self, name):
        """Returns the name that stands for a parameter and its ties, or None if there is no such parameter."""
        for entry in self.facts["parameters"]:
            if name == entry["name"] or name in entry["ties"]:
                return entry["name"]
        return None


def module(folder, name, variant):
    """Reads what `export` wrote beside a file."""
    facts = json.loads((folder / f"{slug(name)}.{variant}.json").read_text())
    saved = torch.load(folder / f"{slug(name)}.{variant.split('-')[-1]}.pt")
    return Module(facts, {key: value.numpy() for key, value in saved["state"].items()})


@dataclass
class File:
    """What of an ONNX file tells which parameters it holds."""

    # The elements of each tensor, sorted.
    tensors: list[numpy.ndarray]
    # The initializers by name.
    named: dict[str, numpy.ndarray]
    names: set[str]
    # The graph inputs that the exporter recorded, by parameter, and the calls that it recorded.
    recorded: dict[str, str]
    calls: str


def read(path):
    """Reads a file."""
    model = onnx.load(path)
    tensors = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors += [numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
    names = {tensor.name for tensor in model.graph.initializer}
    names.update(output for node in model.graph.node for output in node.output)
    signature = "".join(entry.value for entry in model.graph.metadata_props if entry.key == SIGNATURE)
    calls = [entry.value for node in model.graph.node for entry in node.metadata_props if entry.key == CALL]
    recorded = {target: key for key, target in re.findall(r"(\w+): PARAMETER target='([^']+)'", signature)}
    floats = [numpy.sort(tensor.ravel()) for tensor in tensors if tensor.dtype.kind == "f"]
    named = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return File(floats, named, names, recorded, "\n".join(calls))


def has_value(file, value):
    """Whether a tensor of the file has the elements of `value`, in any order, or has them among others."""
    flat = numpy.sort(value.ravel())
    for tensor in file.tensors:
        if tensor.size == flat.size and numpy.array_equal(tensor, flat):
            return True
        # A recurrent layer's tensors are packed: each element stands there once, but for chance. A gathered table repeats them.
        if tensor.size > flat.size > 1 and among(flat[[0, -1]], tensor) and among(flat, tensor):
            first, last = (numpy.searchsorted(tensor, flat, side) for side in ("left", "right"))
            if (last - first).sum() <= 1.02 * flat.size:
                return True
    return False


def among(flat, tensor):
    """Whether each element stands in a sorted tensor."""
    return (tensor[numpy.searchsorted(tensor, flat).clip(max=tensor.size - 1)] == flat).all()


def mentions(file, name):
    """Whether the file has the parameter's name, or a call that was recorded with it."""
    if name in file.names:
        return True
    return name in file.recorded and re.search(rf"%{file.recorded[name]}\b", file.calls) is not None


def held(folder, name, variant):
    """Returns the parameters whose values the file holds.

    Random values tell it by themselves. In a fresh module equal tensors are merged and zeros are dropped, so the file must
    also mention a parameter of equal elements, or have a renamed tensor for each; and a tensor that is folded with random
    values is taken as folded.
    """
    exporter, weights = variant.split("-")
    path = folder / f"{slug(name)}.{variant}.onnx"
    file, owner = read(path), module(folder, name, variant)
    if weights == "random":
        return {key for key in owner.parameters if has_value(file, owner.state[key])}, file, owner
    kept = set(owner.parameters)
    if (folder / f"{slug(name)}.{exporter}-random.onnx").exists():
        kept = held(folder, name, f"{exporter}-random")[0]
    found, even_ones = set(), {}
    for key in sorted(kept):
        value = owner.state[key]
        even = value.size == 1 or (value == value.flat[0]).all()
        names = [key, *owner.parameters[key]]
        # Where the exporter records calls, the elements of two equal parameters that stand in one call alone are that one's.
        equal = (numpy.array_equal(owner.state[other], value) for other in kept - {key})
        alone = not even and has_value(file, value) and not (file.recorded and any(equal))
        if alone or any(mentions(file, tied) for tied in names):
            found.add(key)
        elif even:
            even_ones.setdefault((value.size, float(value.flat[0])), []).append(key)
    for (size, element), keys in even_ones.items():
        # The legacy exporter makes up such names.
        renamed = [tensor for name, tensor in file.named.items() if "::" in name]
        if sum(tensor.size == size and (tensor == element).all() for tensor in renamed) >= len(keys):
            found.update(keys)
    return found, file, owner
