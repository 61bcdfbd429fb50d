"""Writes onnx's backend node tests into one archive: `pack_node_tests.py OUT.tar.gz`.

Paths are `NAME/model.onnx` and `NAME/SET/{input,output}_I.pb`, NAME without `test_`: headers of old tar archives have 100
bytes for a path. Equal files are stored once, as hard links. onnx draws the data of many tests anew each time it is run.
"""

import gzip
import hashlib
import io
import sys
import tarfile

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def proto(value, kind, name):
    """A value of a test as the message that the classic layout has in a file."""
    if isinstance(value, onnx.TensorProto):
        value.name = name
        return value
    if kind.HasField("sequence_type"):
        return numpy_helper.from_list(value, name)
    if kind.HasField("optional_type"):
        return numpy_helper.from_optional(value, name)
    return numpy_helper.from_array(np.asarray(value), name)


def files():
    """The path and the bytes of every file."""
    for case in sorted(collect_testcases(None), key=lambda case: case.name):
        test = case.name.removeprefix("test_")
        yield f"{test}/model.onnx", case.model.SerializeToString()
        for i, data in enumerate(case.data_sets):
            for kind, values, infos in zip(("input", "output"), data, (case.model.graph.input, case.model.graph.output)):
                for j, value in enumerate(values):
                    message = proto(value, infos[j].type, infos[j].name)
                    yield f"{test}/{i}/{kind}_{j}.pb", message.SerializeToString()


def main(out):
    first = {}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in files():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            known = first.setdefault(hashlib.sha256(content).digest(), path)
            if known == path:
                entry.size = len(content)
            else:
                entry.type, entry.linkname = tarfile.LNKTYPE, known
            archive.addfile(entry, io.BytesIO(content))
    with open(out, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as compressed:
        compressed.write(packed.getvalue())


if __name__ == "__main__":
    main(sys.argv[1])
