#!/usr/bin/env python3
"""Keeps the parameters of `models/NAME.train.npz` once: a parameter that stands in an export of NAME is left out of the `.npz`.

usage: python testdata/scripts/share_parameters.py    (after make_fixtures.py and share_weights.py)

`models/NAME.parameters.json` then says for each parameter that was left out where the export has its bytes, whether they are
there transposed, and the CRC-32 of the array that PyTorch had. `testing/models/parameters.rs` puts the file together again for
the tests, and checks every sum.
"""

import json
import zipfile
import zlib
from pathlib import Path

import numpy

MODELS = Path(__file__).resolve().parent.parent / "models"

# The export that holds the parameters, by model.
HOLDERS = {
    "gpt2": "gpt2.dynamo.onnx",
    "llama": "llama.dynamo.onnx",
    "bert": "bert.dynamo.onnx",
    "mixtral": "mixtral.dynamo.onnx",
    "resnet-trainmode": "resnet.legacy-trainmode.onnx",
}

# Smaller arrays stay where they are.
LEAST = 1024


def place(held: bytes, array: numpy.ndarray) -> dict | None:
    """Where these bytes stand in the export, as they are or transposed."""
    for transposed in [False, True] if array.ndim == 2 else [False]:
        offset = held.find((array.T if transposed else array).tobytes())
        if offset >= 0:
            sum = zlib.crc32(array.tobytes())
            return {"offset": offset, "shape": list(array.shape), "transposed": transposed, "crc32": sum}
    return None


def share(model: str, holder: str) -> None:
    """Leaves parameters out of a model's numbers."""
    path, held = MODELS / f"{model}.train.npz", (MODELS / holder).read_bytes()
    before = path.stat().st_size
    arrays = dict(numpy.load(path))
    places = {}
    for key in [key for key in arrays if key.startswith("param.")]:
        array = arrays[key]
        if array.dtype != numpy.float32 or array.nbytes < LEAST or not array.flags.c_contiguous:
            continue
        if found := place(held, array):
            places[key] = found
            del arrays[key]
    if not places:
        print(f"{path.name}: nothing to share")
        return
    lines = [f"    {json.dumps(key)}: {json.dumps(found)}" for key, found in places.items()]
    text = f'{{\n  "holder": {json.dumps(holder)},\n  "parameters": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    (MODELS / f"{model}.parameters.json").write_text(text)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for key, array in arrays.items():
            # One date for all, so that the file comes out the same each time.
            entry = zipfile.ZipInfo(f"{key}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as member:
                numpy.lib.format.write_array(member, array, allow_pickle=False)
    print(f"{path.name}: {len(places)} parameters in {holder}; {before} bytes before, {path.stat().st_size} now")


for name, file in HOLDERS.items():
    share(name, file)
