#!/usr/bin/env python3
"""Writes testdata/dropout.onnx: one layer of a transformer with dropout in training mode wherever one can stand.

On attention probabilities, on a table of positions that has no samples, before a residual addition, on samples that are
flattened into a dim with their positions, and once with the mask as an output. Weights are drawn; needs onnx and numpy alone.

usage: python testdata/scripts/make_dropout_model.py
"""

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper

from graph import Graph

OUTPUT = Path(__file__).resolve().parent.parent / "dropout.onnx"
BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, VOCABULARY = 2, 8, 16, 4, 32, 64
OPSET = 20
IR_VERSION = 10


class Model(Graph):
    """A graph with dropout."""

    def dropout(self, name: str, x: str, ratio: float, outputs: list[str] | None = None) -> str:
        share = self.constant(f"{name}.ratio", numpy.array(ratio, numpy.float32))
        return self.node("Dropout", name, x, share, "training", outputs=outputs)

    def reshape(self, name: str, x: str, *shape: int) -> str:
        return self.node("Reshape", name, x, self.constant(f"{name}.shape", numpy.array(shape, numpy.int64)))


def embedding(g: Model) -> str:
    g.weight("wte", VOCABULARY, WIDTH)
    g.weight("wpe", SEQUENCE, WIDTH)
    g.constant("positions", numpy.arange(SEQUENCE, dtype=numpy.int64)[None])
    tokens = g.node("Gather", "tokens", "wte", "input_ids")
    positions = g.dropout("positions_dropped", g.node("Gather", "positions_read", "wpe", "positions"), 0.2)
    return g.dropout("embedded", g.node("Add", "added", tokens, positions), 0.1)


def attention(g: Model, x: str) -> str:
    heads = []
    for name in ("q", "k", "v"):
        projected = g.node("MatMul", f"{name}_flat", x, g.weight(f"{name}.weight", WIDTH, WIDTH))
        split = g.reshape(f"{name}_split", projected, BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        heads.append(g.node("Transpose", name, split, perm=[0, 2, 1, 3]))
    q, k, v = heads
    scores = g.node("MatMul", "scores", q, g.node("Transpose", "k_transposed", k, perm=[0, 1, 3, 2]))
    scale = g.constant("scale", numpy.array((WIDTH // HEADS) ** -0.5, numpy.float32))
    mask = numpy.triu(numpy.full((SEQUENCE, SEQUENCE), -numpy.inf, numpy.float32), 1)[None, None]
    masked = g.node("Add", "masked", g.node("Mul", "scaled", scores, scale), g.constant("causal", mask))
    probabilities = g.dropout("probabilities_dropped", g.node("Softmax", "probabilities", masked, axis=-1), 0.3)
    mixed = g.node("Transpose", "mixed", g.node("MatMul", "read", probabilities, v), perm=[0, 2, 1, 3])
    joined = g.reshape("joined", mixed, BATCH, SEQUENCE, WIDTH)
    return g.node("MatMul", "attended", joined, g.weight("o.weight", WIDTH, WIDTH))


def feed_forward(g: Model, x: str) -> str:
    flat = g.reshape("flat", x, BATCH * SEQUENCE, WIDTH)
    hidden = g.node("Gemm", "fc", flat, g.weight("fc.weight", WIDTH, HIDDEN), g.weight("fc.bias", HIDDEN))
    hidden = g.dropout("hidden", g.node("Tanh", "tanh", hidden), 0.25)
    out = g.node("Gemm", "proj", hidden, g.weight("proj.weight", HIDDEN, WIDTH), g.weight("proj.bias", WIDTH))
    return g.reshape("fed", out, BATCH, SEQUENCE, WIDTH)


def build() -> onnx.ModelProto:
    g = Model(deviation=0.2)
    g.constant("training", numpy.array(True))
    x = embedding(g)
    residual = g.node("Add", "residual", x, g.dropout("attended_dropped", attention(g, x), 0.1))
    outputs = kept, mask = ["fed_dropped.0", "fed_dropped.1"]
    g.dropout("fed_dropped", feed_forward(g, residual), 0.5, outputs)
    # What was kept counts once more.
    counted = g.node("Mul", "counted", residual, g.node("Cast", "mask", mask, to=TensorProto.FLOAT))
    final = g.node("Add", "final", g.node("Add", "summed", residual, kept), counted)
    logits = g.node("MatMul", "logits", final, g.weight("head", WIDTH, VOCABULARY))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [BATCH, SEQUENCE])
    out = helper.make_tensor_value_info(logits, TensorProto.FLOAT, [BATCH, SEQUENCE, VOCABULARY])
    graph = helper.make_graph(g.nodes, "dropout", [ids], [out], g.initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="make_dropout_model")


def main() -> None:
    model = build()
    onnx.checker.check_model(model, full_check=True)
    OUTPUT.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{OUTPUT}: {len(model.graph.node)} nodes, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
