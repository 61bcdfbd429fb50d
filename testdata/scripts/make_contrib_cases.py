"""Writes small models with inputs and the outputs that ONNX Runtime's CPU kernels give: `make_contrib_cases.py OUT.tar.gz`.

Operators of `com.microsoft`, which have no tests of ONNX's own, and what ONNX's tests leave out of recurrent layers and of
control flow: clipping, activations, lengths, both directions, loops that yield values. The layout is that of
`pack_node_tests.py`. Numbers are drawn from a seed that is the case's name; needs onnx and onnxruntime.
"""

import gzip
import io
import math
import sys
import tarfile
import zlib

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"
CASES = {}


def draw(name, *shapes, scale=1.0):
    """Arrays of f32 from a seed that is the name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return [(rng.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]


def case(name, nodes, inputs, outputs, constants=None, opset=17, expected=None):
    """One model: nodes, its inputs and constants by name, and the names of its outputs."""
    value = lambda key, x: helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    tensors = [numpy_helper.from_array(x, key) for key, x in (constants or {}).items()]
    graph = helper.make_graph(
        nodes if isinstance(nodes, list) else [nodes],
        name,
        [value(key, x) for key, x in inputs.items()],
        [helper.make_value_info(key, helper.make_tensor_type_proto(TensorProto.UNDEFINED, None)) for key in outputs],
        tensors,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if expected is None:
        # Types of outputs are ONNX Runtime's to infer.
        for output in model.graph.output:
            output.ClearField("type")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(outputs, inputs)
    del model.graph.output[:]
    model.graph.output.extend(value(key, x) for key, x in zip(outputs, expected))
    assert name not in CASES, name
    CASES[name] = (model, list(inputs.values()), expected)


def op(kind, inputs, outputs, domain=MS, **attributes):
    return helper.make_node(kind, inputs, outputs, name=kind.lower(), domain=domain, **attributes)


def activations():
    for kind in ["Gelu", "QuickGelu", "FastGelu"]:
        (x,) = draw(kind, (2, 3, 8), scale=2.0)
        case(kind.lower(), op(kind, ["x"], ["y"]), {"x": x}, ["y"])
    (x,) = draw("alpha", (2, 5))
    case("quick_gelu_alpha", op("QuickGelu", ["x"], ["y"], alpha=0.7), {"x": x}, ["y"])
    for kind in ["BiasGelu", "FastGelu"]:
        x, bias = draw(kind + "bias", (2, 3, 8), (8,))
        case(f"{kind.lower()}_with_bias", op(kind, ["x", "b"], ["y"]), {"x": x}, ["y"], {"b": bias})
    x, bias = draw("split", (2, 3, 8), (8,))
    left, right = np.split((x + bias).astype(np.float64), 2, -1)
    gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
    # ONNX Runtime has no CPU kernel of it.
    expected = [(left * gelu).astype(np.float32)]
    case("bias_split_gelu", op("BiasSplitGelu", ["x", "b"], ["y"]), {"x": x}, ["y"], {"b": bias}, expected=expected)


def norms():
    x, skip, gamma, beta, bias = draw("norms", (2, 3, 8), (2, 3, 8), (8,), (8,), (8,))
    given = {"x": x, "s": skip}
    case("skip_layer_norm", op("SkipLayerNormalization", ["x", "s", "g", "b"], ["y"]), given, ["y"], {"g": gamma, "b": beta})
    case(
        "skip_layer_norm_bias_sum",
        op("SkipLayerNormalization", ["x", "s", "g", "", "c"], ["y", "", "", "sum"], epsilon=0.01),
        given, ["y", "sum"], {"g": gamma, "c": bias},
    )
    case(
        "skip_layer_norm_broadcast",
        op("SkipLayerNormalization", ["x", "s", "g", "b"], ["y"]),
        {"x": x, "s": skip[:1]}, ["y"], {"g": gamma, "b": beta},
    )
    case(
        "skip_rms_norm",
        op("SkipSimplifiedLayerNormalization", ["x", "s", "g", "c"], ["y", "", "", "sum"], epsilon=1e-5),
        given, ["y", "sum"], {"g": gamma, "c": bias},
    )
    case(
        "rms_norm", op("SimplifiedLayerNormalization", ["x", "g"], ["y", "r"], domain="", axis=-1, epsilon=1e-5),
        {"x": x}, ["y", "r"], {"g": gamma}, opset=14,
    )
    case(
        "layer_norm_before_opset_17",
        op("LayerNormalization", ["x", "g", "b"], ["y", "m", "r"], domain="", axis=-1, epsilon=1e-5),
        {"x": x}, ["y", "m", "r"], {"g": gamma, "b": beta}, opset=14,
    )


def embeddings():
    words, places, segments, gamma, beta = draw("embeddings", (11, 8), (6, 8), (2, 8), (8,), (8,))
    ids = np.array([[1, 3, 10, 0], [2, 2, 5, 7]], np.int32)
    segment = np.array([[0, 0, 1, 1], [1, 0, 1, 0]], np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    position = np.array([[3, 2, 1, 0], [0, 1, 5, 4]], np.int32)
    tables = {"w": words, "p": places, "t": segments, "g": gamma, "b": beta}
    kind = "EmbedLayerNormalization"
    case("embed_layer_norm", op(kind, ["i", "s", "w", "p", "t", "g", "b"], ["y", "m"]),
         {"i": ids, "s": segment}, ["y", "m"], tables)
    case("embed_layer_norm_mask", op(kind, ["i", "s", "w", "p", "t", "g", "b", "k"], ["y", "m", "e"], epsilon=1e-5),
         {"i": ids, "s": segment, "k": mask}, ["y", "m", "e"], tables)
    case("embed_layer_norm_positions", op(kind, ["i", "", "w", "p", "", "g", "b", "", "o"], ["y", "m"]),
         {"i": ids, "o": position}, ["y", "m"], {key: tables[key] for key in "wpgb"})


def multiplications():
    x, w, c = draw("products", (3, 4), (4, 5), (5,))
    case("fused_gemm", op("FusedGemm", ["x", "w", "c"], ["y"], activation="Relu", alpha=0.5, beta=2.0),
         {"x": x}, ["y"], {"w": w, "c": c})
    case("fused_gemm_leaky", op("FusedGemm", ["x", "w"], ["y"], activation="LeakyRelu", activation_alpha=0.2, transB=1),
         {"x": x}, ["y"], {"w": w.T.copy()})
    a, b = draw("matmul", (2, 3, 4), (2, 4, 5))
    case("fused_matmul", op("FusedMatMul", ["a", "b"], ["y"], alpha=0.25), {"a": a, "b": b}, ["y"])
    case("fused_matmul_transposed", op("FusedMatMul", ["a", "b"], ["y"], transA=1, transB=1),
         {"a": a.swapaxes(1, 2).copy(), "b": b.swapaxes(1, 2).copy()}, ["y"])
    case("fused_matmul_batch_transposed",
         op("FusedMatMul", ["a", "b"], ["y"], transBatchA=1, transBatchB=1, transB=1),
         {"a": a.transpose(1, 0, 2).copy(), "b": b.transpose(2, 0, 1).copy()}, ["y"])
    x, w, b, z = draw("conv", (1, 2, 5, 5), (3, 2, 3, 3), (3,), (1, 3, 3, 3))
    case("fused_conv", op("FusedConv", ["x", "w", "b"], ["y"], activation="Relu"), {"x": x}, ["y"], {"w": w, "b": b})
    case("fused_conv_sum", op("FusedConv", ["x", "w", "b", "z"], ["y"], activation="Relu"), {"x": x, "z": z}, ["y"],
         {"w": w, "b": b})
    case("fused_conv_clip",
         op("FusedConv", ["x", "w", "b"], ["y"], activation="Clip", activation_params=[-0.5, 1.5], pads=[1, 1, 1, 1], strides=[2, 2]),
         {"x": x}, ["y"], {"w": w, "b": b})
    case("fused_conv_hard_sigmoid",
         op("FusedConv", ["x", "w"], ["y"], activation="HardSigmoid", activation_params=[0.3, 0.4]), {"x": x}, ["y"], {"w": w})


def attentions():
    q, k, v, bias = draw("attention", (2, 3, 8), (2, 5, 8), (2, 5, 8), (24,))
    kind = "MultiHeadAttention"
    case("multi_head_attention", op(kind, ["q", "k", "v"], ["y"], num_heads=2), {"q": q, "k": k, "v": v}, ["y"])
    case("multi_head_attention_bias", op(kind, ["q", "k", "v", "b"], ["y"], num_heads=2, scale=0.3),
         {"q": q, "k": k, "v": v}, ["y"], {"b": bias})
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
    case("multi_head_attention_mask", op(kind, ["q", "k", "v", "", "m"], ["y"], num_heads=2),
         {"q": q, "k": k, "v": v, "m": mask}, ["y"])
    hidden = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 1]], np.int32)
    case("multi_head_attention_all_masked", op(kind, ["q", "k", "v", "", "m"], ["y"], num_heads=2, mask_filter_value=-5.0),
         {"q": q, "k": k, "v": v, "m": hidden}, ["y"])
    (added,) = draw("added", (1, 2, 3, 5))
    case("multi_head_attention_added", op(kind, ["q", "k", "v", "", "m", "a"], ["y"], num_heads=2),
         {"q": q, "k": k, "v": v, "m": mask, "a": added}, ["y"])
    same = {"q": k, "k": v, "v": v}
    case("multi_head_attention_causal", op(kind, ["q", "k", "v"], ["y"], num_heads=4, unidirectional=1), same, ["y"])
    past_k, past_v = draw("past", (2, 2, 2, 4), (2, 2, 2, 4))
    case("multi_head_attention_past",
         op(kind, ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "nk", "nv"], num_heads=2, unidirectional=1),
         {"q": k, "k": k, "v": v, "pk": past_k, "pv": past_v}, ["y", "nk", "nv"])
    self_attentions()


def self_attentions():
    x, w, b = draw("self", (2, 4, 6), (6, 24), (24,), scale=0.7)
    case("attention", op("Attention", ["x", "w", "b"], ["y"], num_heads=2), {"x": x}, ["y"], {"w": w, "b": b})
    case("attention_causal", op("Attention", ["x", "w", "b"], ["y"], num_heads=2, unidirectional=1), {"x": x}, ["y"],
         {"w": w, "b": b})
    masks = {
        "lengths": np.array([3, 4], np.int32),
        "ends_and_starts": np.array([4, 3, 1, 0], np.int32),
        "mask": np.array([[1, 1, 0, 1], [0, 1, 1, 1]], np.int32),
        "mask_of_queries": np.array(np.random.default_rng(5).integers(0, 2, (2, 4, 4)), np.int32),
    }
    for name, mask in masks.items():
        for causal in (0, 1):
            case(f"attention_{name}{'_causal' if causal else ''}",
                 op("Attention", ["x", "w", "b", "m"], ["y"], num_heads=2, unidirectional=causal),
                 {"x": x, "m": mask}, ["y"], {"w": w, "b": b})
    x, w, b = draw("widths", (2, 4, 6), (6, 28), (28,), scale=0.7)
    case("attention_widths", op("Attention", ["x", "w", "b"], ["y"], num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.4),
         {"x": x}, ["y"], {"w": w, "b": b})


def group_attentions():
    q, k, v = draw("groups", (2, 5, 64), (2, 5, 32), (2, 5, 32))
    kind, inputs = "GroupQueryAttention", {"q": q, "k": k, "v": v}
    last, total = np.array([4, 4], np.int32), np.array(5, np.int32)
    constants = {"l": last, "t": total}
    angles = np.outer(np.arange(8), 10.0 ** (-np.arange(8) / 2)).astype(np.float32)
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    plain = ["q", "k", "v", "", "", "l", "t"]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    case("group_attention", op(kind, plain, ["y", "nk", "nv"], **heads), inputs, ["y", "nk", "nv"], constants)
    for interleaved in (0, 1):
        case(f"group_attention_rotary{interleaved}",
             op(kind, plain + ["cos", "sin"], ["y", "nk", "nv"], do_rotary=1, rotary_interleaved=interleaved, **heads),
             inputs, ["y", "nk", "nv"], constants | tables)
    case("group_attention_window", op(kind, plain, ["y", "nk", "nv"], local_window_size=2, **heads), inputs, ["y"], constants)
    case("group_attention_softcap", op(kind, plain, ["y", "nk", "nv"], softcap=1.5, scale=0.5, **heads), inputs, ["y"], constants)
    packed = {"q": np.concatenate([q, k, v], -1)}
    case("group_attention_packed",
         op(kind, ["q", "", "", "", "", "l", "t", "cos", "sin"], ["y", "nk", "nv"], do_rotary=1, **heads),
         packed, ["y", "nk", "nv"], constants | tables)
    (added,) = draw("group bias", (1, 4, 5, 5))
    case("group_attention_added",
         op(kind, plain + ["", "", "", "a"], ["y", "nk", "nv"], **heads), inputs | {"a": added}, ["y"], constants)


def rotary():
    angles = np.outer(np.arange(10), 10.0 ** -np.arange(4)).astype(np.float32)
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    flat, heads = draw("rotary", (2, 3, 16), (2, 2, 3, 8))
    places = np.array([[0, 4, 2], [1, 2, 3]], np.int64)
    inputs = ["x", "p", "cos", "sin"]
    case("rotary_places", op("RotaryEmbedding", inputs, ["y"]), {"x": flat, "p": places}, ["y"], tables)
    case("rotary_first_place", op("RotaryEmbedding", inputs, ["y"], interleaved=1),
         {"x": flat, "p": np.array([3], np.int64)}, ["y"], tables)
    case("rotary_four_dims", op("RotaryEmbedding", inputs, ["y"]), {"x": heads, "p": places}, ["y"], tables)
    part = {"cos": tables["cos"][:, :2].copy(), "sin": tables["sin"][:, :2].copy()}
    case("rotary_part", op("RotaryEmbedding", inputs, ["y"], num_heads=2, rotary_embedding_dim=4),
         {"x": flat, "p": places}, ["y"], part)


def recurrent():
    steps, batch, features, hidden = 4, 3, 3, 5
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}
    lengths = np.array([2, 4, 1], np.int32)
    for kind, gate in gates.items():
        default = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[kind]
        other = {"RNN": ["Elu"], "GRU": ["HardSigmoid", "LeakyRelu"], "LSTM": ["HardSigmoid", "Softsign", "ScaledTanh"]}[kind]
        alphas = {"RNN": [0.4], "GRU": [0.3, 0.05], "LSTM": [0.3, 1.2]}[kind]
        betas = {"RNN": [], "GRU": [0.4], "LSTM": [0.4, 0.7]}[kind]
        variants = {
            "plain": dict(),
            "both": dict(directions=2),
            "reverse_lengths": dict(direction="reverse", lengths=True),
            "both_lengths_state": dict(directions=2, lengths=True, state=True),
            "clip": dict(clip=0.25, state=True),
            "activations": dict(activations=other, activation_alpha=alphas, activation_beta=betas),
            "both_activations": dict(directions=2, activations=default + other, activation_alpha=alphas, activation_beta=betas),
        }
        if kind == "GRU":
            variants["after_reset"] = dict(linear_before_reset=1, state=True)
            variants["both_after_reset"] = dict(linear_before_reset=1, directions=2, lengths=True)
        if kind == "LSTM":
            variants["input_forget"] = dict(input_forget=1, state=True)
            variants["both_peepholes"] = dict(directions=2, state=True, peepholes=True, clip=0.4)
        for name, options in variants.items():
            recurrent_case(f"{kind.lower()}_{name}", kind, gate, (steps, batch, features, hidden), lengths, dict(options))


def recurrent_case(name, kind, gate, sizes, lengths, options):
    steps, batch, features, hidden = sizes
    directions = options.pop("directions", 1)
    x, w, r, b, h, c, p = draw(
        name, (steps, batch, features), (directions, gate * hidden, features), (directions, gate * hidden, hidden),
        (directions, 2 * gate * hidden), (directions, batch, hidden), (directions, batch, hidden), (directions, 3 * hidden), scale=0.6,
    )
    given, constants = {"x": x}, {"w": w, "r": r, "b": b}
    names = ["x", "w", "r", "b", "", "", "", ""]
    if options.pop("lengths", False):
        given["n"], names[4] = lengths, "n"
    if options.pop("state", False):
        given["h"], names[5] = h, "h"
        if kind == "LSTM":
            given["c"], names[6] = c, "c"
    if options.pop("peepholes", False):
        constants["p"], names[7] = p, "p"
    while not names[-1]:
        names.pop()
    options = {key: value for key, value in options.items() if value != []}
    if directions == 2:
        options["direction"] = "bidirectional"
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    case(name, op(kind, names, outputs, domain="", hidden_size=hidden, **options), given, outputs, constants, opset=14)


def control_flow():
    value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    f32, i64, boolean = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    plain = lambda kind, inputs, outputs, **attributes: op(kind, inputs, outputs, domain="", **attributes)
    x, w = draw("loops", (2, 3), (3, 3), scale=0.5)
    # A loop that reads a weight of the graph around it, counts, and stops by its own condition.
    body = helper.make_graph(
        [plain("MatMul", ["state", "w"], ["product"]), plain("Tanh", ["product"], ["next"]),
         plain("Less", ["i", "bound"], ["more"]), plain("Identity", ["next"], ["out"]), plain("Mul", ["i", "i"], ["square"])],
        "body", [value("i", i64, []), value("go", boolean, []), value("state", f32, [2, 3])],
        [value("more", boolean, []), value("next", f32, [2, 3]), value("out", f32, [2, 3]), value("square", i64, [])],
    )
    constants = {"w": w, "count": np.array(9, np.int64), "yes": np.array(True), "bound": np.array(3, np.int64)}
    case("loop", plain("Loop", ["count", "yes", "x"], ["last", "all", "squares"], body=body), {"x": x},
         ["last", "all", "squares"], constants)
    without = {key: constants[key] for key in ["w", "yes", "bound"]}
    case("loop_without_count", plain("Loop", ["", "yes", "x"], ["last", "all", "squares"], body=body), {"x": x},
         ["last", "all", "squares"], without)
    scans(value, f32, plain)
    branches(value, f32, plain, x)


def scans(value, f32, plain):
    (rows, start) = draw("scan", (4, 2, 3), (2, 3))
    body = helper.make_graph(
        [plain("Add", ["sum", "row"], ["next"]), plain("Mul", ["next", "row"], ["out"])],
        "body", [value("sum", f32, [2, 3]), value("row", f32, [2, 3])], [value("next", f32, [2, 3]), value("out", f32, [2, 3])],
    )
    for name, options in {
        "scan": {}, "scan_backwards": dict(scan_input_directions=[1], scan_output_directions=[1]),
        "scan_axes": dict(scan_input_axes=[2], scan_output_axes=[-1]),
    }.items():
        given = rows.transpose(1, 2, 0).copy() if name == "scan_axes" else rows
        case(name, plain("Scan", ["start", "rows"], ["last", "all"], body=body, num_scan_inputs=1, **options),
             {"start": start, "rows": given}, ["last", "all"])


def branches(value, f32, plain, x):
    # A condition that is computed from a shape; a branch in a branch, both of which read the graph around.
    inner = lambda name, kind: helper.make_graph([plain(kind, ["x"], [name])], name, [], [value(name, f32, None)])
    outer = helper.make_graph(
        [plain("If", ["no"], ["picked"], then_branch=inner("exp", "Exp"), else_branch=inner("neg", "Neg")),
         plain("Add", ["picked", "x"], ["then"])], "then", [], [value("then", f32, None)],
    )
    nodes = [
        plain("Shape", ["x"], ["shape"]), plain("ReduceProd", ["shape"], ["size"], keepdims=0),
        plain("Greater", ["size", "five"], ["large"]),
        plain("If", ["large"], ["y"], then_branch=outer, else_branch=inner("else", "Abs")),
    ]
    case("branches", nodes, {"x": x}, ["y"], {"five": np.array(5, np.int64), "no": np.array(False)})


def main(out):
    for make in [activations, norms, embeddings, multiplications, attentions, group_attentions, rotary, recurrent, control_flow]:
        make()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (model, inputs, outputs) in sorted(CASES.items()):
            files = [("model.onnx", model)]
            files += [(f"0/input_{i}.pb", numpy_helper.from_array(x, "")) for i, x in enumerate(inputs)]
            files += [(f"0/output_{i}.pb", numpy_helper.from_array(np.asarray(x), "")) for i, x in enumerate(outputs)]
            for path, message in files:
                content = message.SerializeToString()
                entry = tarfile.TarInfo(f"{name}/{path}")
                entry.mode, entry.size = 0o644, len(content)
                archive.addfile(entry, io.BytesIO(content))
    with open(out, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as compressed:
        compressed.write(packed.getvalue())
    print(len(CASES), "cases")


if __name__ == "__main__":
    main(sys.argv[1])
