#!/usr/bin/env python3
"""Random training runs, each beside the same run in PyTorch on one device.

    python testdata/scripts/families/runs.py FOLDER [--trainyard BINARY] [--first N] [--count N] [--jobs N]

A run has a file of FOLDER, where `families` has put its exports; an optimizer, weight decay and clipping, which PyTorch has too; and
microbatches, a mesh, a schedule, recomputation, offload, evaluation and a continued run, which change no numbers. Losses, evaluations
and weights of ten steps are compared. Run N is the same wherever the same files are exported. A line is printed for each difference,
and the exit code is 1 if there is one, or if most runs were refused.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from check import LOSSES, Check, brief, ran  # noqa: E402
from models import FAMILIES, slug  # noqa: E402
from reference import OPTIMIZERS, STEPS, Recipe, trained  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
# Axes of a mesh, and the samples that it computes at the same time.
MESHES = [("", 1), ("tp=2", 1), ("pp=2", 1), ("dp=2", 2), ("pp=2,dp=2", 2), ("tp=2,dp=2", 2), ("pp=2,tp=2", 1)]
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"]
OFFLOAD = ["optimizer", "gradients", "parameters,optimizer", "activations"]


@dataclass
class Case:
    """A random run of a file."""

    name: str
    variant: str
    recipe: Recipe
    flags: list[str]
    evaluates: bool
    resumes: bool

    def __str__(self):
        parts = [self.name, self.variant, str(self.recipe), *self.flags, "evaluated" * self.evaluates, "resumed" * self.resumes]
        return " ".join(part for part in parts if part)


def draw(folder, files, number):
    """Returns run `number`."""
    drawn = random.Random(number)
    name, variant = drawn.choice(files)
    family = FAMILIES[name]
    recipe = Recipe(drawn.choice(OPTIMIZERS), drawn.choice([0.0, 0.1]), drawn.choice([None, 0.5]))
    samples = len(torch.load(folder / f"{slug(name)}.{variant.split('-')[1]}.pt")["inputs"][0])
    # A loss of the module's own, and batch statistics, need not be the mean of the samples' losses.
    adds_up = family.loss != "own" and not family.training
    mesh, ranks = drawn.choice([own for own in MESHES if own[1] == 1 or adds_up and samples % own[1] == 0])
    least = [size for size in (1, 2, 4) if samples % (size * ranks) == 0] if adds_up else [samples]
    flags = ["--microbatch", str(drawn.choice(least)), "--global-batch", str(samples)]
    flags += ["--mesh", mesh] if mesh else []
    flags += ["--schedule", drawn.choice(SCHEDULES)] if "pp" in mesh and drawn.random() < 0.7 else []
    flags += ["--zero", str(drawn.randrange(1, 4))] if "dp" in mesh and drawn.random() < 0.5 else []
    flags += ["--sequence-parallel"] if "tp" in mesh and drawn.random() < 0.3 else []
    flags += ["--recompute", drawn.choice(["full", "selective"])] if drawn.random() < 0.4 else []
    flags += ["--offload", drawn.choice(OFFLOAD), "--offload-least", "1B"] if drawn.random() < 0.3 else []
    flags += ["--compress-activations", "masks,indices", "--compress-least", "1B"] if drawn.random() < 0.3 else []
    return Case(name, variant, recipe, flags, not family.training and drawn.random() < 0.4, drawn.random() < 0.3)


class Refused(Exception):
    """The program says that it cannot run the flags."""


class Run(Check):
    """A file that is trained with a case's flags, in a folder of its own."""

    def __init__(self, binary, folder, number, case):
        super().__init__(binary, folder, case.name, FAMILIES[case.name], case.variant)
        self.number, self.case = number, case

    @property
    def run(self):
        return self.folder / f"run-{self.number}"

    def checks(self):
        """Compares the steps, unless the exporter has folded parameters that PyTorch trains."""
        if not self.start():
            return
        if all(key in self.initial and not self.other(key) for key in self.folded):
            self.steps_check("run", self.case.recipe)
        self.notes["compared"] = "run" in self.notes

    def compile(self, optimizer, steps):
        """Trains on the one batch, in two parts if the case says so. The step of length zero has no flags."""
        if steps != STEPS:
            return super().compile(optimizer, steps)
        batch = self.folder / f"{slug(self.name)}.npz"
        arguments = [self.binary, "compile", self.path, *self.flags, "--train", batch, *optimizer, *self.case.flags]
        arguments += ["--eval", batch, "--eval-every", STEPS // 2] if self.case.evaluates else []
        arguments += ["--threads", 1, "--device", "cpu", "-o", self.run]
        parts = [[*arguments, "--steps", STEPS, "--force"]]
        if self.case.resumes:
            parts = [[*arguments, "--steps", STEPS // 2, "--force"], [*arguments, "--steps", STEPS, "--resume"]]
        for part in parts:
            code, output, self.messages = ran(part)
            self.messages += output
            if code == 2:
                raise Refused(brief(self.messages))
            if code != 0:
                self.messages = f"error: exit code {code}, {brief(self.messages)}"
                return None
        metrics = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        self.evaluations_check(metrics)
        losses = [entry["loss"] for entry in metrics if "loss" in entry]
        return losses, load_file(self.run / "model.safetensors")

    def evaluations_check(self, metrics):
        """The batch's loss between two steps is the next step's, if nothing is random."""
        evals = {entry["step"]: entry["eval_loss"] for entry in metrics if entry.get("eval_loss") is not None}
        if self.case.evaluates and STEPS // 2 not in evals:
            self.failures.append(f"no evaluation after step {STEPS // 2}: {evals}")
        wanted = trained(self.folder, self.name, self.family, self.weights, self.case.recipe)
        for step, found in evals.items():
            if step < STEPS:
                own, bound = wanted["losses"][step], max(LOSSES, 3 * wanted["noise"][0])
                if not abs(found - own) <= bound * abs(own):
                    self.failures.append(f"eval loss {found} after {step} steps, PyTorch's is {own}")


def is_whole(name, path):
    """Whether a file was exported, with all of the module's meaning."""
    exporter, variant = path.name.split(".")[1].split("-")[0], path.name.split(".")[1]
    exported = json.loads(path.with_suffix(".json").read_text())["error"] is None
    return exported and not any(part in FAMILIES[name].lost for part in (exporter, variant))


def outcome(arguments):
    """Runs a case, and returns how it ended, with the lines of its differences."""
    binary, folder, number, case = arguments
    check = Run(binary, folder, number, case)
    try:
        result = check.result()
    except Refused as refused:
        return "refused", [], f"{number}: {case}: {refused}"
    except Exception as error:  # a fault of this script
        return "failed", [f"{number}: {case}: script: {error!r}"], ""
    lines = [f"{number}: {case}: {line}" for line in result["failures"]]
    return "failed" if lines else "compared" if result.get("compared") else "folded", lines, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary to check")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first run's number")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--refusals", action="store_true", help="print each refusal")
    arguments = parser.parse_args()
    folder = arguments.folder
    exported = [(name, path) for name in FAMILIES for path in sorted(folder.glob(f"{slug(name)}.*.onnx"))]
    files = [(name, path.name.split(".")[1]) for name, path in exported if is_whole(name, path)]
    numbers = range(arguments.first, arguments.first + arguments.count)
    work = [(arguments.trainyard, folder, number, draw(folder, files, number)) for number in numbers]
    outcomes, differences = Counter(), []
    with multiprocessing.Pool(arguments.jobs) as pool:
        for kind, lines, refusal in pool.imap(outcome, work):
            outcomes[kind] += 1
            differences += lines
            if refusal and arguments.refusals:
                print(refusal, flush=True)
    print(f"{arguments.count} runs:", ", ".join(f"{count} {kind}" for kind, count in outcomes.most_common()))
    print("\n".join(differences))
    sys.exit(bool(differences) or 2 * outcomes["compared"] < arguments.count)


if __name__ == "__main__":
    main()
