#!/usr/bin/env python3
"""Exports an untrained GPT-2 as a user would who does not know of the exporter's merging, to testdata/gpt2-fresh.onnx.

The exporter's optimizer makes one initializer of all that have equal bytes, so the scales of the norms of this file are one
parameter, and its zero biases are shared or gone. The import must warn of that.

usage: python testdata/scripts/make_fresh_gpt2.py [OUTPUT.onnx]
"""

import sys
from pathlib import Path

import torch
import transformers

from export import export_model

BATCH = 2
SEQUENCE = 16
INITIALIZATION_SEED = 0
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "gpt2-fresh.onnx"


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT
    torch.manual_seed(INITIALIZATION_SEED)
    configuration = transformers.GPT2Config(
        vocab_size=128,
        n_positions=SEQUENCE,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        # The defaults lie outside this vocabulary.
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(configuration).eval()
    input_ids = torch.zeros(BATCH, SEQUENCE, dtype=torch.int64)
    export_model(model, {"input_ids": input_ids}, output)


if __name__ == "__main__":
    main()
