#!/usr/bin/env python3
"""Rehearses pack.sh in a copy of the repository, with a small program in place of both binaries.

    rehearse_pack.py     the sum of the tree and the archive is right; a file that is too large is refused, also if git does not
                         know it yet; a file that git ignores does not travel; the printed command unpacks, and the newest programs
                         are found; kernels are compiled with and without epilogues; missing tools are named
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
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


def refuse(repository: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit status, which is not 0, and the errors of pack.sh in an environment where it cannot pack."""
    settings = {**environment, "TRAINYARD": PROGRAM, "DEVICES": PROGRAM}
    done = subprocess.run([shutil.which("bash"), "tests/gpu/pack.sh"], cwd=repository, env=settings, capture_output=True, text=True)
    assert done.returncode != 0 and "MiB" not in done.stdout, done.stdout
    return done.returncode, done.stderr


def script(path: Path, text: str) -> None:
    """A program of the shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def tools_are_missing(repository: Path, tools: Path) -> None:
    """Without xz there is one sentence; a git that fails, or names no file, does not make the tree 0 MiB large."""
    real = shutil.which("git")
    for status in (0, 1):
        script(tools / "git", f'[ "$1" = ls-files ] && exit {status}\nexec {real} "$@"')
        _, said = refuse(repository, os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"})
        assert status or "git names no file of the tree" in said, said
    (tools / "dirname").symlink_to(shutil.which("dirname"))
    _, said = refuse(repository, os.environ | {"PATH": str(tools)})
    assert said == "xz is not there, which packs the archive: install xz-utils\n", said


def kernels_are_also_those_without_epilogues(repository: Path, compiler: Path) -> None:
    """Kernels are compiled with and without epilogues, each once; a model whose kernels do not compile is named."""
    # `env compile ...` runs this program with the environment of the binary.
    log = compiler.with_suffix(".log")
    script(compiler / "compile", f'echo "$TRAINYARD_EPILOGUES: $*" >> {log}\ncase $1 in *resnet*) exit 1;; esac')
    settings = {"TRAINYARD": "/usr/bin/env", "DEVICES": PROGRAM, "PYTHON": sys.executable, "PATH": f"{compiler}:{os.environ['PATH']}"}
    command = ["bash", "tests/gpu/pack.sh"]
    said = subprocess.run(command, cwd=repository, env=os.environ | settings, check=True, capture_output=True, text=True).stderr
    assert re.search(r"^no kernels of .*/resnet", said, re.MULTILINE) and "no compiled kernels" in said, said
    lines = log.read_text().splitlines()
    for start in (": ", "0: "):
        models = [line for line in lines if line.startswith(f"{start}{repository}/testdata/bench/gpt2-124m.onnx -o ")]
        assert len(models) == 1 and models[0].endswith("--steps 8 --kernels-for h100"), (start, lines)


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
        [unpack] = re.findall(r"^ +(python3 -m tarfile -e target/gpu.tar.xz target) && tests/gpu/first.sh", said, re.MULTILINE)
        with tarfile.open(repository / "target/gpu.tar.xz") as archive:
            assert {"gpu/bin/trainyard", "gpu/bin/devices", "gpu/COMMIT"} <= set(archive.getnames()), archive.getnames()
        with tarfile.open(repository / "target/gpu-files.tar.gz") as archive:
            names = set(archive.getnames())
            wanted = ["tests/gpu/first.sh", "testdata/kjv.txt", "testdata/models/gpt2.train.npz", "testdata/models/t5.dynamo.onnx"]
            assert {f"gpu/{name}" for name in wanted} <= names, names

        # What the printed command does in the tree: the programs are found where it unpacks them.
        subprocess.run(unpack.replace("python3", sys.executable).split(), cwd=repository, check=True)
        kept = {key: value for key, value in os.environ.items() if key not in ("TRAINYARD", "DEVICES")} | {"PYTHON": sys.executable}
        temporary = Path(folder) / "temporary"
        temporary.mkdir()

        def list_steps() -> str:
            """The commands of first.sh."""
            command, settings = ["bash", "tests/gpu/first.sh", "--list"], kept | {"TMPDIR": str(temporary)}
            return subprocess.run(command, cwd=repository, env=settings, check=True, capture_output=True, text=True).stdout

        listed = list_steps()
        assert f"doctor {repository}/target/gpu/bin/trainyard doctor --json" in listed, listed
        assert f"{repository}/target/gpu/bin/devices --ignored" in listed, listed
        assert not list(temporary.iterdir()), "first.sh --list leaves files behind"
        # A binary that cargo has built since counts.
        release = repository / "target/release"
        release.mkdir()
        shutil.copy(PROGRAM, release / "trainyard")
        assert f"doctor {release}/trainyard doctor --json" in list_steps(), "the older binary counts"
        # The commit is git's, or the one of the archive where there is no git.
        (repository / "target/gpu/COMMIT").write_text("packed\n")
        ask = [sys.executable, "-c", "import part; print(part.commit())"]
        commits = []
        for git_folder in (".git", ".hidden"):
            (repository / ".git").rename(repository / git_folder)
            commits.append(subprocess.run(ask, cwd=repository / "tests/gpu", check=True, capture_output=True, text=True).stdout.strip())
        _, refused = refuse(repository, os.environ)
        assert refused.endswith("is not in a git repository, which says which files travel\n") and refused.count("\n") == 1, refused
        (repository / ".hidden").rename(repository / ".git")
        assert commits == [git("describe", "--always", "--dirty", "--abbrev=12", cwd=repository).strip(), "packed"], commits

        tools_are_missing(repository, Path(folder) / "tools")
        kernels_are_also_those_without_epilogues(repository, Path(folder) / "compiler")

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
