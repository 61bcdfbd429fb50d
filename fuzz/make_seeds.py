#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets, fuzz/corpus/TARGET/seed-*, from testdata. Needs Python alone.

    python3 fuzz/make_seeds.py

model, which are the seeds of the target onnx too: the smallest of ONNX's node tests for each operator, once as it is and once
with all inputs but the first as tensors of the file (so that there is something to train), and the odd models of testdata.
text: the programs of the filetests. The others are written here.
"""

import gzip
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
    made = {
        "model": models(),
        "text": texts(),
        "checkpoint": checkpoints(),
        "data": data(),
        "csv": tables(),
        "npz": archives(),
        "tokenizer": tokenizers(),
        "config": configs(),
    }
    for target, seeds in made.items():
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

    # Format 2, with the checksums of tensors that a test holds. The target computes the checksum of the description.
    golden = TESTDATA / "checksums/checkpoint"
    now = json.loads((golden / "checkpoint.json").read_text())
    summed = (golden / "state.safetensors").read_bytes()
    losses = [{"steps": 0, "loss": "2.5"}, {"steps": 1, "loss": "1e-3"}]
    evaluations = {"data": {"bytes": 0, "hash": "synthetic"}, "measure": "", "losses": losses}
    place = {"path": "/data/corpus.bin", "modified": 1700000000000000000, "changed": 1700000000000000000}
    data = {"bytes": 64, "hash": "0123456789abcdef", "files": [{"bytes": 64, "hash": "0123456789abcdef", "place": place}]}
    samples = {"bytes": 64, "hash": "0123456789abcdef", "rule": "samples"}

    def changed(**fields):
        return json.dumps(now | fields, indent=2).encode()

    return {
        "format-2": pair(changed(), summed),
        "evaluated": pair(changed(evaluations=evaluations, data=data), summed),
        "samples": pair(changed(data=samples), summed),
        "whole": pair(description, whole),
        "cut": pair(description, whole[:-1]),
        "pytorch": pair(b"{}", pytorch),
        "transposed": pair(b"{}", transposed),
        "other-version": pair(b'{"format": 3}', whole),
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


# The models that are fed: see `model_spec` in src/data.rs.
TOKENS, X, MASK, WIDE = b"\0", b"\1", b"\2", b"\3"


def data():
    x = npy("<f4", "(4, 3)", floats(12))
    tensors = [("x", "F32", [4, 3], floats(12)), ("labels", "I64", [4], struct.pack("<4q", 1, 2, 3, 4))]
    safetensors_, bin_, txt, npy_, jsonl = (bytes([i]) for i in range(5))
    return {
        "samples-safetensors": safetensors_ + X + safetensors(tensors),
        "tokens-bin": bin_ + TOKENS + struct.pack("<40H", *range(40)),
        "wide-bin": bin_ + WIDE + struct.pack("<40I", *range(40)),
        "llm-c-bin": bin_ + TOKENS + struct.pack("<256I", 20240520, 1, 40, *[0] * 253) + struct.pack("<40H", *range(40)),
        "text": txt + TOKENS + b"In the beginning God created the heaven and the earth.\n",
        "npy": npy_ + X + x,
        "jsonl": jsonl + X + b'{"x": [1, 2.5, -3e1], "label": 2}\n{"label": 3.0, "x": [0, 1, 2]}\n',
        "jsonl-nested": jsonl + MASK + b'{"x": [1, 2, 3], "mask": [true, false, 1, 0], "labels": [[1, 2, 3]]}\n',
        "jsonl-text": jsonl + TOKENS + b'{"text": "In the beginning"}\n{"text": "God \\u0063reated"}\n',
    }


def tables():
    rows = b"".join(b"%d,0.5,-1e3,%d\n" % (i % 10, i) for i in range(6))
    table = b"label,a,b,c\n" + rows
    plain, packed, tabs, packed_tabs, raw = (bytes([i]) for i in range(5))

    def columns(text):
        return bytes([len(text)]) + text

    return {
        "header": plain + X + columns(b"") + table,
        "tokens": plain + TOKENS + columns(b"") + b"1,2,3,4\n5,6,7,8\n9,10,11,12\n13,14,15,16\n",
        "columns-by-number": plain + X + columns(b"2-4") + table,
        "columns-by-name": plain + X + columns(b"a,c,b") + table,
        "quoted": plain + X + columns(b"") + b'"label","a ""b""","c,d",e\r\n"1","0.5",2,"3"\r\n2,1,1,1\r\n',
        "packed": packed + X + columns(b"") + table,
        "tabs": tabs + X + columns(b"") + table.replace(b",", b"\t"),
        "packed-tabs": packed_tabs + X + columns(b"2-4") + rows.replace(b",", b"\t"),
        "gzip": raw + X + columns(b"") + gzip.compress(table, mtime=0),
        "gzip-of-two": raw + X + columns(b"") + gzip.compress(table, mtime=0) + gzip.compress(rows, mtime=0),
    }


