"""Parts 124m, 350m, 1.5b, llama: tokens a second, MFU and memory beside the machine's own PyTorch.

All contenders have the same model, batch and sequence (models.py; peer.py says what PyTorch does; `trainyard --bf16` computes in
bf16 with f32 masters). Nothing is recomputed on either side. Each contender is a process of its own and has the GPU to itself:
it starts, warms up, is measured in bursts of some seconds, and ends. So the largest model fits if the largest contender does, and
a contender that fails takes nothing from the others: its row says why.

Comparisons stay fair by their order: each contender has its turn, Trainyard first, then each has a second turn in reverse order,
Trainyard last, as long as there is time. A GPU that grows warmer or slower meanwhile does so for all. torch.compile finds its
kernels of the first turn on disk. The median of all bursts counts; Trainyard's medians of its two turns show how steady the GPU
was.
"""

import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from part import GIB, Ended, Failed, OutOfTime, Report, Unable, answer, memory_taken, need_package, parse, run, table
from trainyard import Running, finish, need_device, planned_bytes, read_metrics, remove, tail, train

need_package("torch", "PyTorch")
import gpus
import peer
import torch
from cases import Timing, case_of, timing_of
from peer import Visit

# Parts whose timeline is taken: their checkpoint, which ends a run that is not killed, is written in seconds.
WITH_TIMELINE = ("124m", "350m")
# A compiled contender is not begun the first time with less time left than this, and any other with less than EAGER_SECONDS.
COMPILE_SECONDS = {"124m": 40, "350m": 60, "1.5b": 110, "llama": 50}
EAGER_SECONDS = 15
# The timeline is left out with less time left.
TIMELINE_SECONDS = 30
# Loss of a model that knows nothing, within this many nats.
NOTHING_KNOWN = 1.0
# Plants faults in contenders, to rehearse: `eager autocast=raise, compiled bf16=die`; `trainyard=raise`.
PLANTED = dict(pair.strip().split("=") for pair in os.environ.get("PLANT", "").split(",") if pair.strip())


class OutOfMemory(Failed):
    """A contender needs more memory than there is, which is a result, not a fault."""


class Contender(ABC):
    """A program in a precision at one length of sequence, and what its turns have found."""

    name: str
    precision: str

    def __init__(self, sequence: "Sequence"):
        self.sequence = sequence
        # Tokens a second, a list for each turn.
        self.turns: list[list[float]] = []
        self.first_loss: float | None = None
        self.peak_allocated = 0
        self.peak_taken = 0
        # Why it was ended or left out.
        self.error: str | None = None
        self.seconds: float | None = None

    @property
    def rates(self) -> list[float]:
        """Tokens a second in each burst."""
        return [rate for turn in self.turns for rate in turn]

    @property
    def rate(self) -> float | None:
        """Tokens a second."""
        return statistics.median(self.rates) if self.rates else None

    def least_seconds(self) -> float:
        """A turn is not begun with less time left."""
        return EAGER_SECONDS if self.seconds is None else self.seconds

    def turn(self, limit: float) -> None:
        """Starts, measures and ends it. What was measured is kept, however it ends."""
        began = time.monotonic()
        self.turns.append([])
        try:
            self.measure(0 if self.sequence.options.rehearse else memory_taken(), limit)
        finally:
            self.seconds = time.monotonic() - began

    def burst(self, steps: int, seconds: float) -> None:
        """Takes down a burst."""
        self.turns[-1].append(self.sequence.tokens * steps / seconds)

    @abstractmethod
    def measure(self, taken_before: int, limit: float) -> None:
        """A turn of at most so many seconds, before which so many bytes of the GPU were in use; raises what ended it early."""


