"""All families, in the order of the table."""

import re

import images
import language
import layers
import lost
import weights

FAMILIES = {**language.FAMILIES, **images.FAMILIES, **layers.FAMILIES, **weights.FAMILIES, **lost.FAMILIES}

# The files that CI checks: each kind of evidence, and each kind of loss of it.
CI = {
    "GPT-2": ["dynamo-fresh"],
    "T5": ["noopt-random"],
    "Swin v2 (torchvision)": ["noopt-random"],
    "CLIP": ["noopt-random"],
    "LayerNorm": ["dynamo-fresh", "legacy-fresh"],
    "BatchNorm1d": ["legacy-fresh"],
    "BatchNorm2d, training mode": ["noopt-random", "legacy-random"],
    "GroupNorm": ["dynamo-random"],
    "PReLU, a slope per channel": ["dynamo-fresh"],
    "LSTM": ["dynamo-random"],
    "LSTM, lengths": ["legacy-random"],
    "weight norm (parametrization)": ["noopt-random"],
    "weight norm (weight_g, weight_v), large": ["dynamo-random"],
    "spectral norm (hook)": ["legacy-random"],
    "LoRA, added": ["noopt-fresh"],
    "untied head, equal values": ["noopt-fresh"],
    "tied head": ["dynamo-random"],
    "random buffers": ["dynamo-fresh"],
    "padding_idx": ["dynamo-random"],
    "detach": ["dynamo-random"],
    "unused parameters": ["dynamo-random"],
    "scalars": ["legacy-random"],
}


def slug(name):
    """Returns a family's name as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("*", "times")).strip("-")
