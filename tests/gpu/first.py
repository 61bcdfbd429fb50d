"""What first.sh asks about the output of its steps. Each command prints one line, and fails where a check does.

    first.py error STATUS LIMIT FILE...              the first line of the error in a step's output
    first.py doctor FILE                             `doctor --json`: the driver, a GPU and the libraries are there
    first.py losses BOUND METRICS REFERENCE          a run's losses, all within a relative bound of the processor's
    first.py equal METRICS OTHER...                  losses of runs that must be equal to the last bit
    first.py steps COUNT METRICS PLAN MEMORY         the time of a step, the planned memory and the memory in use
    first.py beside METRICS BASE                     the time of a step beside that of another run with the same losses
    first.py products LINES NAME                     rates of products as NAME.txt and NAME.json
    first.py longest CSV FILE                        the names of the ten kernels that took longest, as a regular expression for ncu
    first.py libraries                               the `lib` folders of NVIDIA's Python packages, as in PATH
"""

import csv
import json
import math
import re
import signal
import site
import statistics
import sys
from pathlib import Path

# A line that says what went wrong; the text of a Rust panic is in the line after this one.
TELLING = re.compile(r"^error\b|^\w*Error\b|panicked at|FAILED|failed|is not there|not found|\"problem\"", re.IGNORECASE)
OF_SANITIZER = re.compile(r"^========= (?!COMPUTE-SANITIZER)")
PANIC = re.compile(r"panicked at .*:\d+:$")
# libtest's "test x ... FAILED" stands before the panic that says why.
OF_A_TEST = re.compile(r"^test .* \.\.\. FAILED$|^failures:$|^test result:")
# Libraries that a single GPU needs.
NEEDED = ("libnvrtc", "libcublasLt", "libcudnn")
# As `timeout` says that it ended a program, and as a shell says that a signal did.
TIMED_OUT = (124, 137)
SIGNALS = 128
LONGEST = 200
# The largest relative difference of losses in bf16 between two ways to compute a step, and the fewest losses to compare.
SAME_LOSSES = 1e-2
LEAST_STEPS = 8


def found(text: str) -> None:
    """Prints what a check found."""
    print(text)


def refuse(text: str) -> None:
    """Ends with what a check found to be wrong."""
    print(text)
    sys.exit(1)


def losses(path: str) -> list[float]:
    """Of every step."""
    try:
        text = Path(path).read_text()
    except OSError:
        refuse(f"{path} is not there")
    # A last line may be half written.
    return [json.loads(line)["loss"] for line in text.split("\n")[:-1]]


def error(status: int, limit: str, *files: str) -> None:
    """How the step ended, and the line of its output that says why."""
    lines = [line for file in files for line in Path(file).read_text(errors="replace").splitlines() if line.strip()]
    telling = [i for i, line in enumerate(lines) if TELLING.search(line) and not OF_A_TEST.match(line)]
    line = lines[-1] if lines else ""
    if sanitized := [line for line in lines if OF_SANITIZER.match(line)]:
        line = sanitized[0]
    elif telling:
        first = telling[0]
        of_panic = PANIC.search(lines[first]) and first + 1 < len(lines)
        line = lines[first + 1] if of_panic else lines[first]
    ended = f"exit status {status}"
    if status in TIMED_OUT:
        ended = f"hung: ended after {limit} s" if status == TIMED_OUT[0] else f"killed: it hung for {limit} s, or memory was short"
    elif status > SIGNALS:
        number = status - SIGNALS
        ended = f"ended by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    elif telling or sanitized:
        ended = ""
    found(": ".join(part for part in (ended, line.strip()[:LONGEST]) if part))


def doctor(path: str) -> None:
    """The first thing that is missing."""
    facts = json.loads(Path(path).read_text())
    needed = [facts["driver"], *(library for library in facts["libraries"] if library["file"].startswith(NEEDED))]
    missing = [thing["error"] for thing in needed if "error" in thing]
    if missing:
        refuse("; ".join(missing))
    if not facts["gpus"]:
        refuse("the driver has no GPU")
    gpus = ", ".join(gpu["name"] for gpu in facts["gpus"])
    found(", ".join([gpus, f"driver for CUDA {facts['driver'].get('cuda', '?')}"]))


def compare(bound: str, ours: str, reference: str) -> None:
    """A run's losses beside those of the processor."""
    here, there = losses(ours), losses(reference)
    if len(here) != len(there):
        refuse(f"{len(here)} steps, not {len(there)}")
    if not all(map(math.isfinite, here)):
        refuse(f"losses {here}")
    apart = max(abs(a - b) / abs(b) for a, b in zip(here, there, strict=True))
    text = f"losses {here[0]:.4f} to {here[-1]:.4f}, within {apart:.1e} of the processor's"
    found(text) if apart <= float(bound) else refuse(f"{text}: more than {bound}")


def equal(ours: str, *others: str) -> None:
    """Losses of several runs, as the same numbers: those of the first of the others that is there count."""
    here = losses(ours)
    if not here or not all(map(math.isfinite, here)):
        refuse(f"losses {here}")
    there = [other for other in others if other != ours and Path(other).exists()]
    if there and here != losses(there[0]):
        refuse(f"losses {here} differ from {losses(there[0])} in {Path(there[0]).name}")
    beside = f"bitwise equal to those in {Path(there[0]).name}" if there else "with nothing to compare yet"
    found(f"{len(here)} losses to {here[-1]!r}, {beside}")


