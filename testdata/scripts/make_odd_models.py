#!/usr/bin/env python3
"""Writes testdata/odd/: small ONNX files that are broken, hostile or unusual, for tests of the import.

The valid ones come with a `.io.npz` (`input.NAME`, `logits`) that onnx's own reference evaluator computed.

usage: python testdata/scripts/make_odd_models.py
"""

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

TESTDATA = Path(__file__).resolve().parent.parent
ODD = TESTDATA / "odd"
OPSET = 20
IR_VERSION = 10


def weights(seed: int, *shape: int) -> numpy.ndarray:
    """f32 normal with deviation 0.1; RandomState's stream is frozen, so the files never change."""
    return (0.1 * numpy.random.RandomState(seed).standard_normal(shape)).astype(numpy.float32)


def float_value(name: str, shape: list | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def make_model(nodes, inputs, outputs, initializers=(), functions=(), domains=(), opset=OPSET) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "odd", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="make_odd_models", functions=list(functions)
    )


def write(name: str, model: onnx.ModelProto) -> None:
    (ODD / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


def write_broken(name: str, model: onnx.ModelProto) -> None:
    """For a file that must be refused: onnx's checker or its shape inference has to refuse it too."""
    write(name, model)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return
    raise AssertionError(f"{name}.onnx was meant to be invalid, but onnx's checker accepts it")


def write_valid(name: str, model: onnx.ModelProto, inputs: dict[str, numpy.ndarray]) -> None:
    write(name, model)
    path = str(ODD / f"{name}.onnx")
    onnx.checker.check_model(path, full_check=True)
    logits = ReferenceEvaluator(path).run(None, inputs)[0]
    arrays = {f"input.{key}": value for key, value in inputs.items()}
    numpy.savez(ODD / f"{name}.io.npz", logits=logits, **arrays)


def external_tensor(name: str, dims: list[int], location: str, offset: int, length: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def make_truncated() -> None:
    """A download that stopped half way, in the middle of a weight."""
    whole = (TESTDATA / "gpt2-fresh.onnx").read_bytes()
    (ODD / "truncated.onnx").write_bytes(whole[: len(whole) // 2])


def make_cyclic() -> None:
    """Two nodes that feed each other."""
    nodes = [
        helper.make_node("Add", ["x", "product"], ["sum"], name="/loop/Add"),
        helper.make_node("Mul", ["sum", "x"], ["product"], name="/loop/Mul"),
    ]
    write_broken("cyclic", make_model(nodes, [float_value("x", [2, 4])], [float_value("product", [2, 4])]))


def make_wrong_type() -> None:
    """An Add of float and int64."""
    counts = helper.make_tensor_value_info("counts", TensorProto.INT64, [2, 4])
    node = helper.make_node("Add", ["x", "counts"], ["sum"], name="/Add")
    write_broken("wrong-type", make_model([node], [float_value("x", [2, 4]), counts], [float_value("sum", [2, 4])]))


def linear_with(weight: onnx.TensorProto) -> onnx.ModelProto:
    """`logits[2, 8] = x[2, 4] · weight[4, 8]`."""
    node = helper.make_node("MatMul", ["x", weight.name], ["logits"], name="/linear/MatMul")
    return make_model([node], [float_value("x", [2, 4])], [float_value("logits", [2, 8])], [weight])


def make_escape_external() -> None:
    """A weight whose bytes are said to lie outside the model's folder."""
    write("escape-external", linear_with(external_tensor("weight", [4, 8], "../../etc/passwd", 0, 128)))


def make_huge_dims() -> None:
    """A weight of 2^66 elements, which overflows 64 bits, with the bytes of 4."""
    dims = [2**32, 2**32, 4]
    weight = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(16))
    node = helper.make_node("MatMul", ["x", "weight"], ["logits"], name="/linear/MatMul")
    inputs, outputs = [float_value("x", [2, 2**32])], [float_value("logits", [2**32, 2, 4])]
    write("huge-dims", make_model([node], inputs, outputs, [weight]))


def make_missing_dims() -> None:
    """A graph input without a shape."""
    weight = numpy_helper.from_array(weights(0, 4, 8), "weight")
    model = linear_with(weight)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    write("missing-dims", model)


def make_undefined_input() -> None:
    """A node that reads a value nothing defines."""
    node = helper.make_node("Add", ["x", "nowhere"], ["sum"], name="/Add")
    write_broken("undefined-input", make_model([node], [float_value("x", [2, 4])], [float_value("sum", [2, 4])]))


def make_duplicate_name() -> None:
    """Two nodes that define the same value."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="/first/Relu"),
        helper.make_node("Tanh", ["x"], ["y"], name="/second/Tanh"),
    ]
    write_broken("duplicate-name", make_model(nodes, [float_value("x", [2, 4])], [float_value("y", [2, 4])]))


def make_unknown_op() -> None:
    """An operator of a vendor's domain, and one whose output shape depends on the data."""
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["frobnicated"], name="/custom/Frobnicate", domain="com.example"),
        helper.make_node("NonZero", ["frobnicated"], ["indices"], name="/NonZero"),
    ]
    indices = helper.make_tensor_value_info("indices", TensorProto.INT64, [2, None])
    write("unknown-op", make_model(nodes, [float_value("x", [2, 4])], [indices], domains=["com.example"]))


def make_external_ok() -> None:
    """Weights in a file beside the model, each at an offset, with bytes between them that belong to neither."""
    first, second = weights(1, 4, 16), weights(2, 16, 8)
    content = bytearray(b"\xff" * 1024)
    content[64 : 64 + first.nbytes] = first.tobytes()
    content[512 : 512 + second.nbytes] = second.tobytes()
    (ODD / "external-ok.bin").write_bytes(content)
    initializers = [
        external_tensor("first.weight", [4, 16], "external-ok.bin", 64, first.nbytes),
        external_tensor("second.weight", [16, 8], "external-ok.bin", 512, second.nbytes),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "first.weight"], ["hidden"], name="/first/MatMul"),
        helper.make_node("Relu", ["hidden"], ["activated"], name="/Relu"),
        helper.make_node("MatMul", ["activated", "second.weight"], ["logits"], name="/second/MatMul"),
    ]
    model = make_model(nodes, [float_value("x", [2, 4])], [float_value("logits", [2, 8])], initializers)
    write_valid("external-ok", model, {"x": weights(3, 2, 4)})


