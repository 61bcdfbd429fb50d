"""What the parts share: their arguments, the checks they make, the table and the JSON they leave, and what the machine is."""

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
GIB = 1 << 30

# What a GPU takes beside the plan: the driver's context, kernels, the libraries' workspaces.
BESIDE_PLAN = 2 * GIB


class Unable(Exception):
    """A part cannot be run here: its text says what is missing."""


class Ended(Unable):
    """The part is ended from outside."""


class Failed(Exception):
    """A run ended that should not have; its text ends with what the run printed last."""


class OutOfTime(Failed):
    """A run was ended because the part's time was up, which says nothing of the run."""


@dataclass
class Options:
    """How a part is run."""

    part: str
    trainyard: Path
    output: Path
    # The part ends by itself by then, on the clock of `time.monotonic`.
    deadline: float
    # On the processor, with toys: to see that the scripts themselves work.
    rehearse: bool
    # Of the benchmark: the sequences it runs, in tokens.
    sequences: list[int] = field(default_factory=lambda: [1024, 2048])

    @property
    def device(self) -> str:
        """What `--device` is given."""
        return "cpu" if self.rehearse else "cuda"

    def seconds_left(self) -> float:
        """Until the part must end."""
        return self.deadline - time.monotonic()


def end(*_) -> None:
    """The time is up: runs in the background end with the part, and what was found is written."""
    raise Ended("ended from outside: the time is up")


def parse(arguments: list[str]) -> Options:
    """Reads what run.sh passes on."""
    signal.signal(signal.SIGTERM, end)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("--trainyard", type=Path, required=True, help="the binary")
    parser.add_argument("--output", type=Path, required=True, help="the folder that results go to")
    parser.add_argument("--seconds", type=float, required=True, help="the part ends by itself after so long")
    parser.add_argument("--rehearse", action="store_true", help="on the processor, with toys")
    parser.add_argument("--sequence", type=int, action="append", help="of the benchmark; may be repeated")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.seconds
    options = Options(given.part, given.trainyard.resolve(), given.output.resolve(), deadline, given.rehearse)
    options.sequences = given.sequence or ([32, 64] if given.rehearse else options.sequences)
    return options


@dataclass
class Report:
    """What a part found; each check is printed as it is made."""

    options: Options
    checks: list[dict] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def check(self, name: str, passed: bool, found: str, **numbers) -> bool:
        """Something that must hold; `found` says what was seen, `numbers` go to the JSON."""
        print(f"{'ok    ' if passed else 'FAILED'} {name}: {found}", flush=True)
        self.checks.append({"name": name, "passed": bool(passed), "found": found, **numbers})
        return passed

    def check_memory(self, name: str, planned: int, taken: int) -> None:
        """What the driver has given, in bytes, must be what was planned and a little besides."""
        beside = taken - planned
        found = f"{planned / MIB:.0f} MiB planned, {taken / MIB:.0f} MiB taken: {beside / MIB:+.0f} MiB"
        self.check(name, 0 <= beside < BESIDE_PLAN, found, planned_bytes=planned, taken_bytes=taken)

    def note(self, text: str) -> None:
        """Something that a reader must know."""
        print(f"note   {text}", flush=True)
        self.notes.append(text)

    def finish(self, error: str | None = None) -> bool:
        """Writes PART.json; whether all passed."""
        passed = error is None and bool(self.checks) and all(check["passed"] for check in self.checks)
        found = {
            "part": self.options.part,
            "rehearsal": self.options.rehearse,
            "passed": passed,
            "error": error,
            "seconds": round(time.monotonic() - self.began, 1),
            "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "commit": commit(),
            "machine": machine(),
            "checks": self.checks,
            "rows": self.rows,
            "notes": self.notes,
        }
        path = self.options.output / f"{self.options.part}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {path}")
        return passed


def run(options: Options, body: Callable[[Report], None]) -> bool:
    """A part; whether all passed. However the body ends, what it had found by then is written."""
    report = Report(options)
    error = None
    try:
        body(report)
    except (Unable, Failed) as failure:
        error = str(failure)
    except Exception:
        error = traceback.format_exc()
    if error:
        print(f"FAILED {error}")
    return report.finish(error)


def need_package(package: str, name: str) -> None:
    """Ends the part at once where a Python package is not there."""
    if importlib.util.find_spec(package) is None:
        error = f"{sys.executable} has no {name}: PYTHON=PATH names a Python that has it"
        print(f"FAILED {error}")
        Report(parse(sys.argv[1:])).finish(error)
        sys.exit(1)


def answer(command: list[str]) -> str | None:
    """What a command prints; `None` if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str | None:
    """The commit of the files: as pack.sh wrote it down beside them, as git says, or as pack.sh wrote it down in `target`."""
    beside, in_target = ROOT / "COMMIT", ROOT / "target/gpu/COMMIT"
    if not beside.exists() and (ROOT / ".git").exists():
        if said := answer(["git", "describe", "--always", "--dirty", "--abbrev=12"]):
            return said
    return next((packed.read_text().strip() for packed in (beside, in_target) if packed.exists()), None)


def machine() -> dict:
    """What this was run on."""
    query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    found = {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "gpu": answer(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]),
    }
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found |= {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    return found


def gpu_number() -> str:
    """The first visible GPU, as nvidia-smi's --id takes it."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0].strip()


def memory_taken() -> int:
    """Bytes of the first visible GPU that are in use, by whomever; `nvidia-smi` counts in MiB."""
    text = answer(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={gpu_number()}"])
    if text is None or not text.isdigit():
        raise Unable(f"nvidia-smi does not say how much memory of GPU {gpu_number()} is in use")
    return int(text) * MIB


def table(rows: list[dict]) -> str:
    """Rows with the same keys, for a terminal and for docs/GPU.md alike."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, *([str(row[key]) for key in head] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines]
    texts.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(texts) + "\n"
