#!/usr/bin/env python3
"""Checks an ONNX model that Trainyard exported with tools that are not Trainyard's.

    check_export.py MODEL.onnx [--against ORIGINAL.onnx] [--inputs FILE.npz --logits FILE.npz]

1. The official onnx checker accepts MODEL, shape inference included.
2. With --against: MODEL is ORIGINAL with other weights. (Of a model that was exported in training mode this holds for
   model-training.onnx; in model.onnx batch norms and dropouts are in inference form.) Nodes, names, inputs, outputs, functions and operator sets are
   equal, and so is every tensor that is not floating point.
3. With --inputs and --logits: ONNX Runtime computes the given outputs, max|a - b| <= 1e-5 * max|b|.
   Keys of the inputs: NAME or input.NAME; of the outputs: NAME or output.NAME. Both may be the same file.

Each check runs when the one before has passed. Exits 1 with the differences found when one fails.
"""

import argparse
import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
from onnx import numpy_helper

TOLERANCE = 1e-5
DIFFERENCES_SHOWN = 20
FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--against", type=Path, metavar="ORIGINAL.onnx")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz")
    parser.add_argument("--logits", type=Path, metavar="FILE.npz")
    arguments = parser.parse_args()
    if (arguments.inputs is None) != (arguments.logits is None):
        parser.error("--inputs and --logits go together")
    return arguments


def official_checker(path: Path) -> list[str]:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return [f"the onnx checker refuses {path}: {error}"]
    return []


def compare_tensors(what: str, tensor: onnx.TensorProto, original: onnx.TensorProto) -> list[str]:
    """A floating point tensor may have new values; any other must be the same."""
    if tensor.data_type != original.data_type or list(tensor.dims) != list(original.dims):
        kinds = [
            f"{onnx.TensorProto.DataType.Name(each.data_type)}{list(each.dims)}" for each in (original, tensor)
        ]
        return [f"{what} was {kinds[0]} and is {kinds[1]}"]
    if tensor.data_type in FLOATS:
        return []
    if not numpy.array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(original)):
        return [f"{what} is not floating point and has other values"]
    return []


def compare_attributes(what: str, node: onnx.NodeProto, original: onnx.NodeProto) -> list[str]:
    """Equal, except for the floating point content of a Constant, which may be a weight."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    originals = {attribute.name: attribute for attribute in original.attribute}
    if attributes.keys() != originals.keys():
        return [f"{what} had the attributes {sorted(originals)} and has {sorted(attributes)}"]
    found = []
    for name, attribute in attributes.items():
        if attribute == originals[name]:
            continue
        is_constant = node.op_type == "Constant" and attribute.type == originals[name].type
        if is_constant and attribute.type == onnx.AttributeProto.TENSOR:
            found += compare_tensors(f"the value of {what}", attribute.t, originals[name].t)
        elif is_constant and name == "value_float":
            continue
        elif is_constant and name == "value_floats" and len(attribute.floats) == len(originals[name].floats):
            continue
        else:
            found.append(f"attribute {name} of {what} differs")
    return found


def compare_nodes(model: list[onnx.NodeProto], original: list[onnx.NodeProto]) -> list[str]:
    if len(model) != len(original):
        return [f"there were {len(original)} nodes and are {len(model)}"]
    found = []
    for index, (node, before) in enumerate(zip(model, original)):
        what = f"node {index} ({before.op_type} {before.name!r})"
        for field in ("op_type", "domain", "overload", "name", "input", "output"):
            now, then = getattr(node, field), getattr(before, field)
            if now != then:
                found.append(f"{field} of {what} was {then} and is {now}")
        found += compare_attributes(what, node, before)
    return found


def compare_initializers(model: onnx.GraphProto, original: onnx.GraphProto) -> list[str]:
    initializers = {tensor.name: tensor for tensor in model.initializer}
    originals = {tensor.name: tensor for tensor in original.initializer}
    found = [f"initializer {name!r} is missing" for name in originals.keys() - initializers.keys()]
    found += [f"initializer {name!r} is new" for name in initializers.keys() - originals.keys()]
    for name in originals.keys() & initializers.keys():
        found += compare_tensors(f"initializer {name!r}", initializers[name], originals[name])
    return sorted(found)


def compare_models(model: onnx.ModelProto, original: onnx.ModelProto) -> list[str]:
    found = []
    opsets = [sorted((opset.domain, opset.version) for opset in each.opset_import) for each in (original, model)]
    if opsets[0] != opsets[1]:
        found.append(f"the operator sets were {opsets[0]} and are {opsets[1]}")
    for field in ("input", "output", "sparse_initializer"):
        if list(getattr(model.graph, field)) != list(getattr(original.graph, field)):
            found.append(f"the graph's {field} differs")
    if list(model.functions) != list(original.functions):
        found.append("the functions differ")
    found += compare_initializers(model.graph, original.graph)
    found += compare_nodes(list(model.graph.node), list(original.graph.node))
    return found


def array_named(arrays: numpy.lib.npyio.NpzFile, prefix: str, name: str) -> numpy.ndarray | None:
    for key in (f"{prefix}.{name}", name):
        if key in arrays:
            return arrays[key]
    return None


def compare_outputs(path: Path, inputs_path: Path, logits_path: Path) -> list[str]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {}
    with numpy.load(inputs_path) as arrays:
        for value in session.get_inputs():
            feeds[value.name] = array_named(arrays, "input", value.name)
    missing = sorted(name for name, array in feeds.items() if array is None)
    if missing:
        return [f"{inputs_path} has no array for the inputs {missing}"]
    names = [value.name for value in session.get_outputs()]
    found, compared = [], 0
    with numpy.load(logits_path) as arrays:
        for name, actual in zip(names, session.run(names, feeds)):
            expected = array_named(arrays, "output", name)
            if expected is not None:
                compared += 1
                found += compare_arrays(name, actual, expected)
    if compared == 0:
        found.append(f"{logits_path} has none of the outputs {names}")
    return found


def compare_arrays(name: str, actual: numpy.ndarray, expected: numpy.ndarray) -> list[str]:
    if actual.shape != expected.shape:
        return [f"output {name!r} has shape {actual.shape}, expected {expected.shape}"]
    if not (numpy.isfinite(actual).all() and numpy.isfinite(expected).all()):
        return [f"output {name!r} has values that are not finite"]
    difference = numpy.abs(actual.astype(numpy.float64) - expected).max(initial=0.0)
    allowed = TOLERANCE * numpy.abs(expected.astype(numpy.float64)).max(initial=0.0)
    print(f"output {name!r}: largest difference {difference:.3g}, allowed {allowed:.3g}")
    if difference > allowed:
        return [f"output {name!r} in ONNX Runtime differs by {difference:.3g}, more than {allowed:.3g}"]
    return []


def main() -> int:
    arguments = parse_arguments()
    found = official_checker(arguments.model)
    if not found and arguments.against is not None:
        models = [onnx.load(str(path)) for path in (arguments.model, arguments.against)]
        found += compare_models(*models)
    if not found and arguments.inputs is not None:
        found += compare_outputs(arguments.model, arguments.inputs, arguments.logits)
    for message in found[:DIFFERENCES_SHOWN]:
        print(f"error: {message}", file=sys.stderr)
    if len(found) > DIFFERENCES_SHOWN:
        print(f"error: and {len(found) - DIFFERENCES_SHOWN} more", file=sys.stderr)
    if not found:
        print(f"{arguments.model}: all checks passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