def make_external_short() -> None:
    """A weight of 128 bytes in a file that has 100."""
    (ODD / "external-short.bin").write_bytes(weights(0, 4, 8).tobytes()[:100])
    write("external-short", linear_with(external_tensor("weight", [4, 8], "external-short.bin", 0, 128)))


def make_function() -> None:
    """A function of the model's own, with an attribute, called twice; the values inside it have the same names in both calls."""
    gemm = helper.make_node("Gemm", ["input", "weight", "bias"], ["product"], name="Gemm")
    gemm.attribute.add(name="alpha", ref_attr_name="scale", type=onnx.AttributeProto.FLOAT)
    relu = helper.make_node("Relu", ["product"], ["output"], name="Relu")
    opsets = [helper.make_opsetid("", OPSET)]
    signature = (["input", "weight", "bias"], ["output"])
    dense = helper.make_function("local", "Dense", *signature, [gemm, relu], opsets, attributes=["scale"])
    arrays = {
        "first.weight": weights(4, 4, 16),
        "first.bias": weights(5, 16),
        "second.weight": weights(6, 16, 8),
        "second.bias": weights(7, 8),
    }
    nodes = [
        helper.make_node("Dense", ["x", "first.weight", "first.bias"], ["hidden"], "/first", domain="local", scale=1.0),
        helper.make_node("Dense", ["hidden", "second.weight", "second.bias"], ["logits"], "/second", domain="local", scale=0.5),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    inputs, outputs = [float_value("x", [2, 4])], [float_value("logits", [2, 8])]
    model = make_model(nodes, inputs, outputs, initializers, functions=[dense], domains=["local"])
    write_valid("function", model, {"x": weights(8, 2, 4)})


def make_constants_only() -> None:
    """A small MLP with every weight in a Constant node, no initializer, and a batch dim named N; opset 13."""
    def constant(name: str, array: numpy.ndarray) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], name=f"/Constant/{name}", value=numpy_helper.from_array(array))

    second_bias = [float(value) for value in weights(12, 4)]
    nodes = [
        constant("fc1.weight", weights(9, 8, 16)),
        constant("fc1.bias", weights(10, 16)),
        constant("fc2.weight", weights(11, 16, 4)),
        helper.make_node("Constant", [], ["fc2.bias"], name="/Constant/fc2.bias", value_floats=second_bias),
        helper.make_node("MatMul", ["x", "fc1.weight"], ["fc1.product"], name="/fc1/MatMul"),
        helper.make_node("Add", ["fc1.product", "fc1.bias"], ["fc1.sum"], name="/fc1/Add"),
        helper.make_node("Relu", ["fc1.sum"], ["hidden"], name="/Relu"),
        helper.make_node("MatMul", ["hidden", "fc2.weight"], ["fc2.product"], name="/fc2/MatMul"),
        helper.make_node("Add", ["fc2.product", "fc2.bias"], ["logits"], name="/fc2/Add"),
    ]
    model = make_model(nodes, [float_value("x", ["N", 8])], [float_value("logits", ["N", 4])], opset=13)
    write_valid("constants-only", model, {"x": weights(13, 3, 8)})


