"""Part offload: values in memory of the host, and in a file.

1. Six losses of GPT-2 with each class of values on the host, and with states in a file, are those of a run without: host and GPU round
   differently, so within 1e-4.
2. The largest GPT-2 whose plan fits this machine's GPU and host trains for ten steps in bf16. Its states alone may be larger than the
   GPU. The table has its memory and the time of a step.

The models of 2.7 to 13 billion parameters have the sizes of GPT-3's (Brown et al. 2020, table 2.1), and one between them.
"""

import json
import math
import statistics
import sys
import time
from pathlib import Path

from part import GIB, MIB, ROOT, Failed, Options, Report, answer, gpu_number, parse, run, table
from trainyard import Running, finish, need_device, planned_bytes, read_metrics, remove, tail, train

MODEL = "models/gpt2.dynamo.onnx"
TRAIN = ("--train", "synthetic", "--seed", "5", "--steps", "6")
BOUND = 1e-4
CLASSES = ("optimizer", "parameters", "gradients", "activations")
# Room on the host for a part of the states of this model, and of one microbatch.
HOST_BESIDE_FILE = "1200KiB"

# The largest first, with the logarithm of the vocabulary, which is the loss of a model that knows nothing.
LARGE = ("gpt2-13b", "gpt2-10b", "gpt2-6.7b", "gpt2-2.7b", "gpt2-1.5b")
TOYS = ("gpt2-toy",)
VOCABULARY = {name: 512 if name in TOYS else 50304 for name in (*LARGE, *TOYS)}
NOTHING_KNOWN = 1.0
STEPS = 10
SEQUENCE = 1024
# What a GPU and a host keep for others: the context, kernels and workspaces; the system and this script.
GPU_RESERVE = 3 * GIB
HOST_SHARE = 0.85


def gpu_free() -> int:
    """Free bytes of the first visible GPU."""
    text = answer(["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", f"--id={gpu_number()}"])
    if text is None or not text.isdigit():
        raise Failed("nvidia-smi does not say how much memory of the GPU is free")
    return int(text) * MIB


def host_free() -> int:
    """Bytes of the host's memory that are available."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def budgets(options: Options) -> str:
    """The value of --memory for this machine."""
    if options.rehearse:
        return "device=2MiB,host=64MiB"
    device, host = gpu_free() - GPU_RESERVE, int(host_free() * HOST_SHARE)
    return f"device={device // MIB}MiB,host={host // MIB}MiB"


def check_losses(options: Options, report: Report) -> None:
    """Losses with values on the host, beside those without."""
    expected = [step["loss"] for step in train(options, MODEL, options.output / "offload-none", *TRAIN)]
    cases = {classes: ("--offload", classes) for classes in (*CLASSES, ",".join(CLASSES))}
    memory = f"host={HOST_BESIDE_FILE},disk={options.output}"
    cases["file"] = ("--offload", "optimizer,parameters", "--memory", memory)
    for name, flags in cases.items():
        folder = options.output / f"offload-{name.replace(',', '-')}"
        try:
            given = train(options, MODEL, folder, *TRAIN, *flags, "--offload-least", "1B")
        except Failed as failed:
            report.check(name, False, str(failed))
            continue
        apart = max(abs(one - other["loss"]) for one, other in zip(expected, given, strict=True))
        in_file = json.loads((folder / "plan.json").read_text())["memory"]["disk"]
        told = f"{len(given)} losses are {apart:.1e} apart at most from those without; {in_file} bytes in a file"
        report.check(name, apart <= BOUND and (in_file > 0) == (name == "file"), told)


def largest(options: Options, report: Report, flags: tuple[str, ...]) -> str | None:
    """The largest model whose plan fits."""
    for name in TOYS if options.rehearse else LARGE:
        folder, path = options.output / f"offload-plan-{name}", ROOT / "testdata/bench" / f"{name}.onnx"
        arguments = [str(options.trainyard), "inspect", str(path), "--bind", f"seq={sequence(options)}", *flags]
        log = folder.with_suffix(".log")
        began = time.monotonic()
        if finish(arguments, log, max(1, options.seconds_left())) == 0:
            report.note(f"{name} was planned in {time.monotonic() - began:.0f} s")
            return name
        report.note(f"{name} does not fit: {tail(log, 3)}")
    return None


def sequence(options: Options) -> int:
    return 32 if options.rehearse else SEQUENCE


def check_largest(options: Options, report: Report) -> None:
    """Ten steps of the largest model that fits."""
    memory = budgets(options)
    flags = ("--memory", memory, "--microbatch", "4", "--bf16")
    name = largest(options, report, flags)
    if name is None:
        report.check("largest", False, f"no model fits --memory {memory}")
        return
    folder = options.output / "offload-largest"
    more = ("--init", "gpt2", "--train", "synthetic", "--seed", "5", "--seq", str(sequence(options)))
    with Running(options, f"bench/{name}.onnx", folder, *flags, *more) as running:
        while running.steps() < STEPS:
            if running.process.poll() is not None:
                raise Failed(f"it ended: {tail(running.log)}")
            if options.seconds_left() < 10:
                raise Failed(f"{running.steps()} of {STEPS} steps are done, and the time is up: {tail(running.log)}")
            time.sleep(0.2)
    steps = read_metrics(folder)[:STEPS]
    plan = json.loads((folder / "plan.json").read_text())["memory"]
    losses = [step["loss"] for step in steps]
    knows_nothing = math.log(VOCABULARY[name])
    sound = all(math.isfinite(loss) and abs(loss - knows_nothing) < NOTHING_KNOWN for loss in losses)
    report.check("largest", sound, f"{name}: {len(losses)} losses from {losses[0]:.3f} to {losses[-1]:.3f}")
    row = {
        "model": name,
        "device GiB": round(planned_bytes(folder) / GIB, 1),
        "host GiB": round(plan["host"] / GIB, 1),
        "budgets": memory,
        "s a step": round(statistics.median(step["step_ms"] for step in steps[1:]) / 1e3, 2),
    }
    report.rows.append(row)
    print(table([row]))
    remove(folder)


def part(report: Report) -> None:
    options = report.options
    need_device(options)
    check_losses(options, report)
    check_largest(options, report)


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), part) else 1)