def archives():
    tokens = npy("<i8", "(4, 4)", struct.pack("<16q", *range(16)))
    labels = npy("|u1", "(4,)", bytes([1, 2, 3, 4]))
    x = npy("<f4", "(4, 3)", floats(12))
    big_endian = npy(">f4", "(4, 3)", struct.pack(">12f", *range(12)), version=2)
    half = npy("<f2", "(4, 3)", bytes(24))
    mask = npy("|b1", "(4, 4)", bytes([1, 0] * 8))
    whole, made = b"\0", b"\1"

    # The numbers of the names: see `ARRAYS` in src/data.rs; 8 more is compressed.
    def parts(*arrays):
        return b"".join(bytes([name]) + struct.pack("<H", len(array)) + array for name, array in arrays)

    return {
        "tokens": TOKENS + whole + npz([("tokens", tokens), ("labels", tokens)]),
        "samples": X + whole + npz([("x", x), ("labels", labels)], zipfile.ZIP_DEFLATED),
        "big-endian": MASK + whole + npz([("input.x", big_endian), ("mask", mask), ("labels", x)]),
        "made-tokens": TOKENS + made + parts((0, tokens), (9, tokens)),
        "made-samples": X + made + parts((10, x), (1, labels)),
        "made-half": X + made + parts((2, half), (1, labels)),
        "made-mask": MASK + made + parts((4, big_endian), (3, mask), (9, x)),
    }


def tokenizers():
    text = "the thing there\n  they're 12 th\u00e9 [UNK] <end>\n" * 4
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz .'\n" + text))
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    base |= {"pre_tokenizer": None, "post_processor": None, "decoder": None}
    end = {"id": 300, "content": "<end>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    bpe_vocabulary = {letter: i for i, letter in enumerate(letters)} | {"th": 200, "the": 201}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    bpe |= {"vocab": bpe_vocabulary, "merges": [["t", "h"], ["th", "e"]]}
    word_piece = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    word_piece |= {"vocab": {"[UNK]": 0, "the": 1, "##re": 2, "th": 3, "##ing": 4, "12": 5}}
    word_level = {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "there": 2}, "unk_token": "[UNK]"}
    unigram = {"type": "Unigram", "unk_id": 0, "byte_fallback": False}
    unigram |= {"vocab": [["<unk>", 0.0], ["the", -1.5], ["t", -2.5], ["h", -2.5], ["e", -2.0], ["\u2581", -1.0]]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\w+|."}, "behavior": "Isolated", "invert": False}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    replace = {"type": "Replace", "pattern": {"String": "th"}, "content": "ht"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    nfc = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}, replace]}
    described = {
        "bpe": base | {"model": bpe, "added_tokens": [end]},
        "byte-level": base | {"model": bpe | {"dropout": 0.5}, "pre_tokenizer": byte_level, "truncation": truncation, "padding": padding},
        "split": base | {"model": bpe | {"byte_fallback": True}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}},
        "word-piece": base | {"model": word_piece, "normalizer": bert, "pre_tokenizer": {"type": "BertPreTokenizer"}},
        "word-level": base | {"model": word_level, "normalizer": nfc, "pre_tokenizer": {"type": "Whitespace"}},
        "unigram": base | {"model": unigram, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}},
    }

    def pair(tokenizer):
        first = json.dumps(tokenizer).encode()
        return struct.pack("<I", len(first)) + first + text.encode()

    return {name: pair(tokenizer) for name, tokenizer in described.items()}


def configs():
    return {
        "run": b'steps = 600\nsave-every = 100\nmicrobatch = 32\nglobal-batch = 64\nseed = 7\n',
        "data": b'train = "corpus.txt"\neval = "synthetic"\ntokenizer = "bytes"\nseq = 128\ninput = ["mask=ones", "x=2-65"]\nbind = ["seq=128"]\n',
        "optimizer": b'optimizer = "adamw:beta2=0.95"\nlr = 3e-4\nlr-schedule = "cosine:warmup=100"\nweight-decay = 0.1\nclip = 1.0\n',
        "groups": b'[[group]]\npattern = "h.*.weight"\nlr = 1e-1\n\n[[group]]\npattern = "*.bias"\nweight-decay = 0.0\n',
        "parameters": b'freeze = ["*.bias"]\ntrain-also = ["pos"]\nuntied = true\ndecay = "matrices"\ninit = "normal:std=0.02"\n',
        "parallel": b'mesh = "dp=2,tp=2"\nzero = 1\nshard = ["h.*.weight=-,tp"]\nprecision = "bf16"\ngrad-dtype = "f32"\n',
        "loss": b'loss = "cross-entropy"\nlabel-smoothing = 0.1\nignore-index = -100\nresume = false\ndropout = "off"\n',
        "deepspeed": b'{"train_batch_size": 8, "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}, '
        b'"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": 100}}, "zero_optimization": {"stage": 0}}',
        "deepspeed-fp16": b'{"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 10}, "gradient_clipping": 1, "seed": 3, '
        b'"tensor_parallel": {"autotp_size": 2}, "activation_checkpointing": {"number_checkpoints": 1}}',
        "patrickstar": b'{"default_chunk_size": 64, "use_cpu_embedding": true, "client": {"opts": {"with_mem_cache": false}}, "fp16": {"enabled": true, "loss_scale": 128}}',
        "wrong": b'lr = "fast"\nlearning-rate = 0.1\n[section]\nsteps = 1979-05-27\n',
    }


if __name__ == "__main__":
    main()
