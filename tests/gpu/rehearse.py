#!/usr/bin/env python3
"""Rehearses first.sh on a machine without a GPU, with standin.sh in place of all programs and faults planted in its steps.

    rehearse.py          the subset for CI: about a minute, mostly of waiting for programs that hang
    rehearse.py --all    every step and every kind of fault in a run of its own: some minutes

Whatever fails, hangs or crashes: the later steps run, the failed step is repeated with the libraries' logs, the archive is
whole and has the summary, and the time for everything is kept.
"""

import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check
from part import Options, Report

HERE = Path(__file__).resolve().parent
PROGRAMS = ("trainyard", "devices", "nvidia-smi", "compute-sanitizer", "ncu")
# Steps in the order in which they tell most.
FIRST_STEPS = ["nvidia-smi", "doctor", "doctor-check"]
# Steps that are absent on a machine without the tool.
OF_NCU = ["ncu-times", "ncu-longest"]
# Steps that are not repeated.
ONCE = ["products", *OF_NCU]
KINDS = ("fail", "hang", "crash")
# Runs that hang do so one after another: each gets only every so many steps.
HANGING_RUNS = 6
# A run that is ended in the middle waits for a program that does not listen, and packs.
SLACK_SECONDS = 10
# Limits of steps are divided by this number, which makes all of them the least of first.sh, 3 seconds.
DIVISOR = "100"
MIB = 1 << 20


