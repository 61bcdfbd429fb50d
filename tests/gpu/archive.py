"""Packs a folder of results into one archive under 16 MiB: large logs are cut in the middle, other files that are too large
are left out and named in LEFT_OUT.txt. The archive takes its place only when it is complete.

    archive.py FOLDER ARCHIVE
"""

import io
import os
import sys
import tarfile
import time
from pathlib import Path

MIB = 1 << 20
LIMIT = 16 * MIB - MIB // 4
# Of one file, in bytes: the first sizes that are tried; they are halved until the archive is small enough.
LOG_BYTES = MIB
OTHER_BYTES = 64 * MIB
# Files that tell something also without their middle.
LOGS = {".log", ".out", ".csv", ".txt"}
# Weights and data, which are in no archive.
WEIGHTS = {".safetensors", ".onnx", ".npz", ".bin"}


def shortened(path: Path, limit: int) -> bytes:
    """The beginning and the end of a log, and between them how much was cut."""
    size = path.stat().st_size
    with open(path, "rb") as log:
        if size <= limit:
            return log.read(limit)
        head = log.read(limit // 2)
        log.seek(size - limit // 2)
        return head + f"\n\n... {size - limit} bytes were cut here ...\n\n".encode() + log.read(limit // 2)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """A file of the archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(content), int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def packed(folder: Path, log_bytes: int, other_bytes: int, name: str) -> bytes:
    """The archive with files of these sizes at most."""
    out, left_out = io.BytesIO(), []
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
            if path.suffix in WEIGHTS:
                continue
            inside = path.relative_to(folder)
            size = path.stat().st_size
            if path.suffix in LOGS:
                add(archive, f"{name}/{inside}", shortened(path, log_bytes))
            elif size <= other_bytes:
                add(archive, f"{name}/{inside}", path.read_bytes())
            else:
                left_out.append(f"{inside}: {size} bytes\n")
        if left_out:
            add(archive, f"{name}/LEFT_OUT.txt", "".join(left_out).encode())
    return out.getvalue()


def pack(folder: Path, path: Path) -> None:
    """Writes the archive of a folder."""
    name = path.name.removesuffix(".tar.gz")
    log_bytes, other_bytes = LOG_BYTES, OTHER_BYTES
    while len(content := packed(folder, log_bytes, other_bytes, name)) > LIMIT:
        log_bytes, other_bytes = log_bytes // 2, other_bytes // 2
    path.parent.mkdir(parents=True, exist_ok=True)
    # $OUT may be looked at any time: the unfinished archive is hidden there.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
