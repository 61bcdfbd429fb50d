#!/usr/bin/env python3
"""Trains the README's byte-level GPT-2 in PyTorch: what a recipe reaches there, for comparison with what Trainyard reaches.

The text's last 5 % are held out, as Trainyard does by default. The rest is cut into sequences of 64 bytes with the byte after
each as the last label, shuffled once by seed; no recipe here sees a sequence twice.

usage: python testdata/scripts/train_quickstart_reference.py --batch 32 --steps 900 --lr 3e-3 [...]
"""

import argparse
import math
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as functional

from make_quickstart import SEQUENCE, build_model

TEXT = Path(__file__).resolve().parent.parent / "kjv.txt"
HELD_OUT_FRACTION = 0.05


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="sequences a step")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate after the warm-up")
    parser.add_argument("--warmup", type=int, default=None, help="steps of linear warm-up (default: a tenth)")
    parser.add_argument("--minimum-lr", type=float, default=0.0, help="learning rate at the end of the cosine")
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--weight-decay", type=float, default=0.1, help="of matrices only")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the sequences")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def sequences(text: bytes) -> torch.Tensor:
    """i64[n, 65]: the inputs are the first 64 bytes of each row, the labels the last 64."""
    count = (len(text) - 1) // SEQUENCE
    tokens = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64)
    return torch.from_numpy(numpy.stack([tokens[i * SEQUENCE : (i + 1) * SEQUENCE + 1] for i in range(count)]))


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to the minimum at the last step."""
    warmup = arguments.steps // 10 if arguments.warmup is None else arguments.warmup
    if step < warmup:
        return arguments.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, arguments.steps - warmup)
    return arguments.minimum_lr + 0.5 * (arguments.lr - arguments.minimum_lr) * (1 + math.cos(math.pi * progress))


def mean_loss(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Nats a byte."""
    logits = model(input_ids=rows[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, rows: torch.Tensor) -> float:
    total = sum(mean_loss(model, part).item() * len(part) for part in rows.split(64))
    return total / len(rows)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    text = TEXT.read_bytes()
    boundary = len(text) - int(len(text) * HELD_OUT_FRACTION)
    training, held_out = sequences(text[:boundary]), sequences(text[boundary:])
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(arguments.seed))

    model = build_model()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": arguments.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(arguments.beta1, arguments.beta2),
    )
    print(f"before step 0: held out {held_out_loss(model, held_out[:256]):.4f} (of 16 KiB)", flush=True)
    start = time.perf_counter()
    for step in range(arguments.steps):
        rows = training[order[step * arguments.batch : (step + 1) * arguments.batch]]
        loss = mean_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    seconds = time.perf_counter() - start
    tokens = arguments.steps * arguments.batch * SEQUENCE
    print(
        f"batch {arguments.batch}, steps {arguments.steps}, lr {arguments.lr}, beta2 {arguments.beta2}, "
        f"decay {arguments.weight_decay}, clip {arguments.clip}: held out {held_out_loss(model, held_out):.4f} nats a byte "
        f"after {tokens} tokens, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