class Trainyard(Contender):
    """The binary, whose bursts are counted by its metrics."""

    name, precision = "Trainyard", "bf16"

    def measure(self, taken_before: int, limit: float) -> None:
        sequence, timing = self.sequence, self.sequence.timing
        options = dataclasses.replace(sequence.options, deadline=time.monotonic() + limit)
        if "trainyard" in PLANTED:
            raise Failed("planted")
        with Running(options, f"bench/{sequence.case.name}.onnx", sequence.folder, *sequence.flags()) as running:
            running.warm_up(timing.warm_steps)
            self.first_loss = read_metrics(sequence.folder)[0]["loss"]
            self.peak_allocated = planned_bytes(sequence.folder)
            for _ in range(timing.rounds):
                self.burst(*running.burst(timing.burst_seconds, timing.least_steps))
            if not options.rehearse:
                self.peak_taken = max(self.peak_taken, memory_taken() - taken_before)


class PyTorch(Contender):
    """peer.py as a process."""

    def __init__(self, sequence: "Sequence", precision: str, compiled: bool):
        super().__init__(sequence)
        self.precision, self.compiled = precision, compiled
        self.kind = "compiled" if compiled else "eager"
        self.name = f"PyTorch {self.kind}"

    def least_seconds(self) -> float:
        if self.seconds is None and self.compiled and not self.sequence.options.rehearse:
            return COMPILE_SECONDS[self.sequence.options.part]
        return super().least_seconds()

    def measure(self, taken_before: int, limit: float) -> None:
        sequence, timing = self.sequence, self.sequence.timing
        options = sequence.options
        # Behind the name of the run's folder, and with the number of the turn.
        log = sequence.folder.with_name(f"{sequence.folder.name}-{self.kind}-{self.precision}-{len(self.turns)}.log")
        results = log.with_suffix(".jsonl")
        results.unlink(missing_ok=True)
        visit = Visit(
            model=sequence.case.name,
            precision=self.precision,
            compiled=self.compiled,
            batch=sequence.batch,
            sequence=sequence.sequence,
            device="cpu" if options.rehearse else "cuda",
            results=str(results),
            rounds=timing.rounds,
            burst_seconds=timing.burst_seconds,
            least_steps=timing.least_steps,
            taken_before=taken_before,
            trace=self.trace(),
            planted=PLANTED.get(f"{self.kind} {self.precision}"),
        )
        arguments = [sys.executable, peer.__file__, json.dumps(dataclasses.asdict(visit))]
        try:
            status = finish(arguments, log, limit)
        except subprocess.TimeoutExpired:
            self.take_down(results)
            raise OutOfTime(f"ended after {limit:.0f} s: the time was up\n{tail(log)}") from None
        self.take_down(results)
        if status < 0:
            raise Failed(f"ended by {signal.Signals(-status).name}\n{tail(log)}")
        if status > 0:
            raise Failed(f"exit status {status}\n{tail(log)}")

    def take_down(self, results: Path) -> None:
        """Reads what the process wrote; raises the exception that it tells of."""
        lines = results.read_text().split("\n")[:-1] if results.exists() else []
        for found in map(json.loads, lines):
            if "error" in found:
                raise (OutOfMemory if found["of_memory"] else Failed)(found["error"])
            if "first_loss" in found:
                self.first_loss = found["first_loss"]
            else:
                self.burst(found["steps"], found["seconds"])
                self.peak_allocated = max(self.peak_allocated, found.get("allocated", 0))
                self.peak_taken = max(self.peak_taken, found.get("taken", 0))

    def trace(self) -> str | None:
        """The file for the kernels of a step, of one contender in its first turn."""
        sequence = self.sequence
        is_first = sequence.sequence == sequence.options.sequences[0] and len(self.turns) == 1
        if is_first and self.compiled and self.precision == "bf16":
            return str(sequence.options.output / f"{sequence.options.part}-pytorch.trace.json")
        return None


