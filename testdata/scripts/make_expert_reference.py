#!/usr/bin/env python3
"""Mixtures of experts in numpy, written from their papers: what `passes/tests/transforms/experts.rs` compares with.

One feed-forward block with a residual connection becomes a mixture. Everything is a loop over tokens and in f64. Gradients are
central differences of the objective: the routing is constant around each point. Writes testdata/experts.json.

usage: python testdata/scripts/make_expert_reference.py
"""

import json
from pathlib import Path

import numpy as np

GROUPS, TOKENS, FEATURES, HIDDEN, EXPERTS = 2, 6, 4, 8, 4
SEED = 3
STEP = 1e-5

rng = np.random.default_rng(7)
INPUTS = {
    "x": rng.normal(size=(GROUPS, TOKENS, FEATURES)),
    "labels": rng.normal(size=(GROUPS, TOKENS, FEATURES)),
}
STATES = {
    "positions": rng.normal(size=(TOKENS, FEATURES)),
    "router.weight": rng.normal(size=(FEATURES, EXPERTS)),
    "experts.up.weight": rng.normal(size=(EXPERTS, FEATURES, HIDDEN)),
    "experts.up.bias": rng.normal(size=(EXPERTS, HIDDEN)),
    "experts.down.weight": rng.normal(size=(EXPERTS, HIDDEN, FEATURES)),
    "experts.down.bias": rng.normal(size=(EXPERTS, FEATURES)),
}


def uniform(draw: int, sample: int, element: int) -> float:
    """The number of an element of a sample (Philox4x32-10, Salmon et al. 2011)."""
    stream = 0xCBF29CE484222325
    for byte in b"dropout":
        stream = (stream ^ byte) * 0x100000001B3 % 2**64
    key = SEED ^ stream
    keys = [key % 2**32, key >> 32]
    block = element // 4
    a, b, c, d = block % 2**32, (block >> 32) % 2**16 | (sample >> 32) % 2**16 << 16, sample % 2**32, draw
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ keys[0], second % 2**32, first >> 32 ^ d ^ keys[1], first % 2**32
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return ([a, b, c, d][element % 4] >> 8) / 2**24


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max())
    return exponentials / exponentials.sum()


def expert(states: dict, number: int, token: np.ndarray) -> np.ndarray:
    hidden = token @ states["experts.up.weight"][number] + states["experts.up.bias"][number]
    hidden = hidden / (1 + np.exp(-hidden))
    return hidden @ states["experts.down.weight"][number] + states["experts.down.bias"][number]


def top(scores: np.ndarray, count: int) -> list:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


class Report:
    """The scalars of a step."""

    def __init__(self) -> None:
        self.balance, self.penalty, self.dropped, self.choices = 0.0, 0.0, 0, 0
        self.counts = np.zeros(EXPERTS)


