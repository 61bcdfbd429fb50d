#!/usr/bin/env python3
"""Exports the models of the benchmark (tests/gpu/models.py) to testdata/bench, without weights.

Batch and sequence are symbolic (`batch`, `seq`). The weights are external data in a file that does not exist, so that a graph
takes kilobytes: `--init gpt2` gives it new ones. The model is built on PyTorch's `meta` device, which holds no weights either.

usage: python testdata/scripts/make_bench_models.py [NAME...]
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/gpu"))

import onnx_ir
import torch
from models import CONFIGS
from onnxscript import optimizer

import export  # noqa: F401  It quiets the exporter, and keeps it from the network.

OPSET = 23
ABSENT_WEIGHTS = "weights-not-shipped.bin"
ALIGNMENT = 4096
OUTPUT = ROOT / "testdata/bench"


def exported(name: str) -> onnx_ir.Model:
    """The graph as the exporter writes it, its weights tensors without contents."""
    with torch.device("meta"):
        model = CONFIGS[name].build().eval()
        input_ids = torch.zeros(2, 16, dtype=torch.int64)
    program = torch.onnx.export(
        model,
        (input_ids,),
        dynamo=True,
        optimize=False,
        verbose=False,
        input_names=["input_ids"],
        output_names=["logits"],
        dynamic_shapes={"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=CONFIGS[name].positions)}},
        opset_version=OPSET,
    )
    return program.model


def optimize(model: onnx_ir.Model) -> None:
    """Runs the exporter's optimizer, which reads constants; weights that have none are hidden from it as inputs."""
    graph = model.graph
    weights = dict(graph.initializers)
    contents = {name: value.const_value for name, value in weights.items()}
    for name, value in weights.items():
        del graph.initializers[name]
        value.const_value = None
        graph.inputs.append(value)
    optimizer.optimize_ir(model)
    for value in [value for value in graph.inputs if value.name in contents]:
        graph.inputs.remove(value)
        value.const_value = contents[value.name]
        if value.uses():
            graph.register_initializer(value)


def detach_weights(model: onnx_ir.Model) -> None:
    """Points every weight at a place in a file that is not there."""
    start = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        raw = getattr(tensor, "raw", None)
        if not isinstance(raw, torch.Tensor) or raw.device.type != "meta":
            continue
        value.const_value = onnx_ir.ExternalTensor(
            ABSENT_WEIGHTS, start, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name, base_dir=""
        )
        start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CONFIGS:
        model = exported(name)
        optimize(model)
        detach_weights(model)
        written = onnx_ir.to_proto(model)
        # Shapes and where a node came from are most of the file.
        for node in written.graph.node:
            del node.metadata_props[:]
        del written.graph.value_info[:]
        output = OUTPUT / f"{name}.onnx"
        output.write_bytes(written.SerializeToString(deterministic=True))
        print(f"{output}: {len(written.graph.node)} nodes, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