class Sequence:
    """The contenders at one length of sequence."""

    def __init__(self, report: Report, sequence: int, kept_seconds: float):
        self.report, self.options = report, report.options
        self.case, self.sequence = case_of(self.options), sequence
        self.batch = max(1, self.case.tokens // sequence)
        self.timing: Timing = timing_of(self.options)
        # What is left of the part's time then belongs to the next sequences.
        self.kept_seconds = kept_seconds
        self.folder = self.options.output / f"{self.options.part}-{sequence}"
        self.ours = Trainyard(self)
        peers = [PyTorch(self, precision, compiled) for compiled in (False, True) for precision in ("autocast", "bf16")]
        self.contenders: list[Contender] = [self.ours, *peers]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def label(self) -> str:
        """For checks and notes."""
        return f"{self.case.name}, sequence {self.sequence}"

    def seconds_left(self) -> float:
        """For this sequence."""
        return self.options.seconds_left() - self.kept_seconds

    def flags(self) -> list[str]:
        """Of `trainyard compile`."""
        shape = ["--microbatch", str(self.batch), "--seq", str(self.sequence)]
        optimizer = ["--optimizer", "adamw", "--lr", str(peer.LEARNING_RATE), "--weight-decay", str(peer.WEIGHT_DECAY)]
        return [*shape, *optimizer, "--bf16", "--init", "gpt2", "--train", "synthetic"]

    def run(self) -> None:
        """Measures all, and writes rows, also if the time is up."""
        try:
            for contender, kept in self.order():
                self.turn(contender, kept)
        finally:
            self.write_rows()
        if self.ours.rates:
            self.write_prediction()
            self.write_timeline()

    def order(self) -> Iterator[tuple[Contender, float]]:
        """Turns, and the seconds that each leaves to those after it."""
        for i, contender in enumerate(self.contenders):
            yield contender, EAGER_SECONDS * (len(self.contenders) - i - 1)
        # Trainyard has the last turn in any case.
        for contender in reversed(self.contenders):
            if contender.error is None and contender.rates:
                yield contender, 0 if contender is self.ours or self.ours.error else 1.2 * self.ours.least_seconds()

    def turn(self, contender: Contender, kept: float) -> None:
        """A turn of a contender, if there is time. All but too little memory and too little time is a fault."""
        label, is_first = f"{self.label}: {contender.name}, {contender.precision}", not contender.turns
        limit = self.seconds_left() - kept
        if limit < contender.least_seconds():
            self.report.note(f"{label}: {'left out' if is_first else 'no second turn'}, the time is short")
            if is_first:
                contender.error = "left out, the time was short"
            return
        try:
            contender.turn(limit)
        except (OutOfMemory, OutOfTime) as failed:
            contender.error = str(failed)
            self.report.note(f"{label}: {failed}")
        except Ended as ended:
            contender.error = str(ended)
            raise
        except Exception as failed:
            contender.error = str(failed) or type(failed).__name__
            self.report.check(label, False, contender.error)
        if contender is self.ours and is_first:
            self.check()
        if contender.turns[-1]:
            rate = statistics.median(contender.turns[-1])
            print(f"       {label}: loss {contender.first_loss:.4f}, {rate:,.0f} tokens/s", flush=True)

    def check(self) -> None:
        """What Trainyard computes and takes."""
        ours = self.ours
        if ours.first_loss is not None:
            nothing = math.log(self.case.config.vocabulary)
            found = f"{ours.first_loss:.4f}; the logarithm of the vocabulary is {nothing:.4f}"
            self.report.check(f"{self.label}: first loss", abs(ours.first_loss - nothing) < NOTHING_KNOWN, found)
        if ours.peak_taken:
            self.report.check_memory(f"{self.label}: memory as planned", ours.peak_allocated, ours.peak_taken)

    def write_rows(self) -> None:
        """A row for each contender, with Trainyard's ratio to it, and the checks."""
        ours, peak = self.ours, gpus.peak_flops()
        flops = self.case.config.flops_per_token(self.sequence)
        for contender in self.contenders:
            rate, allocated = contender.rate, contender.peak_allocated
            self.report.rows.append({
                "model": self.case.name,
                "sequence": self.sequence,
                "batch": self.batch,
                "program": contender.name,
                "precision": contender.precision,
                "tokens_per_s": rate,
                "turns": contender.turns,
                "mfu": rate and peak and flops * rate / peak,
                "allocated_bytes": allocated or None,
                "taken_bytes": contender.peak_taken or None,
                "speed_ratio": rate and ours.rate and ours.rate / rate,
                "memory_ratio": allocated and ours.peak_allocated and ours.peak_allocated / allocated or None,
                "error": contender.error,
            })
        medians = [f"{statistics.median(turn):,.0f}" for turn in ours.turns if turn]
        measured = sum(bool(contender.rates) for contender in self.contenders)
        found = f"{measured} contenders; Trainyard's turns: {' and '.join(medians)} tokens/s"
        self.report.check(f"{self.label}: measured", bool(ours.rates) and measured > 1, found)

    def write_prediction(self) -> None:
        """What Trainyard's model of the GPU says of this program."""
        target = gpus.target()
        if target is None:
            self.report.note(f"no prediction: Trainyard has no model of the {gpus.name()}")
            return
        command = [str(self.options.trainyard), "inspect", str(self.folder), "--target", target, "--format", "json"]
        text = answer(command)
        if text is None:
            self.report.note(f"no prediction: `{' '.join(command)}` fails")
            return
        self.folder.with_name(self.folder.name + "-prediction.json").write_text(text)
        found = json.loads(text)["prediction"]
        took = 1e3 * self.tokens / self.ours.rate
        self.report.note(
            f"sequence {self.sequence}: predicted for {found['device']}: {found['step_ms']:.2f} ms a step in "
            f"{found['launches']} launches, MFU {100 * found['mfu']:.1f} %; it took {took:.2f} ms"
        )

    def write_timeline(self) -> None:
        """The kernels of a step of Trainyard's, once for a part."""
        is_first = self.sequence == self.options.sequences[0]
        if not is_first or self.options.part not in WITH_TIMELINE or self.seconds_left() < TIMELINE_SECONDS:
            return
        folder = self.options.output / f"{self.options.part}-profile"
        model = f"bench/{self.case.name}.onnx"
        try:
            train(self.options, model, folder, *self.flags(), "--steps", str(self.timing.warm_steps), "--profile")
        except Failed as failed:
            self.report.note(f"no timeline: {failed}")
            return
        path = self.options.output / f"{self.options.part}-timeline.json"
        (folder / "timeline.json").rename(path)
        print(f"{folder.with_suffix('.log').read_text()}\nwrote {path}", flush=True)
        remove(folder)


def readable(row: dict) -> dict:
    """A row for people."""

    def shown(value: float | None, form: str, factor: float = 1.0) -> str:
        return format(value * factor, form) if value else "-"

    rates = [rate for turn in row["turns"] for rate in turn]
    return {
        "model": row["model"],
        "sequence": row["sequence"],
        "batch": row["batch"],
        "program": row["program"],
        "precision": row["precision"],
        "tokens/s": shown(row["tokens_per_s"], ",.0f"),
        "min to max": f"{min(rates):,.0f} to {max(rates):,.0f}" if rates else "-",
        "MFU": shown(row["mfu"], ".1%"),
        "allocated GiB": shown(row["allocated_bytes"], ".2f", 1 / GIB),
        "taken GiB": shown(row["taken_bytes"], ".2f", 1 / GIB),
        "Trainyard's speed": shown(row["speed_ratio"], ".2f"),
        "Trainyard's memory": shown(row["memory_ratio"], ".2f"),
        "ended by": row["error"].splitlines()[0][:80] if row["error"] else "",
    }


def benchmark(report: Report) -> None:
    """The part."""
    options = report.options
    if not options.rehearse and not torch.cuda.is_available():
        raise Unable("PyTorch finds no GPU (torch.cuda.is_available() is false)")
    need_device(options)
    if gpus.peak_flops() is None:
        report.note(f"no MFU: the peak of the {gpus.name() or 'processor'} is not known; PEAK_TFLOPS=N gives it, dense and in bf16")
    try:
        for i, sequence in enumerate(options.sequences):
            kept = options.seconds_left() * (1 - 1 / (len(options.sequences) - i))
            Sequence(report, sequence, kept).run()
    finally:
        print("\n" + table([readable(row) for row in report.rows]))


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), benchmark) else 1)
