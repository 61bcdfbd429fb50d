"""What is known of GPUs by their names."""

import os

import torch

# Dense bf16 on tensor cores, TFLOP/s, by what is in the name of the GPU (the vendor's data sheets).
PEAKS = {"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "B200": 2250.0, "A100": 312.0, "A10": 125.0, "L40S": 362.0}
# What `trainyard inspect --target` calls them.
TARGETS = {"H200": "h200", "H100": "h100", "A100": "a100"}


def name() -> str | None:
    """Of the GPU that is used."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def peak_flops() -> float | None:
    """FLOP/s of the GPU in bf16, if it is known; PEAK_TFLOPS has it for others."""
    if "PEAK_TFLOPS" in os.environ:
        return float(os.environ["PEAK_TFLOPS"]) * 1e12
    return next((peak * 1e12 for part, peak in PEAKS.items() if part in (name() or "")), None)


def target() -> str | None:
    """What `--target` takes for the GPU; without one that of an H200, to rehearse."""
    return next((target for part, target in TARGETS.items() if part in (name() or "H200")), None)
