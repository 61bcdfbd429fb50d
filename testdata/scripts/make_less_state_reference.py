#!/usr/bin/env python3
"""Steps of optimizers with less state than Adam, in f64, written from their papers: `passes/tests/transforms/less_state.rs`
compares with them.

Lion (arXiv 2302.06675, program 1), Adafactor (arXiv 1804.04235, algorithms 4 to 6, with the first moment of Tensor2Tensor and
the decoupled weight decay of PyTorch), and Adam with block-wise dynamic quantization of its moments (arXiv 2110.02861; the
values of codes as bitsandbytes makes them). Parameters and gradients are drawn by SplitMix64, which the test draws by as well.
Writes testdata/less_state.json: of each tensor its sum and about SAMPLES elements, after the steps RECORDED.

usage: python testdata/scripts/make_less_state_reference.py
"""

import json
from pathlib import Path

import numpy as np

STEPS = 20
RECORDED = (1, 10, STEPS)
SAMPLES = 24
SMALL = {"w": (3, 4, 5), "m": (6, 5), "b": (7,)}
# A row of three blocks, of which the last is short; rows of 18 blocks, made of three dims; too small for 8 bits.
LARGE = {"w": (10, 600), "k": (64, 8, 9), "b": (600,)}
BLOCK, LEAST = 256, 4096


