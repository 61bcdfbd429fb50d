#!/usr/bin/env python3
"""Writes a model without its weights: each tensor of floats becomes external data in a file that does not exist.

`--init gpt2` gives it new ones; what is left takes kilobytes. The graph, and numbers that are no weights (shapes, scalars), stay.

usage: python testdata/scripts/drop_weights.py FROM.onnx TO.onnx
"""

import math
import sys
from pathlib import Path

import onnx
from onnx import TensorProto

ABSENT_WEIGHTS = "weights-not-shipped.bin"
ALIGNMENT = 4096
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def point_at_nothing(tensor: TensorProto, start: int) -> int:
    """Takes a tensor's elements away; gives where the next begins."""
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    length = math.prod(tensor.dims) * width
    for field in ("raw_data", "float_data", "double_data", "int32_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": ABSENT_WEIGHTS, "offset": start, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))
    return start + -(-length // ALIGNMENT) * ALIGNMENT


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    model = onnx.load(source)
    start = 0
    for tensor in model.graph.initializer:
        if tensor.data_type in FLOATS and tensor.dims:
            start = point_at_nothing(tensor, start)
    # Shapes, and where things came from, are most of what is left.
    for item in (model, model.graph, *model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        del item.metadata_props[:]
    del model.graph.value_info[:]
    target.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{target}: {len(model.graph.node)} nodes, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
