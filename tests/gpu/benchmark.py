"""Parts 124m, 350m, 1.5b, llama: tokens a second, MFU and memory beside the machine's own PyTorch, interleaved in one run.

All contenders have the same model, batch and sequence (models.py; peer.py says what PyTorch does; `trainyard --bf16` computes in
bf16 with f32 masters). They are started and warmed up once, then take turns in bursts of some seconds, a few rounds over; the
others are held meanwhile. What counts is the median of the rounds. Nothing is recomputed on either side.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from part import GIB, Options, Report, Unable, answer, memory_taken, need_package, parse, run, table
from trainyard import Running, need_device, planned_bytes, read_metrics, remove, train

need_package("torch", "PyTorch")
import gpus
import peer
import torch
from cases import Timing, case_of, timing_of

# Parts whose timeline is taken: their checkpoint, which ends a run that is not killed, is written in seconds.
WITH_TIMELINE = ("124m", "350m")

# A contender that would have to be compiled with less time left than this is left out, and so are further rounds.
COMPILE_SECONDS = {"124m": 40, "350m": 60, "1.5b": 110, "llama": 50}
# Traces are left out with less time left.
TRACE_SECONDS = 20
# Loss of a model that knows nothing, within this many nats.
NOTHING_KNOWN = 1.0


class Trainyard:
    """The binary as a contender: held between its bursts."""

    name, precision = "Trainyard", "bf16"

    def __init__(self, options: Options, running: Running, timing: Timing, taken_before: int):
        running.warm_up(timing.warm_steps)
        self.burst = running.burst
        self.peak_allocated = planned_bytes(running.folder)
        self.peak_taken = 0 if options.rehearse else memory_taken() - taken_before
        self.first_loss = read_metrics(running.folder)[0]["loss"]


class Measured:
    """The rounds of a contender."""

    def __init__(self, contender: Trainyard | peer.Contender, precision: str):
        self.contender, self.precision = contender, precision
        self.rates: list[float] = []

    def round(self, timing: Timing, tokens: int) -> None:
        """A burst, as tokens a second."""
        steps, seconds = self.contender.burst(timing.burst_seconds, timing.least_steps)
        self.rates.append(tokens * steps / seconds)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return statistics.median(self.rates)


class Sequence:
    """The contenders at one length of sequence."""

    def __init__(self, report: Report, sequence: int, kept_seconds: float, taken_before: int):
        self.report, self.options = report, report.options
        self.case, self.sequence = case_of(self.options), sequence
        self.batch = max(1, self.case.tokens // sequence)
        self.timing = timing_of(self.options)
        self.device = torch.device("cpu" if self.options.rehearse else "cuda")
        # What is left of the part's time then belongs to the next sequences.
        self.kept_seconds = kept_seconds
        # Bytes of the GPU that were in use before the part began.
        self.taken_before = taken_before
        self.measured: list[Measured] = []

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    def seconds_left(self) -> float:
        """For this sequence."""
        return self.options.seconds_left() - self.kept_seconds

    def flags(self) -> list[str]:
        """Of `trainyard compile`."""
        shape = ["--microbatch", str(self.batch), "--seq", str(self.sequence)]
        optimizer = ["--optimizer", "adamw", "--lr", str(peer.LEARNING_RATE), "--weight-decay", str(peer.WEIGHT_DECAY)]
        return [*shape, *optimizer, "--bf16", "--init", "gpt2", "--train", "synthetic"]

    def run(self) -> None:
        """Starts all, measures, and writes rows."""
        folder = self.options.output / f"{self.options.part}-{self.sequence}"
        before = 0 if self.options.rehearse else memory_taken()
        with Running(self.options, f"bench/{self.case.name}.onnx", folder, *self.flags()) as running:
            ours = Trainyard(self.options, running, self.timing, before)
            self.check(ours)
            self.measured.append(Measured(ours, ours.precision))
            for precision in ("autocast", "bf16"):
                self.add_peers(precision, self.taken_before + ours.peak_taken)
            try:
                self.take_turns()
            finally:
                # What was measured is worth having, also if the time is up.
                if self.measured[0].rates:
                    self.write_rows()
        self.write_prediction(folder)
        self.write_traces()

    def check(self, ours: Trainyard) -> None:
        """What Trainyard computes and takes, before it is timed."""
        name = f"{self.case.name}, sequence {self.sequence}"
        nothing = math.log(self.case.config.vocabulary)
        found = f"{ours.first_loss:.4f}; the logarithm of the vocabulary is {nothing:.4f}"
        self.report.check(f"{name}: first loss", abs(ours.first_loss - nothing) < NOTHING_KNOWN, found)
        if not self.options.rehearse:
            self.report.check_memory(f"{name}: memory as planned", ours.peak_allocated, ours.peak_taken)

    def add_peers(self, precision: str, taken_besides: int) -> None:
        """PyTorch's contenders of a precision, warmed up; what does not fit is left out, and said so."""
        what = f"PyTorch in {precision}, sequence {self.sequence}"
        try:
            trainer = peer.Trainer(self.case.config, precision, self.batch, self.sequence, self.device)
            for compiled in (False, True):
                wanted = COMPILE_SECONDS[self.options.part] if compiled and not self.options.rehearse else 5
                if self.seconds_left() < wanted:
                    self.report.note(f"{what}{', compiled' if compiled else ''}: left out, the time is short")
                    continue
                contender = peer.Contender(trainer, compiled, taken_besides)
                loss = contender.warm_up()
                print(f"       {contender.name}, {precision}, sequence {self.sequence}: loss {loss:.4f}", flush=True)
                self.measured.append(Measured(contender, precision))
        except RuntimeError as error:
            self.leave_out(what, error)

    def leave_out(self, what: str, error: RuntimeError) -> None:
        """Says why a contender of PyTorch is left out, without which the others go on. All but too little memory is a fault."""
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.report.note(f"{what}: left out, {str(error).splitlines()[0]}")
        else:
            self.report.check(what, False, f"{type(error).__name__}: {error}")

    def take_turns(self) -> None:
        """Rounds, each from another contender on, as long as there is time."""
        for number in range(self.timing.rounds):
            began = self.seconds_left()
            first = number % len(self.measured)
            for measured in self.measured[first:] + self.measured[:first]:
                self.take_turn(measured)
            if self.seconds_left() < began - self.seconds_left() and number + 1 < self.timing.rounds:
                self.report.note(f"sequence {self.sequence}: {number + 1} rounds, the time is short")
                break

    def take_turn(self, measured: Measured) -> None:
        """A round of one; it may be the first beside all that contenders hold, whose states were made after it was warmed up."""
        try:
            measured.round(self.timing, self.tokens)
        except RuntimeError as error:
            self.measured.remove(measured)
            self.leave_out(f"{measured.contender.name} in {measured.precision}, sequence {self.sequence}", error)

    def write_rows(self) -> None:
        """A row for each contender, with Trainyard's ratio to it, and the checks."""
        ours, peak = self.measured[0], gpus.peak_flops()
        flops = self.case.config.flops_per_token(self.sequence)
        for measured in [measured for measured in self.measured if measured.rates]:
            contender = measured.contender
            self.report.rows.append({
                "model": self.case.name,
                "sequence": self.sequence,
                "batch": self.batch,
                "program": contender.name,
                "precision": measured.precision,
                "tokens_per_s": measured.rate,
                "rounds": measured.rates,
                "mfu": peak and flops * measured.rate / peak,
                "allocated_bytes": contender.peak_allocated,
                "taken_bytes": contender.peak_taken,
                "speed_ratio": ours.rate / measured.rate,
                "memory_ratio": contender.peak_allocated and ours.contender.peak_allocated / contender.peak_allocated,
            })
        self.report.check(
            f"{self.case.name}, sequence {self.sequence}: measured",
            len(self.measured) > 1,
            f"{len(self.measured)} contenders, {len(ours.rates)} rounds",
        )

    def write_prediction(self, folder: Path) -> None:
        """What Trainyard's model of the GPU says of this program."""
        target = gpus.target()
        if target is None:
            self.report.note(f"no prediction: Trainyard has no model of the {gpus.name()}")
            return
        command = [str(self.options.trainyard), "inspect", str(folder), "--target", target, "--format", "json"]
        text = answer(command)
        if text is None:
            self.report.note(f"no prediction: `{' '.join(command)}` fails")
            return
        folder.with_name(folder.name + "-prediction.json").write_text(text)
        found = json.loads(text)["roofline"]
        took = 1e3 * self.tokens / self.measured[0].rate
        self.report.note(
            f"sequence {self.sequence}: predicted for {found['device']}: {found['step_ms']:.2f} ms a step in "
            f"{found['launches']} launches, MFU {100 * found['mfu']:.1f} %; it took {took:.2f} ms"
        )

    def write_traces(self) -> None:
        """The kernels of a step on both sides, once for a part."""
        if self.sequence != self.options.sequences[0] or self.seconds_left() < TRACE_SECONDS:
            return
        peers = [measured.contender for measured in self.measured[1:]]
        if peers:
            path = self.options.output / f"{self.options.part}-pytorch.trace.json"
            peer.trace(peers[-1], str(path))
            print(f"wrote {path}", flush=True)
        # What they hold is needed no more.
        peers.clear()
        self.measured.clear()
        peer.forget()
        if self.options.part not in WITH_TIMELINE:
            return
        folder = self.options.output / f"{self.options.part}-profile"
        model = f"bench/{self.case.name}.onnx"
        train(self.options, model, folder, *self.flags(), "--steps", str(self.timing.warm_steps), "--profile")
        path = self.options.output / f"{self.options.part}-timeline.json"
        (folder / "timeline.json").rename(path)
        print(f"{folder.with_suffix('.log').read_text()}\nwrote {path}", flush=True)
        remove(folder)


