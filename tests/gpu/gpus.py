"""What is known of GPUs by their names, which are those of `nvidia-smi -L`: near names are other GPUs."""

import os

from part import answer, gpu_number

# Dense bf16 on tensor cores, TFLOP/s (the vendor's data sheets, whose rates are mostly with sparsity: here halved).
PEAKS = {
    "NVIDIA B200": 2250.0,
    "NVIDIA GH200 480GB": 989.5,
    "NVIDIA GH200 144G HBM3e": 989.5,
    "NVIDIA H200": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A10": 125.0,
    "NVIDIA L40S": 362.0,
}
# What `trainyard inspect --target` calls those that it has a model of.
TARGETS = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100"}


def name() -> str | None:
    """Of the GPU that is used. PyTorch would say it as well, but takes memory of the GPU for that."""
    return answer(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={gpu_number()}"])


def peak_flops() -> float | None:
    """FLOP/s of the GPU in bf16, if it is known; PEAK_TFLOPS has it for others."""
    given = os.environ.get("PEAK_TFLOPS")
    peak = float(given) if given else PEAKS.get(name())
    return peak and peak * 1e12


def target() -> str | None:
    """What `--target` takes for the GPU; without one that of an H200, to rehearse."""
    return TARGETS.get(name() or "NVIDIA H200")
