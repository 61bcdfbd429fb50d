"""Part losses: training on the GPU computes what it must.

1. PyTorch's 20 losses of every fixture in testdata/models, with AdamW and with SGD, within the CPU backend's bounds.
2. 200 steps of the README's GPT-2 on the King James Version beside the same steps on the processor, in f32 and in bf16.
3. Memory: what was planned for GPT-2 124M in f32, and what the driver says is taken. The benchmark does so in bf16.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from part import ROOT, Failed, Options, Report, memory_taken, need_package, parse, run
from trainyard import Running, need_device, planned_bytes, remove, train

need_package("numpy", "NumPy")
import numpy

MODELS = ROOT / "testdata/models"

ADAMW = ("--optimizer", "adamw", "--lr", "1e-3", "--weight-decay", "0.01", "--decay", "all")
SGD = ("--optimizer", "momentum:momentum=0.9", "--lr", "0.05")


@dataclass(frozen=True)
class Fixture:
    """An export and PyTorch's losses; the bounds are those of testing/models.rs for the CPU backend: how far a loss may be
    from PyTorch's in f32, for SGD, and for the first and the last ten of AdamW."""

    file: str
    model: str
    flags: tuple[str, ...] = ()
    sgd: float = 1e-4
    adamw: tuple[float, float] = (2e-5, 2e-5)


FIXTURES = [
    Fixture("mlp.dynamo", "mlp"),
    Fixture("gpt2.dynamo", "gpt2"),
    Fixture("llama.dynamo", "llama"),
    Fixture("bert.dynamo", "bert"),
    Fixture("mixtral.dynamo", "mixtral"),
    Fixture("t5.dynamo-dyn", "t5", ("--bind", "seq=32,dseq=24")),
    # Rounding grows in batch norms, and AdamW divides by it where gradients are small.
    Fixture("resnet.legacy-trainmode", "resnet-trainmode", sgd=1e-5, adamw=(5e-3, 5e-4)),
    Fixture("joined-loss.dynamo", "joined-loss"),
    Fixture("positives-loss.dynamo", "positives-loss"),
    Fixture("smoothed-loss.dynamo", "smoothed-loss"),
    Fixture("weighted-loss.dynamo", "weighted-loss"),
    Fixture("batch-loss.dynamo", "batch-loss"),
    Fixture("clamped-loss.dynamo", "clamped-loss"),
    Fixture("parted-loss.dynamo", "parted-loss"),
    Fixture("recorded-loss.dynamo", "recorded-loss"),
    Fixture("root-loss.dynamo", "root-loss"),
    Fixture("summed-loss.dynamo", "summed-loss"),
]

STEPS = 200
# A warm-up and clipping keep the run stable: how far apart two runs get then is rounding, not chance.
RUN = ("--microbatch", "8", "--steps", str(STEPS), "--lr", "1e-3", "--lr-schedule", "cosine:warmup=20", "--clip", "1")
# Beside the processor's losses in f32, relative: the largest difference of a step, and that of the mean of the last 50. On the
# processor itself other microbatches make 6e-8 and 2e-9, bf16 makes 1.6e-3 and 6e-5.
CLOSE = {"f32": (1e-3, 1e-4), "bf16": (1e-2, 1e-3)}
LAST = 50


@dataclass
class Losses:
    """The part."""

    report: Report

    @property
    def options(self) -> Options:
        """How it is run."""
        return self.report.options

    def train(self, model: str, name: str, *flags: str, device: str | None = None) -> list[float]:
        """The losses of a run whose folder is not kept."""
        folder = self.options.output / f"losses-{name}"
        metrics = train(self.options, model, folder, *flags, device=device)
        remove(folder)
        return [step["loss"] for step in metrics]

    def batch(self, fixture: Fixture) -> tuple[Path, int]:
        """The fixture's batch as data to train on, and how many samples it has."""
        arrays = numpy.load(MODELS / f"{fixture.model}.train.npz")
        inputs = {key.removeprefix("input."): arrays[key] for key in arrays.files if key.startswith("input.")}
        path = self.options.output / f"{fixture.model}.npz"
        numpy.savez(path, **inputs, labels=arrays["labels"])
        return path, len(arrays["labels"])

    def fixture(self, fixture: Fixture) -> None:
        """Both optimizers' losses."""
        expected = json.loads((MODELS / f"{fixture.model}.train.json").read_text())
        data, samples = self.batch(fixture)
        given = ("--train", str(data), "--labels-from", "given", "--microbatch", str(samples), "--steps", "20")
        for name, optimizer, bounds in (
            ("adamw", ADAMW, fixture.adamw),
            ("sgd_momentum", SGD, (fixture.sgd, fixture.sgd)),
        ):
            label = f"{fixture.file}, {name}: PyTorch's 20 losses"
            try:
                ours = self.train(f"models/{fixture.file}.onnx", fixture.model, *given, *optimizer, *fixture.flags)
            except Failed as failed:
                self.report.check(label, False, str(failed))
                continue
            apart = [abs(a - b) for a, b in zip(ours, expected[f"losses_{name}_f32"], strict=True)]
            worst = max(apart[:10]), max(apart[10:])
            passed = worst[0] <= bounds[0] and worst[1] <= bounds[1]
            found = f"within {worst[0]:.1e} and {worst[1]:.1e} of {bounds[0]:.0e} and {bounds[1]:.0e}"
            self.report.check(label, passed, found, losses=ours)
        data.unlink()

    def beside_processor(self) -> None:
        """200 steps on both."""
        model, flags = "gpt2-bytes.onnx", ("--train", str(ROOT / "testdata/kjv.txt"), *RUN)
        expected = self.train(model, "processor", *flags, device="cpu")
        for precision, more in (("f32", ()), ("bf16", ("--bf16",))):
            try:
                self.compare(precision, self.train(model, precision, *flags, *more), expected)
            except Failed as failed:
                self.report.check(f"{STEPS} steps in {precision} beside the processor's in f32", False, str(failed))

    def compare(self, precision: str, ours: list[float], expected: list[float]) -> None:
        """The losses of two runs."""
        largest = max(abs(a - b) / b for a, b in zip(ours, expected, strict=True))
        means = [sum(losses[-LAST:]) / LAST for losses in (ours, expected)]
        last = abs(means[0] - means[1]) / means[1]
        bounds = CLOSE[precision]
        self.report.check(
            f"{STEPS} steps in {precision} beside the processor's in f32",
            largest <= bounds[0] and last <= bounds[1],
            f"within {largest:.1e} of {bounds[0]:.0e}; the last {LAST} on average within {last:.1e} of {bounds[1]:.0e}",
            losses=ours,
        )

    def memory(self) -> None:
        """The plan of a large model beside what is taken."""
        before = memory_taken()
        name, tokens, sequence = "gpt2-124m", 8192, 1024
        flags = ("--microbatch", str(tokens // sequence), "--seq", str(sequence), "--init", "gpt2", "--train", "synthetic")
        folder = self.options.output / "losses-memory"
        with Running(self.options, f"bench/{name}.onnx", folder, *flags, "--precision", "fp32") as running:
            running.warm_up(3)
            planned, taken = planned_bytes(folder), memory_taken() - before
        remove(folder)
        self.report.check_memory(f"memory of {name} in f32", planned, taken)

    def run(self) -> None:
        """All of it."""
        need_device(self.options)
        for fixture in FIXTURES:
            self.fixture(fixture)
        self.beside_processor()
        if self.options.rehearse:
            self.report.note("memory: nothing to measure on the processor")
        else:
            self.memory()


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), lambda report: Losses(report).run()) else 1)