class Run:
    """A run of first.sh with faults planted, and what it left in its archive."""

    def __init__(
        self,
        faults: dict[str, str],
        term_after: float | None = None,
        programs: tuple[str, ...] = PROGRAMS,
        **environment: str,
    ):
        self.faults, self.programs = faults, programs
        with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
            self.run(Path(folder), term_after, environment)

    def run(self, folder: Path, term_after: float | None, environment: dict[str, str]) -> None:
        """Runs it; a signal ends it early if asked for."""
        out, programs, driver, wheels = (folder / name for name in ("out", "bin", "driver", "wheels"))
        for made in (out, programs, driver, wheels / "nvidia/cu13/lib"):
            made.mkdir(parents=True)
        (driver / "libcuda.so.1").touch()
        for program in self.programs:
            (programs / program).symlink_to(HERE / "standin.sh")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD")}
        settings = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(wheels),
            "TMPDIR": str(folder),
            "OUT": str(out),
            "TRAINYARD": str(programs / "trainyard"),
            "DEVICES": str(programs / "devices"),
            "DRIVER_FOLDER": str(driver),
            "LIMIT_DIVISOR": DIVISOR,
            "DIAGNOSIS_SECONDS": "500",
            "FAULTS": " ".join(f"{step}={fault}" for step, fault in self.faults.items()),
        }
        began = time.monotonic()
        process = subprocess.Popen(
            ["bash", str(HERE / "first.sh")],
            env=kept | settings | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if term_after is not None:
            time.sleep(term_after)
            process.send_signal(signal.SIGTERM)
        self.said, _ = process.communicate()
        self.seconds, self.status = time.monotonic() - began, process.returncode
        self.left = [path.name for path in out.iterdir()]
        assert self.left == ["first.tar.gz"], f"$OUT has {self.left}: {self.said}"
        self.size = (out / "first.tar.gz").stat().st_size
        with tarfile.open(out / "first.tar.gz") as archive:
            files = [entry for entry in archive if entry.isfile()]
            self.files = {entry.name.removeprefix("first/"): archive.extractfile(entry).read().decode() for entry in files}

    def rows(self) -> dict[str, tuple[str, str]]:
        """The verdict and the note of every step, by the summary."""
        rows = {}
        for line in self.files["summary.txt"].splitlines()[1:]:
            name, rest = line[:24].strip(), line[25:]
            rows[name] = (rest[:7].strip(), rest[16:])
        return rows

    def check(self, steps: Iterable[str]) -> None:
        """What holds of every run that was given enough time."""
        rows = self.rows()
        assert list(rows) == list(steps), f"steps {list(rows)}"
        assert self.size < 16 * MIB, f"{self.size} bytes"
        assert self.status == (1 if self.faults else 0), f"exit status {self.status}: {self.said}"
        for step, (verdict, note) in rows.items():
            fault = self.faults.get(step)
            assert verdict == ("FAILED" if fault else "passed"), f"{step}: {verdict}, {note}"
            if step in ONCE:
                assert not fault or note.endswith("; not repeated"), f"{step}: {note}"
                assert f"{step}.again.log" not in self.files, f"{step}: {note}"
            elif fault:
                assert "again with TRAINYARD_SYNC=1" in note, f"{step}: {note}"
                again = self.files[f"{step}.again.log"]
                assert "sync=1" in again and "logs=53" in again, f"{step}: {again[:200]}"


def says(text: str, *parts: str) -> None:
    """A note has these texts."""
    for part in parts:
        assert part in text, f"{text!r} lacks {part!r}"


def every_step_has_a_kind_of_fault(steps: list[str], kind: str, planted: list[str]) -> None:
    """The steps that are planted fail so, all others pass."""
    run = Run({step: kind for step in planted})
    run.check(steps)
    expected = {"fail": "error: planted", "hang": "hung: ended after 3 s", "crash": "ended by SIGSEGV"}[kind]
    for step in planted:
        note = run.rows()[step][1]
        says(note, expected)
        assert ("compute-sanitizer: ========= Invalid write, planted" in note) == (kind == "crash" and step not in ONCE), note


def a_driver_and_a_capture(steps: list[str]) -> None:
    """The driver's folder is found; graphs are left out once they are refused; a loud log is cut."""
    run = Run({"doctor": "no-driver", "mlp-graphs": "refused", "bert-fp32": "loud", "mlp-commands": "wrong"})
    run.check(steps)
    rows = run.rows()
    says(rows["doctor"][1], "libcuda.so.1 was not found", "SYNC=1: passed", "from here on LD_LIBRARY_PATH=")
    assert "driver=/" not in run.files["doctor.log"] and "driver=/" in run.files["doctor-check.log"]
    says(rows["mlp-commands"][1], "differ from", "in mlp-sync.metrics.jsonl")
    says(rows["mlp-graphs"][1], "capture failed", "SYNC=1: passed", "from here on TRAINYARD_GRAPHS=0")
    assert "graphs=0" in run.files["gpt2-fp32.log"] and "graphs= " in run.files["mlp-sync.log"]
    says(rows["bert-fp32"][1], "error: planted, after much else")
    assert "bytes were cut here" in run.files["bert-fp32.out"]


def libraries_and_faults(steps: list[str]) -> None:
    """The wheels' folders are found; faults of a GPU are run under compute-sanitizer; wrong results fail."""
    faults = {"doctor": "no-library", "gpt2-fp32": "illegal", "llama-bf16": "wrong", "t5-fp32": "stubborn"}
    run = Run(faults | {"devices-cudnn": "wrong", "resnet-bf16": "abort"})
    run.check(steps)
    rows = run.rows()
    says(rows["doctor"][1], "libnvrtc.so.13 was not found", "SYNC=1: passed", "from here on TRAINYARD_CUDA_LIBS=")
    assert "wheels/nvidia/cu13/lib" in run.files["gpt2-fp32.log"]
    says(rows["gpt2-fp32"][1], "CUDA_ERROR_ILLEGAL_ADDRESS", "compute-sanitizer: ========= Invalid write")
    says(rows["llama-bf16"][1], "of the processor's: more than 5e-3")
    says(rows["devices-cudnn"][1], "no test ran")
    says(rows["resnet-bf16"][1], "ended by SIGABRT")
    says(rows["t5-fp32"][1], "killed: it hung for 3 s")


def results_are_read(steps: list[str]) -> None:
    """Pages of rates and names of kernels are written; wrong tables and losses fail."""
    run = Run({})
    says(run.rows()["products"][1], "2 products, 400 to 612 TFLOP/s")
    says(run.files["products.txt"], "toy_forward", "toy_backward", "612.5 TFLOP/s  [3] and [2]")
    assert "kernel_1|" not in run.files["longest.txt"] and "trial" not in run.files["longest.txt"]
    says(run.files["longest.txt"], "^(kernel_11|kernel_10|", "|kernel_2)$")
    says(run.rows()["own-attention"][1], "1.000 times gpt2-124m; the losses are 0.0e+00 apart")
    run = Run({"products": "wrong", "ncu-times": "wrong", "own-attention": "wrong"})
    run.check(steps)
    rows = run.rows()
    says(rows["products"][1], "exit status 3", "1 products, 400 to 400 TFLOP/s: products.txt; toy_backward: out of memory")
    says(run.files["products.txt"], "toy_forward", "400.2 TFLOP/s", "toy_backward", "nan")
    says(rows["ncu-times"][1], "ncu timed no kernel")
    says(rows["own-attention"][1], "more than 0.01")


def a_time_is_read_from_a_run_that_hangs(steps: list[str]) -> None:
    """Eight steps are enough for a time beside another run, also if the run does not end by itself."""
    run = Run({"own-attention": "after-8", "without-epilogues": "after-7"})
    run.check(steps)
    rows = run.rows()
    says(rows["own-attention"][1], "hung: ended after 3 s", "; 1.00 ms a step, 1.000 times gpt2-124m; the losses are 0.0e+00 apart")
    says(rows["without-epilogues"][1], "hung: ended after 3 s", "; 7 steps, fewer than 8")
    run = Run({"gpt2-124m": "after-7"})
    says(run.rows()["own-attention"][1], "1.000 times gpt2-124m, which has 7 steps, fewer than 8")


def a_repeat_has_as_much_time_as_the_step(steps: list[str]) -> None:
    """A step that took longer than its repeat may take is not repeated."""
    run = Run({"doctor-check": "hang", "doctor": "hang"}, LIMIT_DIVISOR="20")
    rows = run.rows()
    says(rows["doctor-check"][1], "hung: ended after 7 s", "; not repeated: it took 7 s, and the repeat would have 3 s")
    says(rows["doctor"][1], "hung: ended after 3 s", "; again with TRAINYARD_SYNC=1")
    assert "doctor-check.again.log" not in run.files and list(rows) == steps, rows


# A sanitizer that finds a race among the samples with number 1, a program that fails on those with number 2, and a child of the
# sanitizer that hangs.
SANITIZER = """#!/bin/sh
case "$*" in
    *--part*bf16*/0,*) sleep 1000 & echo $! > "$(dirname "$0")/child"; wait ;;
    *--part*bf16*/1,*) echo "========= Error: Race reported, planted"; exit 99 ;;
    *--part*f32*/2,*) echo '"error"'; exit 3 ;;
esac
"""


def a_race_is_named_by_its_samples() -> None:
    """The part `sanitizer` of run.sh runs racecheck over all samples, and tells a race from a program that fails."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        folder = Path(name)
        programs = {"trainyard": '#!/bin/sh\necho "there is no sample 99999: there are 40 samples" >&2\nexit 2\n', "sanitizer": SANITIZER}
        for program, text in programs.items():
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        options = Options("sanitizer", folder / "trainyard", folder, time.monotonic() + 300, rehearse=False)
        runs = [batch.split("/")[-1].split(",") for batch in check.batches(options) if batch.startswith("bf16/inputs/")]
        assert sorted(int(sample) for run in runs for sample in run) == list(range(40)), runs
        report = Report(options)
        check.MOST_SECONDS = 2
        check.check_races(options, report, str(folder / "sanitizer"))
        [failed] = report.checks
        says(failed["name"], "racecheck: bf16/inputs/1,4,")
        says(failed["found"], "Race reported, planted")
        says(" ".join(report.notes), "f32/inputs/2,5,", "exit status 3", "finds nothing in 3 runs", "for 1 more there was no time")
        assert not failed["passed"], failed
        child = Path("/proc") / (folder / "child").read_text().strip() / "stat"
        assert not child.exists() or child.read_text().split()[2] == "Z", "the child of a sanitizer without time goes on"
    # The binary of the archive says how many samples there are.
    packed = HERE.parents[1] / "bin/trainyard"
    if packed.exists():
        runs = check.batches(Options("sanitizer", packed, HERE, time.monotonic() + 300, rehearse=False))
        assert len(runs) > 20, runs


def tools_may_be_absent(steps: list[str]) -> None:
    """Without ncu its steps are absent, and nothing fails."""
    run = Run({}, programs=tuple(program for program in PROGRAMS if program != "ncu"))
    rows = run.rows()
    assert run.status == 0 and list(rows) == steps, run.said
    for step, (verdict, note) in rows.items():
        assert (verdict, note) == ("absent", "ncu is not installed") if step in OF_NCU else verdict == "passed", (step, verdict)


def the_time_is_kept(steps: list[str]) -> None:
    """Where everything hangs, late steps are named as not run."""
    seconds = 20
    run = Run({step: "hang" for step in steps}, FIRST_SECONDS=str(seconds), DIAGNOSIS_SECONDS="4")
    assert run.seconds < seconds + SLACK_SECONDS, f"{run.seconds} s"
    rows = run.rows()
    assert list(rows) == steps and rows[steps[0]][0] == "FAILED" and rows[steps[-1]] == ("not run", "no time left"), rows
    assert any("not repeated: no time left" in note for _, note in rows.values()), rows


def an_end_from_outside_leaves_the_archive(steps: list[str]) -> None:
    """A signal ends it in the middle of a step that hangs."""
    run = Run({steps[0]: "hang"}, term_after=2, LIMIT_DIVISOR="1")
    assert run.seconds < 2 + SLACK_SECONDS and run.status == 1, f"{run.seconds} s, exit status {run.status}"
    rows = run.rows()
    assert list(rows) == steps and rows[steps[0]][0] == "running" and rows[steps[-1]][0] == "not run", rows


def main() -> int:
    """Runs the rehearsals side by side; whether all did what they must."""
    with contextlib.redirect_stdout(io.StringIO()):
        a_race_is_named_by_its_samples()
    clean = Run({})
    steps = list(clean.rows())
    assert steps[: len(FIRST_STEPS)] == FIRST_STEPS, steps
    clean.check(steps)
    plans: list[tuple[Callable[..., None], tuple]] = []
    if "--all" in sys.argv:
        alone = [(every_step_has_a_kind_of_fault, (steps, kind, [step])) for step, kind in itertools.product(steps, KINDS)]
        plans += alone
    hanging = [(every_step_has_a_kind_of_fault, (steps, "hang", steps[i::HANGING_RUNS])) for i in range(HANGING_RUNS)]
    plans += hanging
    plans += [(every_step_has_a_kind_of_fault, (steps, kind, steps)) for kind in ("fail", "crash")]
    checks = (a_driver_and_a_capture, libraries_and_faults, results_are_read, tools_may_be_absent)
    checks += (a_time_is_read_from_a_run_that_hangs, a_repeat_has_as_much_time_as_the_step)
    checks += (the_time_is_kept, an_end_from_outside_leaves_the_archive)
    plans += [(rehearsal, (steps,)) for rehearsal in checks]
    failures = 0
    with ThreadPoolExecutor(max_workers=6) as pool:
        for (rehearsal, arguments), done in [(plan, pool.submit(plan[0], *plan[1])) for plan in plans]:
            error = done.exception()
            failures += error is not None
            label = " ".join(map(str, (rehearsal.__name__, *arguments[1:])))
            print(f"{'FAILED' if error else 'ok    '} {label}{f': {error!r}' if error else ''}", flush=True)
    print(f"{len(steps)} steps, {len(plans)} runs, {failures} of them not as they must be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
