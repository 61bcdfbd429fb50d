#!/usr/bin/env python3
"""Exports the byte-level GPT-2 of the README's first command to testdata/gpt2-bytes.onnx.

Hugging Face's GPT2LMHeadModel, untrained: 4 layers, width 128, 4 heads, 64 positions, one token a byte, head tied to the
embedding, no dropout; batch 8 x 64 bytes.

usage: python testdata/scripts/make_quickstart.py [OUTPUT.onnx]
"""

import sys
from pathlib import Path

import torch
import transformers

from export import export_model, make_constant_parameters_distinct

BATCH = 8
SEQUENCE = 64
INITIALIZATION_SEED = 0
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "gpt2-bytes.onnx"


def build_model() -> transformers.GPT2LMHeadModel:
    """The model with Hugging Face's own initialization; the same weights in every process."""
    torch.manual_seed(INITIALIZATION_SEED)
    configuration = transformers.GPT2Config(
        vocab_size=256,
        n_positions=SEQUENCE,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        # The defaults lie outside a vocabulary of bytes.
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(configuration).eval()
    make_constant_parameters_distinct(model)
    return model


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT
    input_ids = torch.zeros(BATCH, SEQUENCE, dtype=torch.int64)
    export_model(build_model(), {"input_ids": input_ids}, output)


if __name__ == "__main__":
    main()