def make_tied_legacy() -> None:
    """A head that is the embedding's transpose, but that the exporter folded into an initializer of its own."""
    embedding = weights(14, 32, 8)
    arrays = {
        "embedding.weight": embedding,
        "onnx::MatMul_12": weights(15, 8, 8),
        "linear.bias": weights(16, 8),
        "onnx::MatMul_15": numpy.ascontiguousarray(embedding.T),
    }
    nodes = [
        helper.make_node("Gather", ["embedding.weight", "input_ids"], ["/embedding/Gather_output_0"], "/embedding/Gather"),
        helper.make_node("MatMul", ["/embedding/Gather_output_0", "onnx::MatMul_12"], ["/linear/MatMul_output_0"], "/linear/MatMul"),
        helper.make_node("Add", ["/linear/MatMul_output_0", "linear.bias"], ["/linear/Add_output_0"], "/linear/Add"),
        helper.make_node("MatMul", ["/linear/Add_output_0", "onnx::MatMul_15"], ["logits"], "/lm_head/MatMul"),
    ]
    input_ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [2, 6])
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = make_model(nodes, [input_ids], [float_value("logits", [2, 6, 32])], initializers)
    tokens = numpy.random.RandomState(17).randint(0, 32, (2, 6)).astype(numpy.int64)
    write_valid("tied-legacy", model, {"input_ids": tokens})


def make_batch_second() -> None:
    """Samples that do not stand first: dim 0 of the input counts the steps of a sequence."""
    weight = numpy_helper.from_array(weights(18, 4, 7), "weight")
    node = helper.make_node("MatMul", ["x", "weight"], ["logits"], name="/MatMul")
    inputs, outputs = [float_value("x", ["seq", "batch", 4])], [float_value("logits", ["seq", "batch", 7])]
    write("batch-second", make_model([node], inputs, outputs, [weight]))


def make_pooled() -> None:
    """An image of unbound sizes, which must be 4 or more: it is pooled twice."""
    weight = numpy_helper.from_array(weights(19, 3, 5), "weight")
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], name="/MaxPool_0", **windows),
        helper.make_node("MaxPool", ["half"], ["quarter"], name="/MaxPool_1", **windows),
        helper.make_node("ReduceMax", ["quarter", "spatial"], ["largest"], name="/ReduceMax", keepdims=0),
        helper.make_node("MatMul", ["largest", "weight"], ["logits"], name="/MatMul"),
    ]
    spatial = numpy_helper.from_array(numpy.array([2, 3], dtype=numpy.int64), "spatial")
    inputs, outputs = [float_value("x", ["batch", 3, "height", "width"])], [float_value("logits", ["batch", 5])]
    write("pooled", make_model(nodes, inputs, outputs, [weight, spatial]))


def make_no_parameters() -> None:
    """A batch without a size, and nothing to train whatever the size is."""
    node = helper.make_node("Softmax", ["x"], ["y"])
    write("no-parameters", make_model([node], [float_value("x", ["n", 3])], [float_value("y", ["n", 3])]))


def make_two_batches() -> None:
    """Inputs whose first dims are no common batch."""
    nodes = [helper.make_node("MatMul", ["m", "w"], ["a"]), helper.make_node("MatMul", ["x", "a"], ["y"])]
    weight = numpy_helper.from_array(weights(14, 3, 4), "w")
    inputs = [float_value("m", [5, 3]), float_value("x", [2, 5])]
    write("two-batches", make_model(nodes, inputs, [float_value("y", [2, 4])], [weight]))


def make_wide_norm() -> None:
    """A norm whose scale and bias have a dim that is not normalised."""
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"])
    tensors = [numpy_helper.from_array(weights(15 + i, 3, 4), name) for i, name in enumerate("sb")]
    write("wide-norm", make_model([node], [float_value("x", [2, 3, 4])], [float_value("y", [2, 3, 4])], tensors))


def main() -> None:
    ODD.mkdir(exist_ok=True)
    make_truncated()
    make_cyclic()
    make_wrong_type()
    make_escape_external()
    make_huge_dims()
    make_missing_dims()
    make_undefined_input()
    make_duplicate_name()
    make_unknown_op()
    make_external_ok()
    make_external_short()
    make_function()
    make_constants_only()
    make_tied_legacy()
    make_batch_second()
    make_pooled()
    make_no_parameters()
    make_two_batches()
    make_wide_norm()


if __name__ == "__main__":
    main()
