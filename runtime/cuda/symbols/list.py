"""Writes the lists of names that the pinned wheels of CUDA's libraries export, against which tests hold the names that we look up.

python3 list.py ENVIRONMENT, in this folder, after

    pip install --no-deps -r testdata/requirements-libraries.txt

into that environment. It needs `nm`. A list begins with the wheel's name and version.
"""

import importlib.metadata
import pathlib
import subprocess
import sys

LIBRARIES = {
    "nvrtc": ("nvidia-cuda-nvrtc", "libnvrtc.so.13", ("nvrtc",)),
    "cublaslt": ("nvidia-cublas", "libcublasLt.so.13", ("cublasLt",)),
    "cudnn": ("nvidia-cudnn-cu13", "libcudnn.so.9", ("cudnnBackend", "cudnnCreate", "cudnnDestroy", "cudnnGet", "cudnnSet")),
    "nccl": ("nvidia-nccl-cu13", "libnccl.so.2", ("nccl",)),
}


def exported(library, prefixes):
    """The names that begin like these and that a library defines, in order."""
    lines = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines}
    return sorted(name for name in names if name.startswith(prefixes) and name.isalnum())


def main():
    [packages] = pathlib.Path(sys.argv[1]).glob("lib/python3.*/site-packages")
    here = pathlib.Path(__file__).parent
    for name, (wheel, file, prefixes) in LIBRARIES.items():
        [distribution] = importlib.metadata.distributions(name=wheel, path=[str(packages)])
        [library] = packages.glob(f"nvidia/*/lib/{file}")
        names = exported(library, prefixes)
        (here / f"{name}.txt").write_text("\n".join([f"# {wheel} {distribution.version}", *names]) + "\n")
        print(f"{wheel} {distribution.version}: {len(names)} names")


if __name__ == "__main__":
    main()
