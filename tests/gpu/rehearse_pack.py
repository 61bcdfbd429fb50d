#!/usr/bin/env python3
"""Rehearses pack.sh in a copy of the repository, with a small program in place of both binaries.

    rehearse_pack.py     the sum of the tree and the archive is right; a file that is too large is refused, also if git does not
                         know it yet; a file that git ignores does not travel
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "/bin/true"
MIB = 1 << 20


def git(*arguments: str, cwd: Path) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def pack(repository: Path, limit_mib: int) -> tuple[int, list[float], str]:
    """The exit status of pack.sh, the numbers of its line about sizes, and all that it said."""
    settings = {"TRAINYARD": PROGRAM, "DEVICES": PROGRAM, "LIMIT_MIB": str(limit_mib), "PYTHON": sys.executable}
    command = ["bash", "tests/gpu/pack.sh"]
    done = subprocess.run(command, cwd=repository, env=os.environ | settings, capture_output=True, text=True)
    said = done.stdout + done.stderr
    found = re.search(r"tree ([0-9.]+) MiB, archive ([0-9.]+) MiB: ([0-9.]+) of ([0-9]+) MiB", said)
    assert found, said
    return done.returncode, [float(number) for number in found.groups()], said


def main() -> None:
    """Packs with nothing planted, and then with each plant."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        repository = Path(folder) / "repository"
        tracked = git("ls-files", "-z", cwd=ROOT).split("\0")[:-1]
        for name in tracked:
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name, follow_symlinks=False)
        git("init", "--quiet", cwd=repository)
        git("add", "--all", cwd=repository)
        git("-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost", "commit", "--quiet", "-m", "all", cwd=repository)
        tree = sum((repository / name).lstat().st_size for name in tracked) / MIB
        limit = int(tree) + 2

        status, (of_tree, of_archive, both, of_limit), said = pack(repository, limit)
        assert status == 0 and of_limit == limit, said
        assert abs(of_tree - tree) < 0.06 and abs(of_tree + of_archive - both) < 0.11, f"{tree} {said}"
        assert "tar xf target/gpu.tar.xz -C target && tests/gpu/first.sh" in said, said
        with tarfile.open(repository / "target/gpu.tar.xz") as archive:
            assert {"gpu/bin/trainyard", "gpu/bin/devices", "gpu/COMMIT"} <= set(archive.getnames()), archive.getnames()
        with tarfile.open(repository / "target/gpu-files.tar.gz") as archive:
            names = set(archive.getnames())
            wanted = ["tests/gpu/first.sh", "testdata/kjv.txt", "testdata/models/gpt2.train.npz", "testdata/models/t5.dynamo.onnx"]
            assert {f"gpu/{name}" for name in wanted} <= names, names

        # What the printed command does in the tree: the programs are found where it unpacks them.
        subprocess.run(["tar", "xf", "target/gpu.tar.xz", "-C", "target"], cwd=repository, check=True)
        kept = {key: value for key, value in os.environ.items() if key not in ("TRAINYARD", "DEVICES")} | {"PYTHON": sys.executable}
        command = ["bash", "tests/gpu/first.sh", "--list"]
        listed = subprocess.run(command, cwd=repository, env=kept, check=True, capture_output=True, text=True).stdout
        assert f"doctor {repository}/target/gpu/bin/trainyard doctor --json" in listed, listed
        assert f"{repository}/target/gpu/bin/devices --ignored" in listed, listed

        # (the planted file, whether git knows it, whether it travels)
        plants = [("testdata/large.bin", True, True), ("large.bin", False, True), ("target/large.bin", False, False)]
        for name, is_known, travels in plants:
            planted = repository / name
            planted.write_bytes(bytes(3 * MIB))
            if is_known:
                git("add", name, cwd=repository)
            status, (of_tree, *_), said = pack(repository, limit)
            assert status == (1 if travels else 0), f"{name}: {status}, {said}"
            assert (name in said and "too much" in said) == travels, f"{name}: {said}"
            assert abs(of_tree - tree - (3 if travels else 0)) < 0.06, f"{name}: {said}"
            if is_known:
                git("rm", "--quiet", "--cached", name, cwd=repository)
            planted.unlink()
        print(f"tree {tree:.1f} MiB; {len(plants)} planted files")


if __name__ == "__main__":
    main()
