"""Finds NVIDIA's tools: on the PATH, in CUDA's folder, or in the Python environment, where their wheels put them.

    tools.py NAME      prints the path of compute-sanitizer or ncu, or nothing
"""

import glob
import os
import shutil
import site
import sys

# Folders of the tools' own installers; the newest Nsight Compute comes last in the order of names.
INSTALLED = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")
# In a folder `site-packages`: of the wheel nvidia-cuda-sanitizer-api.
OF_WHEELS = ("nvidia/*/compute-sanitizer", "nvidia/*/bin")


def find(name: str) -> str | None:
    """The path of a tool that can be run."""
    if found := shutil.which(name):
        return found
    packages = {folder for folder in [*site.getsitepackages(), *sys.path] if folder}
    patterns = [*INSTALLED, *(f"{folder}/{place}" for folder in sorted(packages) for place in OF_WHEELS)]
    for pattern in patterns:
        for path in sorted(glob.glob(f"{pattern}/{name}"), reverse=True):
            if os.access(path, os.X_OK):
                return path
    return None


if __name__ == "__main__":
    print(find(sys.argv[1]) or "")
