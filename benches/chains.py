"""How long `trainyard compile` takes for chains of many nodes: twice the nodes should take twice the time.

    python benches/chains.py target/release/trainyard --nodes 50000 100000 200000 400000

Needs `onnx` and `numpy`. Each kind of chain was quadratic in some pass once.
"""

import argparse
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def step(kind, at, constants):
    """The nodes from value `v{at}` to the next, with constants of their own in `constants`."""
    read, made, name = f"v{at}", f"v{at + 1}", f"/{at}"
    if kind == "relu":
        return [helper.make_node("Relu", [read], [made], name=name)]
    if kind == "add":
        return [helper.make_node("Add", [read, "bias"], [made], name=name)]
    if kind == "multiply":
        return [helper.make_node("Mul", [read, "bias"], [made], name=name)]
    if kind == "product":
        return [helper.make_node("MatMul", [read, "square"], [made], name=name)]
    if kind == "reshape":
        return [helper.make_node("Reshape", [read, "flat" if at % 2 == 0 else "table"], [made], name=name)]
    if kind == "residual":
        return [helper.make_node("Add", [read, f"v{max(at - 1, 0)}"], [made], name=name)]
    if kind == "biases":
        constants[f"bias.{at}"] = np.full(3, 0.1, np.float32)
        return [helper.make_node("Add", [read, f"bias.{at}"], [made], name=name)]
    raise ValueError(kind)


KINDS = ["relu", "add", "multiply", "product", "reshape", "residual", "biases"]


def model(kind, count):
    constants = {
        "weight": np.full((4, 3), 0.1, np.float32),
        "bias": np.full(3, 0.1, np.float32),
        "square": np.eye(3, dtype=np.float32),
        "flat": np.array([6], np.int64),
        "table": np.array([2, 3], np.int64),
    }
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["v0"], name="first")]
    for at in range(count):
        nodes += step(kind, at, constants)
    read = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in read]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    made = helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, kind, [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def measure(binary, path, folder):
    """Seconds of wall clock and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [binary, "compile", path, "-o", folder / "out", "--force"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[50_000, 100_000])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for kind in arguments.kinds:
            for count in arguments.nodes:
                onnx.save(model(kind, count), folder / "chain.onnx")
                wall, processor = measure(arguments.binary.absolute(), folder / "chain.onnx", folder)
                each = 1e6 * processor / count
                print(f"{kind:9} {count:7}  {wall:7.1f} s  {processor:7.1f} s of CPU  {each:6.1f} µs a node", flush=True)


if __name__ == "__main__":
    main()
