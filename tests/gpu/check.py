"""Part check: every kernel on the GPU against the interpreter, the GPU's rates, and compute-sanitizer over short runs; part
sanitizer: compute-sanitizer alone."""

import itertools
import json
import shutil
import subprocess
import sys

from part import ROOT, Failed, Options, OutOfTime, Report, parse, run, table
from trainyard import need_device, remove, train

TOOLS = ("memcheck", "racecheck", "initcheck")
# Small runs that have most kernels: all of a GPT-2's and a Llama's, in f32 by CUDA cores and in bf16 by tensor cores.
MODELS = (("gpt2", "models/gpt2.dynamo.onnx"), ("llama", "models/llama.dynamo.onnx"))
PRECISIONS = ("fp32", "bf16")
STEPS = 2
# No run is begun with less time left, in seconds: a tool makes a run many times slower.
LEAST_SECONDS = 30


def doctor(options: Options, report: Report) -> None:
    """What the machine has; every kernel against the interpreter; copies, matrices and attention, how fast."""
    command = [str(options.trainyard), "doctor", "--json"]
    if not options.rehearse:
        command.insert(2, "--check")
    limit = max(1, options.seconds_left())
    name = " ".join(["trainyard", *command[1:]])
    log = options.output / "check-doctor.log"
    try:
        with log.open("w") as told:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=told, text=True, timeout=limit, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise OutOfTime(f"out of time: {name}; {log.name} has what was found until then") from None
    lines = log.read_text().splitlines()
    said = "\n".join(line for line in lines if line.startswith("error") or "wrong: " in line)[-2000:]
    path = options.output / "check-doctor.json"
    path.write_text(done.stdout)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        report.check(name, False, f"exit status {done.returncode}: {said}")
        return
    report.notes.append(f"{path.name} has what the machine is, and all that was checked")
    for checked in found.get("checks", []):
        tell(checked, report)
    report.check(name, done.returncode == 0, f"exit status {done.returncode} {said}")


def tell(checked: dict, report: Report) -> None:
    """What was found of one GPU."""
    samples, gpu = checked["samples"], checked["gpu"]
    for failure in samples["failures"]:
        print(f"       {failure['operator']} on {', '.join(failure['operands'])}, {failure['way']}: {failure['problem']}")
    agree = f"{samples['passed']} agree with the interpreter, {len(samples['failures'])} do not"
    left_out = f", {samples['skipped']} were not run" if samples["skipped"] else ""
    report.check(f"samples of operators on GPU {gpu}", not samples["failures"], agree + left_out)
    for rate in checked["rates"]:
        value = f"{rate['value']:.1f} {rate['unit']}" if rate.get("value") is not None else rate.get("error", "-")
        report.rows.append({"GPU": gpu, "what": rate["name"], "sizes": rate["sizes"], "rate": value})
    print("\n" + table(report.rows))


def sanitize(options: Options, report: Report) -> None:
    """Short runs under compute-sanitizer, where it is installed."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None and not options.rehearse:
        report.note("compute-sanitizer is not installed: its checks are left out")
        return
    for tool, (name, model), precision in itertools.product(TOOLS, MODELS, PRECISIONS):
        prefix = (sanitizer, "--tool", tool, "--error-exitcode", "1") if not options.rehearse else ()
        folder = options.output / f"{options.part}-{tool}-{name}-{precision}"
        label = f"compute-sanitizer, {tool}: {STEPS} steps of {name} in {precision}"
        flags = ("--train", "synthetic", "--steps", str(STEPS), "--precision", precision)
        if options.seconds_left() < LEAST_SECONDS:
            report.note(f"{label}: left out, the time is short")
            continue
        try:
            train(options, model, folder, *flags, prefix=prefix)
            report.check(label, True, "rehearsed without it" if options.rehearse else "nothing found")
            remove(folder)
        except OutOfTime:
            report.note(f"{label}: ended, the time was up")
        except Failed as failed:
            report.check(label, False, str(failed))


def check(report: Report) -> None:
    """The part."""
    need_device(report.options)
    if report.options.part != "sanitizer":
        doctor(report.options, report)
    sanitize(report.options, report)


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), check) else 1)
