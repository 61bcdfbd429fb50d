"""Part check: every kernel on the GPU against the interpreter, the GPU's rates, and compute-sanitizer over short runs; part
sanitizer: compute-sanitizer alone, first racecheck over our kernels, up to 16 samples of operators in one program."""

import itertools
import json
import re
import subprocess
import sys

from part import ROOT, Failed, Options, OutOfTime, Report, parse, run, table
from tools import find
from trainyard import finish, need_device, remove, train

TOOLS = ("memcheck", "racecheck", "initcheck")
# Small runs that have most kernels: all of a GPT-2's and a Llama's, in f32 by CUDA cores and in bf16 by tensor cores.
MODELS = (("gpt2", "models/gpt2.dynamo.onnx"), ("llama", "models/llama.dynamo.onnx"))
PRECISIONS = ("fp32", "bf16")
STEPS = 2
# No run is begun with less time left, in seconds: a tool makes a run many times slower.
LEAST_SECONDS = 30
# Samples of operators in a run of racecheck over our kernels, the most seconds of a run, and the share of the part's time for
# all of these runs.
SAMPLES_TOGETHER = 16
MOST_SECONDS = 60
SHARE_OF_KERNELS = 0.5
# The largest number of a sample that `doctor --part` reads. There are fewer samples, so the answer says how many.
ABSENT_SAMPLE = 99_999
# With this status compute-sanitizer ends if it found something; others are those of the program.
FOUND = 99


def doctor(options: Options, report: Report) -> None:
    """What the machine has; every kernel against the interpreter; copies, matrices and attention, how fast."""
    command = [str(options.trainyard), "doctor", "--json"]
    if not options.rehearse:
        command.insert(2, "--check")
    limit = max(1, options.seconds_left())
    name = " ".join(["trainyard", *command[1:]])
    log, path = options.output / "check-doctor.log", options.output / "check-doctor.json"
    try:
        status = finish(command, log, limit, results=path)
    except subprocess.TimeoutExpired:
        raise OutOfTime(f"out of time: {name}; {log.name} has what was found until then") from None
    lines = log.read_text().splitlines()
    said = "\n".join(line for line in lines if line.startswith("error") or "wrong: " in line)[-2000:]
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError:
        report.check(name, False, f"exit status {status}: {said}")
        return
    report.notes.append(f"{path.name} has what the machine is, and all that was checked")
    for checked in found.get("checks", []):
        tell(checked, report)
    report.check(name, status == 0, f"exit status {status} {said}")


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


def batches(options: Options) -> list[str]:
    """The samples of all operators as parts of `doctor --part`, some of each part of the list first: bf16 runs on tensor cores."""
    command = [str(options.trainyard), "doctor", "--part", f"stand-in/bf16/inputs/{ABSENT_SAMPLE}"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr
    found = re.search(r"there are (\d+) samples", said)
    if found is None:
        raise Failed(f"{' '.join(command)}: {said.strip()}")
    count = int(found.group(1))
    runs = -(-count // SAMPLES_TOGETHER)
    return [f"{dtype}/inputs/" + ",".join(map(str, range(first, count, runs))) for dtype in ("bf16", "f32") for first in range(runs)]


def check_races(options: Options, report: Report, sanitizer: str) -> None:
    """Racecheck over the samples of operators, those in bf16 first. They launch our kernels and no library's, and a race is in one of
    the samples that are named."""
    end = options.seconds_left() * (1 - SHARE_OF_KERNELS)
    passed, left_out = 0, 0
    for batch in batches(options):
        seconds = options.seconds_left() - end
        if seconds < LEAST_SECONDS:
            left_out += 1
            continue
        command = [sanitizer, "--tool", "racecheck", "--error-exitcode", str(FOUND), str(options.trainyard), "doctor"]
        command += ["--part", f"gpu:0/{batch}"]
        log = options.output / f"{options.part}-racecheck-{batch.replace('/', '-').split(',')[0]}.log"
        try:
            status = finish(command, log, min(MOST_SECONDS, seconds))
        except subprocess.TimeoutExpired:
            left_out += 1
            continue
        if status:
            said = [line for line in log.read_text().splitlines() if line.startswith("=========") or '"error"' in line]
            text = f"exit status {status}: {' '.join(said[:4])[:500]}"
            if status == FOUND:
                report.check(f"compute-sanitizer, racecheck: {batch}", False, text)
            else:
                # `doctor --check` judges results.
                report.note(f"racecheck finds nothing in {batch}, which ends with {text}")
            continue
        passed += 1
        log.unlink()
    late = f"; for {left_out} more there was no time" if left_out else ""
    report.note(f"racecheck finds nothing in {passed} runs of up to {SAMPLES_TOGETHER} samples{late}")


def sanitize(options: Options, report: Report) -> None:
    """Our kernels and short runs under compute-sanitizer, where it is installed."""
    sanitizer = find("compute-sanitizer")
    if sanitizer is None and not options.rehearse:
        report.note("compute-sanitizer is not installed: its checks are left out")
        return
    if sanitizer is not None and not options.rehearse:
        check_races(options, report, sanitizer)
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