def readable(row: dict) -> dict:
    """A row for people."""
    gib = lambda bytes: f"{bytes / GIB:.2f}" if bytes else "-"  # noqa: E731
    return {
        "model": row["model"],
        "sequence": row["sequence"],
        "batch": row["batch"],
        "program": row["program"],
        "precision": row["precision"],
        "tokens/s": f"{row['tokens_per_s']:,.0f}",
        "min to max": f"{min(row['rounds']):,.0f} to {max(row['rounds']):,.0f}",
        "MFU": f"{100 * row['mfu']:.1f} %" if row["mfu"] else "-",
        "allocated GiB": gib(row["allocated_bytes"]),
        "taken GiB": gib(row["taken_bytes"]),
        "Trainyard's speed": f"{row['speed_ratio']:.2f}",
        "Trainyard's memory": f"{row['memory_ratio']:.2f}" if row["memory_ratio"] else "-",
    }


def benchmark(report: Report) -> None:
    """The part."""
    options = report.options
    if not options.rehearse and not torch.cuda.is_available():
        raise Unable("PyTorch finds no GPU (torch.cuda.is_available() is false)")
    need_device(options)
    # Before PyTorch has a context there.
    taken_before = 0 if options.rehearse else memory_taken()
    if gpus.peak_flops() is None:
        report.note(f"no MFU: the peak of the {gpus.name() or 'processor'} is not known; PEAK_TFLOPS=N gives it, dense and in bf16")
    torch.set_float32_matmul_precision("high")
    try:
        for i, sequence in enumerate(options.sequences):
            kept = options.seconds_left() * (1 - 1 / (len(options.sequences) - i))
            Sequence(report, sequence, kept, taken_before).run()
            peer.forget()
    finally:
        print("\n" + table([readable(row) for row in report.rows]))


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), benchmark) else 1)
