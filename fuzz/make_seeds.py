#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets, fuzz/corpus/TARGET/seed-*, from testdata. Needs Python alone.

    python3 fuzz/make_seeds.py

model: the smallest of ONNX's node tests for each operator, once as it is and once with all inputs but the first as
tensors of the file (so that there is something to train), and the odd models of testdata. text: the programs of the
filetests. checkpoint and data: written here.
"""

import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
TESTDATA = FUZZ.parent / "testdata"
# Larger seeds slow the fuzzer down more than they help it.
LARGEST = 3000


def main():
    for target, seeds in [("model", models()), ("text", texts()), ("checkpoint", checkpoints()), ("data", data())]:
        folder = FUZZ / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for name, content in seeds.items():
            (folder / f"seed-{name}").write_bytes(content)
        print(f"{target}: {len(seeds)} seeds, {sum(map(len, seeds.values()))} bytes")


# Protobuf, as much of it as is needed: https://protobuf.dev/programming-guides/encoding/


def varint(number):
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def read_varint(message, at):
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(message):
    """(number, wire type, content) of each field."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        start = at
        if tag & 7 == 2:
            length, start = read_varint(message, at)
            at = start + length
        elif tag & 7 == 0:
            _, at = read_varint(message, at)
        else:
            at += {1: 8, 5: 4}[tag & 7]
        yield tag >> 3, tag & 7, message[start:at]


def field(number, wire, content):
    length = varint(len(content)) if wire == 2 else b""
    return varint(number << 3 | wire) + length + content


GRAPH, NODE, INITIALIZER, INPUT, OP_TYPE, DOMAIN, TENSOR_NAME, NAME = 7, 1, 5, 11, 4, 7, 8, 1


def graph_of(model):
    return next(content for number, _, content in fields(model) if number == GRAPH)


def operators(model):
    nodes = [content for number, _, content in fields(graph_of(model)) if number == NODE]
    return tuple(sorted({bytes(c) for node in nodes for number, _, c in fields(node) if number in (OP_TYPE, DOMAIN)}))


def with_tensors(model, tensors):
    """The model with its inputs from the second on as tensors of the file."""
    graph = graph_of(model)
    inputs = [content for number, _, content in fields(graph) if number == INPUT]
    names = [next(c for number, _, c in fields(value) if number == NAME) for value in inputs]
    kept = b"".join(
        field(number, wire, content)
        for number, wire, content in fields(graph)
        if number != INPUT or content == inputs[0]
    )
    for name, tensor in list(zip(names, tensors))[1:]:
        renamed = b"".join(field(*part) for part in fields(tensor) if part[0] != TENSOR_NAME)
        kept += field(INITIALIZER, 2, renamed + field(TENSOR_NAME, 2, name))
    return b"".join(
        field(number, wire, kept if number == GRAPH else content) for number, wire, content in fields(model)
    )


