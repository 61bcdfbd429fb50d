#!/usr/bin/env python3
"""Writes testdata/rows/: models whose samples depend on each other or on their number, with data and PyTorch's losses.

graph-network has the nodes of a graph as its rows, which fixed indices connect. variance is a term of VICReg, exported with a batch of 4.
merged is what OnnxSlim makes of a fresh model: its zeros and its ones are one tensor each. Weights are drawn; the losses in NAME.json
are those of PyTorch, of plain SGD. Needs torch, onnx and numpy.

usage: python testdata/scripts/make_rows_models.py
"""

import json
from pathlib import Path

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

ROWS = Path(__file__).resolve().parent.parent / "rows"
STEPS, RATE = 4, 0.2


def drawn(seed, *shape):
    return (0.5 * numpy.random.RandomState(seed).standard_normal(shape)).astype(numpy.float32)


def losses(parameters, step):
    """The losses of plain SGD."""
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    optimizer, found = torch.optim.SGD(tensors.values(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step(tensors)
        loss.backward()
        optimizer.step()
        found.append(round(loss.item(), 6))
    return found


def write(name, nodes, inputs, outputs, tensors, data, found):
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(key, kind, dims) for key, kind, dims in inputs],
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, dims) for key, dims in outputs],
        [numpy_helper.from_array(value, key) for key, value in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="pytorch")
    onnx.checker.check_model(model, full_check=True)
    (ROWS / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    numpy.savez(ROWS / f"{name}.npz", **data)
    (ROWS / f"{name}.json").write_text(json.dumps({"losses": found}) + "\n")


def graph_network():
    rows = 12
    random = numpy.random.RandomState(1)
    source, target = random.randint(rows, size=(30, 1)), random.randint(rows, size=(30, 1))
    weight, x, labels = drawn(2, 3, 4), drawn(3, rows, 4), random.randint(3, size=rows)
    nodes = [
        helper.make_node("Gemm", ["x", "l.weight"], ["h"], transB=1),
        helper.make_node("GatherND", ["h", "source"], ["sent"]),
        helper.make_node("ScatterND", ["val_5", "target", "sent"], ["received"], reduction="add"),
        helper.make_node("Add", ["h", "received"], ["logits"]),
    ]
    tensors = {"l.weight": weight, "source": source, "target": target, "val_5": numpy.zeros((rows, 3), numpy.float32)}

    def step(parameters):
        h = torch.tensor(x) @ parameters["w"].T
        sent = h[torch.tensor(source[:, 0])]
        logits = h + torch.zeros(rows, 3).index_add(0, torch.tensor(target[:, 0]), sent)
        return functional.cross_entropy(logits, torch.tensor(labels))

    inputs, outputs = [("x", TensorProto.FLOAT, [rows, 4])], [("logits", [rows, 3])]
    write("graph-network", nodes, inputs, outputs, tensors, {"x": x, "labels": labels}, losses({"w": weight}, step))


def variance():
    weight, x = drawn(4, 5, 3), drawn(5, 8, 3)
    nodes = [
        helper.make_node("Gemm", ["x", "l.weight"], ["z"], transB=1),
        helper.make_node("ReduceMean", ["z", "first"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["z", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "centred"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "first"], ["biased"], keepdims=0),
        helper.make_node("Mul", ["biased", "val_4"], ["sum"]),
        helper.make_node("Div", ["sum", "val_3"], ["var"]),
        helper.make_node("Sqrt", ["var"], ["deviation"]),
        helper.make_node("Sub", ["val_1", "deviation"], ["short"]),
        helper.make_node("Relu", ["short"], ["hinge"]),
        helper.make_node("ReduceMean", ["hinge"], ["loss"], keepdims=0),
    ]
    number = lambda value: numpy.array(value, numpy.float32)  # noqa: E731
    tensors = {"l.weight": weight, "val_4": number(4), "val_3": number(3), "val_1": number(1), "first": numpy.array([0])}

    def step(parameters):
        return functional.relu(1 - (torch.tensor(x) @ parameters["w"].T).var(0).sqrt()).mean()

    write("variance", nodes, [("x", TensorProto.FLOAT, [4, 3])], [("loss", [])], tensors, {"x": x}, losses({"w": weight}, step))


def merged():
    width = 4
    zeros, ones = numpy.zeros(width, numpy.float32), numpy.ones(width, numpy.float32)
    matrices = {f"{name}.weight": drawn(6 + i, width, width) for i, name in enumerate("abc")}
    x, labels = drawn(9, 8, width), numpy.random.RandomState(10).randint(width, size=8)

    def linear(name, x, y):
        return helper.make_node("Gemm", [x, f"{name}.weight", "a.bias"], [y], transB=1)

    nodes = [
        linear("a", "x", "h"),
        helper.make_node("LayerNormalization", ["h", "n1.weight", "a.bias"], ["n"]),
        linear("b", "n", "i"),
        helper.make_node("LayerNormalization", ["i", "n1.weight", "a.bias"], ["j"]),
        linear("c", "j", "logits"),
    ]
    own = {**matrices, **{f"{name}.bias": zeros for name in ["a", "b", "c", "n1", "n2"]}, "n1.weight": ones, "n2.weight": ones}

    def step(p):
        h = functional.linear(torch.tensor(x), p["a.weight"], p["a.bias"])
        h = functional.layer_norm(h, (width,), p["n1.weight"], p["n1.bias"])
        h = functional.linear(h, p["b.weight"], p["b.bias"])
        h = functional.layer_norm(h, (width,), p["n2.weight"], p["n2.bias"])
        return functional.cross_entropy(functional.linear(h, p["c.weight"], p["c.bias"]), torch.tensor(labels))

    tensors = {**matrices, "a.bias": zeros, "n1.weight": ones}
    inputs, outputs = [("x", TensorProto.FLOAT, [8, width])], [("logits", [8, width])]
    write("merged", nodes, inputs, outputs, tensors, {"x": x, "labels": labels}, losses(own, step))


if __name__ == "__main__":
    ROWS.mkdir(exist_ok=True)
    graph_network()
    variance()
    merged()
