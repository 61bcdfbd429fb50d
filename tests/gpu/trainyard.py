"""Runs of the binary: to their end, or in the background, where their steps are counted."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from part import ROOT, Failed, Options, OutOfTime, Unable

# How often a run's metrics are looked at, in seconds: a burst is some seconds long, so this is a thousandth of it.
POLL = 0.001


def tail(path: Path, lines: int = 15) -> str:
    """The end of a log."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def command(options: Options, model: str, folder: Path, flags: tuple[str, ...], device: str) -> list[str]:
    """The command line that trains a model of testdata into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    path = ROOT / "testdata" / model
    return [str(options.trainyard), "compile", str(path), "--device", device, "-o", str(folder), *flags]


def train(
    options: Options,
    model: str,
    folder: Path,
    *flags: str,
    device: str | None = None,
    prefix: tuple[str, ...] = (),
) -> list[dict]:
    """Trains to the end; the metrics of every step. `prefix` is a program that runs the run."""
    log = folder.with_suffix(".log")
    arguments = [*prefix, *command(options, model, folder, flags, device or options.device)]
    try:
        status = finish(arguments, log, max(1, options.seconds_left()))
    except subprocess.TimeoutExpired:
        raise OutOfTime(f"out of time: {' '.join(arguments)}\n{tail(log)}") from None
    if status != 0:
        raise Failed(f"exit status {status}: {' '.join(arguments)}\n{tail(log)}")
    return read_metrics(folder)


def finish(arguments: list[str], log: Path, seconds: float, results: Path | None = None) -> int:
    """Runs a program to its end; its exit status. Its standard output goes to `results`, or to the log too. The programs that it
    has started end with it, also when the time is up."""
    with open(log, "wb") as told, open(results or os.devnull, "wb") as out:
        streams = {"stdout": out if results else told, "stderr": told}
        process = subprocess.Popen(arguments, **streams, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def read_metrics(folder: Path) -> list[dict]:
    """The steps that are done."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    # A last line may be half written.
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    # The first line says how steps are counted.
    return [line for line in lines if "counting" not in line]


def planned_bytes(folder: Path) -> int:
    """What the plan says that a device allocates."""
    return json.loads((folder / "plan.json").read_text())["memory"]["peak"]


def need_device(options: Options) -> None:
    """Raises `Unable` with what the binary says is missing, if it cannot train on the device at all."""
    if not os.access(options.trainyard, os.X_OK):
        raise Unable(f"{options.trainyard} is not a program; TRAINYARD=PATH says where the binary is")
    folder = options.output / "probe"
    try:
        train(options, "models/mlp.dynamo.onnx", folder, "--train", "synthetic", "--steps", "2")
    except Failed as failed:
        raise Unable(f"two steps of an MLP cannot be trained with --device {options.device}\n{failed}") from None
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """A run's folder and its log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".log").unlink(missing_ok=True)


class Running:
    """A run in the background."""

    def __init__(self, options: Options, model: str, folder: Path, *flags: str):
        self.options, self.folder, self.log = options, folder, folder.with_suffix(".log")
        # Of its metrics: what was read, and the lines in it.
        self.read, self.lines = 0, 0
        arguments = command(options, model, folder, ("--steps", "100000000", *flags), options.device)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(arguments, stdout=out, stderr=out, cwd=ROOT)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_) -> None:
        # Not asked to stop: it would save gigabytes that nobody wants.
        self.process.kill()
        self.process.wait()

    def steps(self) -> int:
        """Steps done so far, by the lines of its metrics."""
        path = self.folder / "metrics.jsonl"
        if path.exists() and path.stat().st_size > self.read:
            with open(path, "rb") as metrics:
                metrics.seek(self.read)
                new = metrics.read()
            self.read += len(new)
            self.lines += new.count(b"\n")
        return self.lines

    def next_step(self, after: int) -> tuple[int, float]:
        """Waits for a step after so many; how many are done then, and when that was seen."""
        while (done := self.steps()) <= after:
            if self.process.poll() is not None:
                raise Failed(f"exit status {self.process.returncode}: {' '.join(self.process.args)}\n{tail(self.log)}")
            if self.options.seconds_left() <= 0:
                raise OutOfTime(f"out of time after {done} steps: {' '.join(self.process.args)}\n{tail(self.log)}")
            time.sleep(POLL)
        return done, time.perf_counter()

    def warm_up(self, steps: int) -> None:
        """Waits for the first steps."""
        done = 0
        while done < steps:
            done, _ = self.next_step(done)

    def burst(self, seconds: float, least: int) -> tuple[int, float]:
        """Watches it for so long, and for so many steps at least; the steps, and the seconds that they took, from the end of
        one step to the end of another."""
        first, began = self.next_step(self.steps())
        done, now = first, began
        while done - first < least or now - began < seconds:
            done, now = self.next_step(done)
        return done - first, now - began
