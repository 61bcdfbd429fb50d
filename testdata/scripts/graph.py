"""What the scripts that write a model node by node share: nodes and initializers, as they are added."""

import numpy
import onnx
from onnx import helper, numpy_helper


class Graph:
    """Weights are normal with a standard deviation; RandomState's stream is frozen, so a file never changes."""

    def __init__(self, deviation: float) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.deviation = deviation

    def weight(self, name: str, *shape: int) -> str:
        draws = numpy.random.RandomState(len(self.initializers)).standard_normal(shape)
        return self.constant(name, (self.deviation * draws).astype(numpy.float32))

    def constant(self, name: str, array: numpy.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, name: str, *inputs: str, outputs: list[str] | None = None, **attributes) -> str:
        """Adds a node; its first output is called as it is, unless `outputs` names them all."""
        results = outputs or [name]
        self.nodes.append(helper.make_node(operator, list(inputs), results, name=name, **attributes))
        return results[0]
