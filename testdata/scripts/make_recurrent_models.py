#!/usr/bin/env python3
"""Writes testdata/recurrent.onnx, testdata/recurrent-layers.onnx and testdata/quantized.onnx. Weights are drawn; needs onnx and numpy
alone.

recurrent.onnx has, one after the other, a bidirectional LSTM with peepholes, a GRU of each form, an RNN and a Scan whose body
reads a weight of the graph around it. Every weight must be found to be a parameter and be trained.
recurrent-layers.onnx has the layers that are one operator in each direction: a bidirectional LSTM with lengths and trained first states, a
GRU of the form that cuDNN has, and two RNNs, of which one goes backwards.
quantized.onnx is a linear layer in QDQ form, which can be run and not trained.

usage: python testdata/scripts/make_recurrent_models.py
"""

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper

from graph import Graph

FOLDER = Path(__file__).resolve().parent.parent
BATCH, SEQUENCE, WIDTH, HIDDEN, VOCABULARY = 2, 4, 6, 5, 16
OPSET = 20
IR_VERSION = 10


class Model(Graph):
    """A graph with recurrent layers."""

    def layer(self, operator: str, name: str, x: str, gates: int, width: int, directions: int = 1, **attributes) -> str:
        """A recurrent layer over `[sequence, batch, width]`, its directions side by side."""
        inputs = [
            x,
            self.weight(f"{name}.w", directions, gates * HIDDEN, width),
            self.weight(f"{name}.r", directions, gates * HIDDEN, HIDDEN),
            self.weight(f"{name}.b", directions, 2 * gates * HIDDEN),
        ]
        if operator == "LSTM":
            inputs += ["", "", "", self.weight(f"{name}.p", directions, 3 * HIDDEN)]
        if directions == 2:
            attributes["direction"] = "bidirectional"
        y = self.node(operator, name, *inputs, outputs=[f"{name}.y"], hidden_size=HIDDEN, **attributes)
        together = self.node("Transpose", f"{name}.moved", y, perm=[0, 2, 1, 3])
        shape = self.constant(f"{name}.shape", numpy.array([0, 0, directions * HIDDEN], numpy.int64))
        return self.node("Reshape", f"{name}.joined", together, shape)

    def plain(self, operator: str, name: str, x: str, gates: int, width: int, states: int = 0, lengths: str = "", **attributes) -> str:
        """A layer without peepholes over `[sequence, batch, width]`. It begins with trained states, the same for all entries."""
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        inputs = [
            x,
            self.weight(f"{name}.w", directions, gates * HIDDEN, width),
            self.weight(f"{name}.r", directions, gates * HIDDEN, HIDDEN),
            self.weight(f"{name}.b", directions, 2 * gates * HIDDEN),
            lengths,
        ]
        for state in range(states):
            self.weight(f"{name}.start{state}", directions, 1, HIDDEN)
            shape = self.constant(f"{name}.expanded{state}", numpy.array([directions, BATCH, HIDDEN], numpy.int64))
            inputs.append(self.node("Expand", f"{name}.first{state}", f"{name}.start{state}", shape))
        y = self.node(operator, name, *inputs, outputs=[f"{name}.y"], hidden_size=HIDDEN, **attributes)
        together = self.node("Transpose", f"{name}.moved", y, perm=[0, 2, 1, 3])
        shape = self.constant(f"{name}.shape", numpy.array([0, 0, directions * HIDDEN], numpy.int64))
        return self.node("Reshape", f"{name}.joined", together, shape)

    def scan(self, x: str) -> str:
        """A recurrence written out: the state times a weight of the graph around, plus the input."""
        self.weight("scan.r", HIDDEN, HIDDEN)
        value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, HIDDEN])
        body = helper.make_graph(
            [
                helper.make_node("MatMul", ["state", "scan.r"], ["turned"]),
                helper.make_node("Add", ["turned", "row"], ["sum"]),
                helper.make_node("Tanh", ["sum"], ["next"]),
                helper.make_node("Identity", ["next"], ["out"]),
            ],
            "body", [value("state"), value("row")], [value("next"), value("out")],
        )
        start = self.constant("scan.start", numpy.zeros((BATCH, HIDDEN), numpy.float32))
        return self.node("Scan", "scan", start, x, outputs=["scan.last", "scan.y"], body=body, num_scan_inputs=1)


def save(graph: Model, name: str, inputs: list, outputs: list) -> None:
    proto = helper.make_graph(graph.nodes, name, inputs, outputs, graph.initializers)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, FOLDER / f"{name}.onnx")


def recurrent() -> None:
    g = Model(deviation=0.3)
    g.weight("embedding", VOCABULARY, WIDTH)
    embedded = g.node("Gather", "embedded", "embedding", "input_ids")
    x = g.node("Transpose", "time_first", embedded, perm=[1, 0, 2])
    x = g.layer("LSTM", "lstm", x, 4, WIDTH, directions=2)
    x = g.layer("GRU", "gru", x, 3, 2 * HIDDEN)
    x = g.layer("GRU", "gru_after", x, 3, HIDDEN, linear_before_reset=1)
    x = g.layer("RNN", "rnn", x, 1, HIDDEN, direction="reverse")
    g.scan(x)
    x = g.node("Transpose", "batch_first", "scan.y", perm=[1, 0, 2])
    g.weight("head", HIDDEN, VOCABULARY)
    g.node("MatMul", "logits", x, "head")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [BATCH, SEQUENCE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [BATCH, SEQUENCE, VOCABULARY])
    save(g, "recurrent", [ids], [logits])


def layers() -> None:
    g = Model(deviation=0.3)
    g.weight("embedding", VOCABULARY, WIDTH)
    embedded = g.node("Gather", "embedded", "embedding", "input_ids")
    x = g.node("Transpose", "time_first", embedded, perm=[1, 0, 2])
    x = g.plain("LSTM", "lstm", x, 4, WIDTH, states=2, lengths="lengths", direction="bidirectional")
    x = g.plain("GRU", "gru", x, 3, 2 * HIDDEN, states=1, linear_before_reset=1)
    x = g.plain("RNN", "rnn", x, 1, HIDDEN, direction="reverse")
    x = g.plain("RNN", "rnn_relu", x, 1, HIDDEN, activations=["Relu"])
    x = g.node("Transpose", "batch_first", x, perm=[1, 0, 2])
    g.weight("head", HIDDEN, VOCABULARY)
    g.node("MatMul", "logits", x, "head")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [BATCH, SEQUENCE])
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, [BATCH])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [BATCH, SEQUENCE, VOCABULARY])
    save(g, "recurrent-layers", [ids, lengths], [logits])


def quantized() -> None:
    g = Model(deviation=0.3)
    g.constant("scale", numpy.array(0.05, numpy.float32))
    g.constant("zero", numpy.array(3, numpy.int8))
    g.constant("weight", numpy.random.RandomState(0).randint(-100, 100, (WIDTH, HIDDEN)).astype(numpy.int8))
    for i in range(2):
        g.node("QuantizeLinear", f"quantize{i}", "x" if i == 0 else "dequantize0", "scale", "zero")
        g.node("DequantizeLinear", f"dequantize{i}", f"quantize{i}", "scale", "zero")
    g.node("DequantizeLinear", "dequantized_weight", "weight", "scale", "zero")
    g.node("MatMul", "y", "dequantize1", "dequantized_weight")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, HIDDEN])
    save(g, "quantized", [x], [y])


if __name__ == "__main__":
    recurrent()
    layers()
    quantized()