def node_tests():
    """Each test's files by name."""
    tests = {}
    with tarfile.open(TESTDATA / "onnx-node-tests.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            test, _, file = member.name.partition("/")
            if content is not None:
                tests.setdefault(test, {})[file] = content.read()
    return tests


def models():
    smallest = {}
    for name, files in sorted(node_tests().items()):
        model = files["model.onnx"]
        key = operators(model)
        if len(model) <= LARGEST and (key not in smallest or len(model) < len(smallest[key][1])):
            smallest[key] = (name, model, files)
    seeds = {}
    for name, model, files in smallest.values():
        seeds[name] = model
        count = len([file for file in files if file.startswith("0/input_")])
        inputs = [files[f"0/input_{i}.pb"] for i in range(count)]
        if count > 1 and sum(map(len, inputs)) < LARGEST:
            seeds[f"{name}-trained"] = with_tensors(model, inputs)
    for path in sorted((TESTDATA / "odd").glob("*.onnx")):
        if path.stat().st_size <= LARGEST:
            seeds[path.stem] = path.read_bytes()
    return seeds


def texts():
    seeds = {}
    for path in sorted((TESTDATA / "filetests").rglob("*.ir")):
        text = path.read_text()
        for half, part in zip(["before", "after"], text.split("---- expected\n")):
            start = part.find("trainyard-ir")
            if start >= 0 and len(part) - start <= 2 * LARGEST:
                seeds[f"{path.parent.name}-{path.stem}-{half}"] = part[start:].encode()
    return seeds


def safetensors(tensors, metadata=None):
    header, content = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, elements in tensors:
        offsets = [len(content), len(content) + len(elements)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        content += elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content


def floats(count):
    return struct.pack(f"<{count}f", *[i / 8 for i in range(count)])


def checkpoints():
    rows = [
        ("half", "bf16", "BF16", [3], "parameter", "", bytes(6)),
        ("weight", "f32", "F32", [2, 3], "parameter", "[transpose [1, 0]]", floats(6)),
        ("empty", "f32", "F32", [0, 4], "buffer", "", b""),
        ("step", "i64", "I64", [], "counter", "", bytes(8)),
    ]
    states = [{"name": n, "dtype": d, "dims": s, "role": r, **({"view": v} if v else {})} for n, d, _, s, r, v, _ in rows]
    position = {"step": 9, "epoch": 0, "batch_in_epoch": 9, "samples": 100, "global_batch": 8, "seed": 7}
    described = {
        "format": 1,
        "module": "tiny",
        "parameters": "0123456789abcdef",
        "position": position,
        "data": {"bytes": 64, "hash": "0123456789abcdef"},
        "states": states,
    }
    description = json.dumps(described).encode()
    whole = safetensors([(n, d, s, e) for n, _, d, s, _, _, e in rows], {"trainyard": "states"})
    pytorch = safetensors([("linear.weight", "F32", [3, 2], floats(6))], {"format": "pt"})
    transposed = safetensors([("w", "F16", [2, 3], bytes(12))], {"format": "pt"})

    def pair(first, second):
        return struct.pack("<I", len(first)) + first + second

    return {
        "whole": pair(description, whole),
        "cut": pair(description, whole[:-1]),
        "pytorch": pair(b"{}", pytorch),
        "transposed": pair(b"{}", transposed),
        "other-version": pair(b'{"format": 2}', whole),
    }


def npy(descr, shape, elements, version=1):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + elements


def npz(arrays, method=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, array in arrays:
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), array, method)
    return content.getvalue()


def data():
    tokens = npy("<i8", "(4, 4)", struct.pack("<16q", *range(16)))
    labels = npy("|u1", "(4,)", bytes([1, 2, 3, 4]))
    x = npy("<f4", "(4, 3)", floats(12))
    big_endian = npy(">f4", "(4, 3)", struct.pack(">12f", *range(12)), version=2)
    mask = npy("|b1", "(4, 4)", bytes([1, 0] * 8))
    tensors = [("x", "F32", [4, 3], floats(12)), ("labels", "I64", [4], struct.pack("<4q", 1, 2, 3, 4))]
    table = b"label,a,b,c\n" + b"".join(b"%d,0.5,-1e3,%d\n" % (i % 10, i) for i in range(6))
    npz_, safetensors_, bin_, txt, csv, npy_, jsonl = (bytes([i]) for i in range(7))
    tokens_model, x_model, mask_model, wide = b"\0", b"\1", b"\2", b"\3"
    return {
        "tokens-npz": npz_ + tokens_model + npz([("tokens", tokens), ("labels", tokens)]),
        "samples-npz": npz_ + x_model + npz([("x", x), ("labels", labels)], zipfile.ZIP_DEFLATED),
        "big-endian-npz": npz_ + mask_model + npz([("input.x", big_endian), ("mask", mask), ("labels", x)]),
        "samples-safetensors": safetensors_ + x_model + safetensors(tensors),
        "tokens-bin": bin_ + tokens_model + struct.pack("<40H", *range(40)),
        "wide-bin": bin_ + wide + struct.pack("<40I", *range(40)),
        "llm-c-bin": bin_ + tokens_model + struct.pack("<256I", 20240520, 1, 40, *[0] * 253) + struct.pack("<40H", *range(40)),
        "text": txt + tokens_model + b"In the beginning God created the heaven and the earth.\n",
        "csv": csv + x_model + table,
        "csv-tokens": csv + tokens_model + b"1,2,3,4\n5,6,7,8\n9,10,11,12\n13,14,15,16\n",
        "npy": npy_ + x_model + x,
        "jsonl": jsonl + x_model + b'{"x": [1, 2.5, -3e1], "label": 2}\n{"label": 3.0, "x": [0, 1, 2]}\n',
        "jsonl-nested": jsonl + mask_model + b'{"x": [1, 2, 3], "mask": [true, false, 1, 0], "labels": [[1, 2, 3]]}\n',
        "jsonl-text": jsonl + tokens_model + b'{"text": "In the beginning"}\n{"text": "God \\u0063reated"}\n',
    }


if __name__ == "__main__":
    main()