class Draws:
    """Numbers between -1 and 1 by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), cubed: many are small, as gradients are."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def number(self) -> float:
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        x = 2.0 * ((z >> 11) / float(1 << 53)) - 1.0
        return x * x * x

    def tensor(self, shape) -> np.ndarray:
        return np.array([self.number() for _ in range(int(np.prod(shape)))]).reshape(shape)


def lion(lr=0.1, beta1=0.9, beta2=0.99, decay=0.0):
    def step(t, x, g, state):
        m = state.setdefault("lion.m", np.zeros_like(x))
        direction = np.sign(beta1 * m + (1 - beta1) * g)
        state["lion.m"] = beta2 * m + (1 - beta2) * g
        return x - lr * (direction + decay * x)

    return step


def rms(x) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def adafactor(lr=0.01, relative=True, beta1=0.0, decay_rate=0.8, threshold=1.0, eps1=1e-30, eps2=1e-3, decay=0.0):
    def step(t, x, g, state):
        beta2 = 1 - t**-decay_rate
        squares = g * g + eps1
        if x.ndim >= 2:
            r = state.setdefault("adafactor.r", np.zeros(x.shape[:-1]))
            c = state.setdefault("adafactor.c", np.zeros(x.shape[:-2] + x.shape[-1:]))
            r = beta2 * r + (1 - beta2) * squares.mean(axis=-1)
            c = beta2 * c + (1 - beta2) * squares.mean(axis=-2)
            state["adafactor.r"], state["adafactor.c"] = r, c
            v = r[..., :, None] * c[..., None, :] / r.mean(axis=-1)[..., None, None]
        else:
            v = state.setdefault("adafactor.v", np.zeros_like(x))
            v = state["adafactor.v"] = beta2 * v + (1 - beta2) * squares
        u = g / np.sqrt(v)
        u = u / max(1.0, rms(u) / threshold)
        alpha = max(eps2, rms(x)) * min(lr, 1 / np.sqrt(t)) if relative else lr
        update = alpha * u
        if beta1 > 0:
            m = state.setdefault("adafactor.m", np.zeros_like(x))
            update = state["adafactor.m"] = beta1 * m + (1 - beta1) * update
        return x * (1 - lr * decay) - update

    return step


def create_dynamic_map(signed: bool) -> np.ndarray:
    """bitsandbytes/functional.py, with `max_exponent_bits=7, total_bits=8`."""
    data = []
    for i in range(7):
        fraction_items = 2**i + 1 if signed else 2 ** (i + 1) + 1
        boundaries = np.linspace(0.1, 1, fraction_items)
        means = (boundaries[:-1] + boundaries[1:]) / 2.0
        data += (10.0 ** (i - 6) * means).tolist()
        if signed:
            data += (-(10.0 ** (i - 6)) * means).tolist()
    data += [0.0, 1.0]
    assert len(data) == 256
    return np.sort(np.array(data))


MAPS = {"m": create_dynamic_map(True), "v": create_dynamic_map(False)}


def row_length(shape) -> int:
    """The elements of a row: of the fewest last dims that have a whole block, or of all."""
    length = 1
    for size in reversed(shape):
        if length >= BLOCK:
            break
        length *= size
    return length


def blocks_of(shape):
    row = row_length(shape)
    for start in range(0, int(np.prod(shape)), row):
        for first in range(start, start + row, BLOCK):
            yield slice(first, min(first + BLOCK, start + row))


def quantize(kind: str, x: np.ndarray):
    """Indices into the map, and the largest magnitude of each block."""
    flat, values = x.ravel(), MAPS[kind]
    indices, largest = np.zeros(flat.size, dtype=int), []
    for block in blocks_of(x.shape):
        most = np.abs(flat[block]).max()
        largest.append(most)
        indices[block] = np.abs(values[None, :] - (flat[block] / most)[:, None]).argmin(axis=1)
    return indices, np.array(largest)


def dequantize(kind: str, indices: np.ndarray, largest: np.ndarray, shape) -> np.ndarray:
    flat = MAPS[kind][indices]
    for block, most in zip(blocks_of(shape), largest):
        flat[block] *= most
    return flat.reshape(shape)


def adam_8bit(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, decoupled=True):
    def step(t, x, g, state):
        small = x.size < LEAST
        if not state:
            m, v = np.zeros_like(x), np.zeros_like(x)
        elif small:
            m, v = state["adam.m"], state["adam.v"]
        else:
            m, v = (dequantize(kind, *state[kind], x.shape) for kind in ("m", "v"))
        if decoupled:
            x = x * (1 - lr * decay)
        else:
            g = g + decay * x
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        if small:
            state["adam.m"], state["adam.v"] = m, v
        else:
            state["m"], state["v"] = quantize("m", m), quantize("v", v)
            # The program's code is the distance from the code of zero, in 8 bits.
            for kind in ("m", "v"):
                zero = int(np.flatnonzero(MAPS[kind] == 0)[0])
                state[f"adam_8bit.{kind}"] = (state[kind][0] - zero) % 256
                state[f"adam_8bit.{kind}.largest"] = state[kind][1]
        return x - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)

    return step


RUNS = [
    ("lion, lr=0.1", SMALL, lion()),
    ("lion, beta1=0.8, beta2=0.95, lr=0.1, weight-decay=0.3", SMALL, lion(beta1=0.8, beta2=0.95, decay=0.3)),
    ("adafactor, lr=0.01", SMALL, adafactor()),
    ("adafactor, lr=0.5, weight-decay=0.1", SMALL, adafactor(lr=0.5, decay=0.1)),
    (
        "adafactor, relative=off, beta1=0.9, decay-rate=0.5, clip-threshold=0.25, eps1=1e-6, lr=0.01",
        SMALL,
        adafactor(relative=False, beta1=0.9, decay_rate=0.5, threshold=0.25, eps1=1e-6),
    ),
    ("adafactor, beta1=0.5, eps2=2.0, lr=0.01", SMALL, adafactor(beta1=0.5, eps2=2.0)),
    ("adamw, moments=8bit, lr=0.01, weight-decay=0.1", LARGE, adam_8bit(decay=0.1)),
    (
        "adam, moments=8bit, beta1=0.8, beta2=0.95, eps=0.001, lr=0.01, weight-decay=0.1",
        LARGE,
        adam_8bit(beta1=0.8, beta2=0.95, eps=1e-3, decay=0.1, decoupled=False),
    ),
]


def recorded(x: np.ndarray) -> dict:
    flat = np.asarray(x, dtype=float).ravel()
    every = -(-flat.size // SAMPLES)
    return {"sum": float(flat.sum()), "samples": flat[::every].tolist()}


def run(passed: str, shapes: dict, step) -> dict:
    draws = Draws(7)
    parameters = {name: draws.tensor(shape) for name, shape in shapes.items()}
    states = {name: {} for name in shapes}
    records = []
    for t in range(1, STEPS + 1):
        for name, shape in shapes.items():
            parameters[name] = step(float(t), parameters[name], draws.tensor(shape), states[name])
        if t in RECORDED:
            record = {name: recorded(value) for name, value in parameters.items()}
            for name, of_parameter in states.items():
                kept = {kind: value for kind, value in of_parameter.items() if kind not in ("m", "v")}
                record.update({f"{kind}({name})": recorded(value) for kind, value in kept.items()})
            records.append({"step": t, "values": record})
    return {"pass": f"optimizer({passed}, decay-all)", "shapes": list(shapes.items()), "records": records}


reference = {"seed": 7, "steps": STEPS, "samples": SAMPLES, "runs": [run(*arguments) for arguments in RUNS]}
path = Path(__file__).resolve().parent.parent / "less_state.json"
path.write_text(json.dumps(reference, indent=None, separators=(",", ":")).replace('{"pass"', '\n{"pass"') + "\n")