def group(states: dict, options: dict, number: int, x: np.ndarray, report: Report) -> np.ndarray:
    """The results of the tokens of a group."""
    y = np.zeros_like(x)
    logits = []
    biases = np.array(options.get("biases", [0.0] * EXPERTS))
    for t, token in enumerate(x):
        jitter = options.get("jitter", 0.0)
        if jitter:
            noise = [uniform(0, number, t * FEATURES + i) for i in range(FEATURES)]
            token = token * (1 - jitter + 2 * jitter * np.array(noise))
        logits.append(token @ states["router.weight"])
    # DeepSeek-AI, arXiv 2412.19437, equations 13 to 18: affinities are sigmoids, and probabilities the affinities over their sum.
    affinities = [1 / (1 + np.exp(-row)) if options.get("sigmoid") else softmax(row) for row in logits]
    probabilities = [row / row.sum() for row in affinities]
    tokens = len(x)
    report.penalty += options.get("z", 0.0) * np.mean([np.log(np.exp(row).sum()) ** 2 for row in logits]) / GROUPS
    if options.get("by_experts"):
        # Zhou et al., arXiv 2202.09368, section 3.2: S = softmax(X W), G and I = top-k of Sᵀ.
        slots = min(tokens, max(1, int(np.ceil(tokens * options["capacity"] / EXPERTS))))
        scores = np.array(probabilities)
        for e in range(EXPERTS):
            for t in top(scores[:, e], slots):
                y[t] += scores[t, e] * expert(states, e, x[t])
        return y
    ranked = [row + biases for row in affinities]
    if "groups" in options:
        # DeepSeek-AI, arXiv 2412.19437, section 2.1.2: the groups with the largest sums of their two highest scores.
        taken, all_groups = options["groups"]
        size = EXPERTS // all_groups
        ranked = []
        for row in [row + biases for row in affinities]:
            sums = [sum(sorted(row[i * size : (i + 1) * size])[-2:]) for i in range(all_groups)]
            best = top(sums, taken)
            ranked.append([p if i // size in best else -np.inf for i, p in enumerate(row)])
    chosen = [top(row, options["top"]) for row in ranked]
    gates = [np.array([row[e] for e in choice]) for row, choice in zip(affinities, chosen)]
    if options["renormalize"]:
        gates = [gate / gate.sum() for gate in gates]
    slots = None
    if options.get("capacity"):
        slots = min(tokens, max(1, int(np.ceil(tokens * options["top"] * options["capacity"] / EXPERTS))))
    filled = [0] * EXPERTS
    for k in range(options["top"]):
        for t in range(tokens):
            e = chosen[t][k]
            # Lepikhin et al., arXiv 2006.16668, algorithm 1: the second choice with the probability 2 · gate.
            if options.get("random_second") and k == 1 and not uniform(0, number, t) < 2 * gates[t][1]:
                continue
            report.choices += 1
            filled[e] += 1
            if slots is not None and filled[e] > slots:
                report.dropped += 1
                continue
            y[t] += gates[t][k] * expert(states, e, x[t])
    counted = 1 if options.get("random_second") else options["top"]
    counts = np.zeros(EXPERTS)
    for choice in chosen:
        for e in choice[:counted]:
            counts[e] += 1
    report.counts += counts
    means = np.mean(probabilities, axis=0)
    # Fedus et al., arXiv 2101.03961, equation 4: N · Σ f · P. GShard divides by the number of experts.
    product = (counts / (tokens * counted) * means).sum()
    report.balance += EXPERTS * product / GROUPS
    scale = 1 / EXPERTS if options.get("random_second") else EXPERTS
    report.penalty += options.get("balance", 0.0) * scale * product / GROUPS
    return y


def step(states: dict, options: dict) -> tuple:
    """The loss, what is minimised, the results, and the report."""
    report = Report()
    x = INPUTS["x"] + states["positions"]
    y = np.array([x[g] + group(states, options, g, x[g], report) for g in range(GROUPS)])
    loss = np.mean((y - INPUTS["labels"]) ** 2)
    return loss, loss + report.penalty, y, report


def gradients(options: dict) -> dict:
    found = {}
    for name, values in STATES.items():
        gradient = np.zeros_like(values)
        for index in np.ndindex(values.shape):
            sides = []
            for sign in (1, -1):
                moved = values.copy()
                moved[index] += sign * STEP
                sides.append(step({**STATES, name: moved}, options)[1])
            gradient[index] = (sides[0] - sides[1]) / (2 * STEP)
        found[name] = gradient
    return found


def flat(values: dict) -> dict:
    return {name: np.asarray(value).ravel().tolist() for name, value in values.items()}


RUNS = [
    ("experts=4, balance=0", {"top": 2, "renormalize": True}),
    ("experts=4, top=3, renormalize=off, balance=0.5, z=0.1", {"top": 3, "renormalize": False, "balance": 0.5, "z": 0.1}),
    ("experts=4, capacity=1, balance=0.5", {"top": 2, "renormalize": True, "capacity": 1.0, "balance": 0.5}),
    (
        "switch, experts=4, balance=0.5, jitter=0.1, capacity=1",
        {"top": 1, "renormalize": False, "capacity": 1.0, "balance": 0.5, "jitter": 0.1},
    ),
    (
        "gshard, experts=4, balance=0.5",
        {"top": 2, "renormalize": True, "capacity": 1.0, "balance": 0.5, "random_second": True},
    ),
    ("experts=4, groups=1/2, balance=0", {"top": 2, "renormalize": True, "groups": (1, 2)}),
    (
        "experts=4, top=3, sigmoid, bias=0.01, balance=0.5",
        {"top": 3, "renormalize": True, "sigmoid": True, "balance": 0.5, "rate": 0.01, "biases": [0.0, 0.02, -0.03, 0.3]},
    ),
    (
        "experts=4, bias=0.125, groups=1/2",
        {"top": 2, "renormalize": True, "groups": (1, 2), "rate": 0.125, "biases": [-2.0, -1.75, -1.75, -2.25]},
    ),
    ("expert-choice, experts=4, z=0.1", {"by_experts": True, "capacity": 2.0, "z": 0.1}),
]


def main() -> None:
    runs = []
    for text, options in RUNS:
        loss, _, y, report = step(STATES, options)
        run = {"moe": text, "loss": loss, "y": y.ravel().tolist(), "gradients": flat(gradients(options))}
        if not options.get("by_experts"):
            run["balance"] = report.balance
            run["load"] = report.counts.tolist()
        if "rate" in options:
            # Wang et al., arXiv 2408.15664, algorithm 1: b + u · sign(mean - c).
            before = np.array(options.get("biases", [0.0] * EXPERTS))
            run["rate"] = options["rate"]
            run["bias"] = before.tolist()
            run["bias_after"] = (before + options["rate"] * np.sign(report.counts.mean() - report.counts)).tolist()
        if options.get("capacity") and not options.get("by_experts"):
            run["dropped"] = report.dropped / report.choices
            assert report.dropped > 0, text
        runs.append(run)
    path = Path(__file__).parent.parent / "experts.json"
    path.write_text(json.dumps({"seed": SEED, "inputs": flat(INPUTS), "states": flat(STATES), "runs": runs}) + "\n")
    print(f"wrote {path}: {[run.get('dropped') for run in runs]}")


if __name__ == "__main__":
    main()