def steps(count: str, metrics: str, plan: str, memory: str) -> None:
    """How long the last half of the steps took, and the most memory that nvidia-smi has seen."""
    lines = [json.loads(line) for line in Path(metrics).read_text().split("\n")[:-1]]
    if len(lines) != int(count) or not all(math.isfinite(line["loss"]) for line in lines):
        refuse(f"{len(lines)} steps of {count}: losses {[line['loss'] for line in lines]}")
    took = step_ms(lines)
    planned = json.loads(Path(plan).read_text())["memory"]["peak"] / (1 << 20)
    used = [int(line) for line in Path(memory).read_text().split() if line.isdigit()] if Path(memory).exists() else []
    most = f"{max(used)} MiB in use" if used else "nvidia-smi says nothing of memory"
    loss = f"losses {lines[0]['loss']:.4f} to {lines[-1]['loss']:.4f}"
    found(f"{took:.2f} ms a step, {loss}, {planned:.0f} MiB planned, {most}")


def step_ms(lines: list[dict]) -> float:
    """The median time of the last half of the steps."""
    return statistics.median(line["step_ms"] for line in lines[len(lines) // 2 :])


def beside(metrics: str, base: str) -> None:
    """A run with another setting: its time, and that its losses are those of the run without, in the steps that both have."""
    here, name = losses(metrics), Path(base).name.split(".")[0]
    if len(here) < LEAST_STEPS or not all(map(math.isfinite, here)):
        refuse(f"{len(here)} steps, fewer than {LEAST_STEPS}, or without a finite loss: losses {here}"[:LONGEST])
    took, *usual = (
        step_ms([json.loads(line) for line in Path(path).read_text().split("\n")[:-1]])
        for path in (metrics, base)
        if Path(path).exists()
    )
    if not usual:
        found(f"{took:.2f} ms a step; {name} is not there to compare")
        return
    there, text = losses(base), f"{took:.2f} ms a step, {took / usual[0]:.3f} times {name}"
    if len(there) < LEAST_STEPS:
        refuse(f"{text}, which has {len(there)} steps, fewer than {LEAST_STEPS}")
    apart = max(abs(a - b) / abs(b) for a, b in zip(here, there))
    if not apart <= SAME_LOSSES:
        refuse(f"{text}; the losses are {apart:.1e} apart, more than {SAME_LOSSES}")
    found(f"{text}; the losses are {apart:.1e} apart")


def products(lines: str, name: str) -> None:
    """The rates that `doctor --part gpu:0/products/...` wrote, a line each."""
    # A last line may be half written.
    said = [json.loads(line) for line in Path(lines).read_text().split("\n")[:-1] if line.startswith("{")]
    rates = [rate for line in said for rate in line.get("rates", [None, []])[1]]
    Path(f"{name}.json").write_text(json.dumps(rates, indent=1) + "\n")
    rows = [f"{rate['name']:36} {rate.get('value') or math.nan:8.1f} {rate['unit']}  {rate['sizes']}" for rate in rates]
    Path(f"{name}.txt").write_text("\n".join(rows) + "\n")
    missing = [f"{rate['name']}: {rate['error']}" for rate in rates if "error" in rate]
    values = [rate["value"] for rate in rates if "error" not in rate]
    if not values:
        refuse("; ".join(["no rate was measured", *missing])[:LONGEST])
    text = f"{len(values)} products, {min(values):.0f} to {max(values):.0f} {rates[0]['unit']}: {Path(name).name}.txt"
    if missing:
        refuse("; ".join([text, *missing])[:LONGEST])
    found(text)


def base_name(kernel: str) -> str:
    """The name of a kernel as ncu matches it, without its type, namespaces and arguments."""
    name, last = kernel, None
    while name != last:
        # Arguments of templates, lists of parameters and `(anonymous namespace)`, the innermost first.
        name, last = re.sub(r"<[^<>()]*>|\([^<>()]*\)", " ", name), name
    words = re.findall(r"\w+", name) or re.findall(r"\w+", kernel)
    return words[-1] if words else kernel


def longest(table: str, names: str) -> None:
    """From ncu's table of all launches the kernels with the most time. The first half of the launches is left out: it has the trials
    of algorithms."""
    text = Path(table).read_text(errors="replace").splitlines()
    start = next((i for i, line in enumerate(text) if line.startswith('"ID"')), None)
    rows = list(csv.DictReader(text[start:])) if start is not None else []
    # The line after the names has the units.
    rows = [row for row in rows if (row.get("ID") or "").isdigit()]
    times: dict[str, float] = {}
    for row in rows[len(rows) // 2 :]:
        name, time = base_name(row["Kernel Name"]), float(row["gpu__time_duration.sum"].replace(",", ""))
        times[name] = times.get(name, 0.0) + time
    if not times:
        refuse("ncu timed no kernel")
    most = sorted(times, key=times.get, reverse=True)[:10]
    Path(names).write_text(f"^({'|'.join(map(re.escape, most))})$")
    found(f"{len(rows)} launches; of the last half {sum(times[name] for name in most) / sum(times.values()):.0%} are {', '.join(most)}")


def libraries() -> None:
    """Where wheels put CUDA's libraries."""
    packages = {Path(folder) / "nvidia" for folder in [*site.getsitepackages(), *sys.path] if folder}
    found(":".join(sorted(str(folder) for nvidia in packages for folder in nvidia.glob("*/lib"))))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "error":
        error(int(arguments[0]), *arguments[1:])
    else:
        commands = {"doctor": doctor, "losses": compare, "equal": equal, "steps": steps, "libraries": libraries}
        commands |= {"beside": beside, "products": products, "longest": longest}
        commands[command](*arguments)
