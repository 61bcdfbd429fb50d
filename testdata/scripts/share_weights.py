#!/usr/bin/env python3
"""Keeps the weights of `models/NAME.dynamo.onnx` once: the other exports of NAME have the same weights, and read them from there.

usage: python testdata/scripts/share_weights.py    (after make_fixtures.py)

An initializer of another export whose bytes stand in `NAME.dynamo.onnx` becomes external data: the location is that file, the
offset is the place of the bytes. The graph, the names and the values stay as PyTorch exported them.
"""

from pathlib import Path

import onnx

MODELS = Path(__file__).resolve().parent.parent / "models"

# The exports that share, by the model whose file holds the weights.
SHARED = {
    "gpt2": ["gpt2-dropout.legacy", "gpt2-loss.dynamo", "gpt2.dynamo-dyn", "gpt2.dynamo-noopt", "gpt2.dynamo-op23", "gpt2.legacy-mask"],
    "llama": ["llama.dynamo-dyn", "llama.dynamo-op23", "llama.legacy-mask"],
    "bert": ["bert.legacy-dyn"],
    "mixtral": ["mixtral.dynamo-dyn"],
}

# Smaller tensors stay where they are.
LEAST = 1024


def share(holder: Path, path: Path) -> None:
    """Makes external data of each tensor of a model that the holder has, too."""
    held = holder.read_bytes()
    model = onnx.load(path, load_external_data=False)
    before, count = path.stat().st_size, 0
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < LEAST:
            continue
        offset = held.find(tensor.raw_data)
        if offset < 0:
            continue
        length = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in [("location", holder.name), ("offset", offset), ("length", length)]:
            tensor.external_data.add(key=key, value=str(value))
        count += 1
    path.write_bytes(model.SerializeToString())
    print(f"{path.name}: {count} tensors in {holder.name}; {before} bytes before, {path.stat().st_size} now")


for name, others in SHARED.items():
    for other in others:
        share(MODELS / f"{name}.dynamo.onnx", MODELS / f"{other}.onnx")
