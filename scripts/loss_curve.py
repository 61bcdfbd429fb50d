#!/usr/bin/env python3
"""Draws the losses of a run as an SVG picture.

    python3 scripts/loss_curve.py RUN/metrics.jsonl > curve.svg

The line is the training loss, averaged over groups of steps so that the file stays small. The circles are the losses of evaluations.
"""

import json
import sys

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 14, 36
POINTS = 150


def averaged(losses: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` means of neighbouring (step, loss) pairs."""
    size = max(1, -(-len(losses) // POINTS))
    groups = [losses[start : start + size] for start in range(0, len(losses), size)]
    return [tuple(sum(column) / len(group) for column in zip(*group)) for group in groups]


def svg(rows: list[dict]) -> str:
    # Files of versions that counted steps from 0 do not say how they count.
    if not any("counting" in row for row in rows):
        rows = [{**row, "step": row["step"] + 1} for row in rows]
    training = averaged([(row["step"], row["loss"]) for row in rows if "loss" in row])
    evaluations = [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]
    last = max(step for step, _ in training + evaluations)
    top = max(loss for _, loss in training + evaluations)
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda loss: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for loss in range(int(top) + 1):
        lines.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for quarter in range(5):
        step = last * quarter // 4
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in training)
    lines.append(f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>')
    lines += [f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3.5" fill="#dc2626"/>' for step, loss in evaluations]
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{TOP + 10}" text-anchor="end" fill="#2563eb">training loss</text>')
    if evaluations:
        lines.append(f'<text x="{WIDTH - RIGHT}" y="{TOP + 26}" text-anchor="end" fill="#dc2626">loss on held-out data</text>')
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as metrics:
        print(svg([json.loads(line) for line in metrics]))
