#!/usr/bin/env python3
"""Times a training step of Trainyard beside PyTorch's and ONNX Runtime's, interleaved in one run.

Forward, backward and AdamW (lr 1e-3, weight decay 0.01) in f32 on one fixed batch, the same for all. Peers take turns, `--rounds`
times over, each with a process of its own, 3 steps that do not count and `--steps` that do. The result is the median of all steps, so
that a machine that is slow for a minute is slow for everyone. The losses of the last step are compared, and those after the first update
where batch norm is trained: a row whose losses differ did other work, and the script ends with 1.

    python benches/peers.py export MODELS            # once: the models and their batches (PyTorch)
    python benches/peers.py run MODELS --torch venv/bin/python --ort venv-ort/bin/python   # the table of docs/performance.md
    python benches/peers.py run MODELS --torch venv/bin/python --bf16 --device cpu-amx   # beside PyTorch's autocast to bf16
    python benches/peers.py ranks MODELS             # dp=2 with a thread each against one rank with two

`models.py` has the models. testdata/requirements.txt and benches/requirements-ort.txt list the packages of the two environments.
"""

import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_STEPS = 3
# The largest relative difference between the losses of two peers after the last step, in f32 and in bf16. ONNX Runtime's losses differ by
# more.
TOLERANCE = {False: 1e-3, True: 3e-2}
# The same after the first update, where batch norm is trained. Gradients of parameters before a batch norm are nearly zero, and AdamW gives
# them the same step as others, so that rounding decides on its sign: eager's own losses on one thread and on two differ by 2e-3 then, by 2e-2
# a step later, and soon by more.
TOLERANCE_OF_BATCH_NORM = {False: 5e-3, True: 3e-2}
# Rows that the geometric mean leaves out: PyTorch takes many times as long.
APART = ("dlrm", "graph")


def export(arguments):
    import numpy
    import torch

    from models import build

    arguments.models.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        model, inputs = build(name, exported=True)
        path = arguments.models / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(
                model, tuple(inputs.values()), path, input_names=list(inputs), output_names=["loss"], dynamo=True,
                optimize=False, external_data=False, verbose=False,
            )  # fmt: skip
        numpy.savez(arguments.models / f"{name}.npz", **{key: value.numpy() for key, value in inputs.items()})
        print(path, path.stat().st_size, "bytes")


# The peers. Each gives the milliseconds of its steps, the losses of all steps, and the memory that it took above that of its start, in MiB.


def timed(step, steps):
    losses = [step() for _ in range(WARM_STEPS)]
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        times.append((time.perf_counter() - start) * 1e3)
    return {"ms": times, "losses": list(map(float, losses))}


def resident():
    """Returns the resident memory of this process in MiB, now and at its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def torch_steps(name, folder, threads, steps, compiled=False, autocast=False):
    import torch

    from models import build

    torch.set_num_threads(threads)
    before, _ = resident()
    model, inputs = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    forward = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = forward(*inputs.values())
        loss.backward()
        optimizer.step()
        return loss.item()

    return {**timed(step, steps), "mib": resident()[1] - before}


def ort_steps(name, folder, threads, steps):
    import numpy
    import onnx
    import onnxruntime
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    before, _ = resident()
    model = onnx.load(folder / f"{name}.onnx")
    for node in model.graph.node:
        # Its gradient builder wants outputs that exporters leave away.
        if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.output) == 1:
            node.output.append("log_probabilities")
        if node.op_type == "LayerNormalization":
            missing = ("mean", "deviation")[len(node.output) - 1 :]
            node.output.extend(f"{node.output[0]}.{part}" for part in missing)
    used = {name for node in model.graph.node for name in node.input}
    weighted = ("Conv", "Gemm", "LayerNormalization", "BatchNormalization")
    weights = {name for node in model.graph.node if node.op_type in weighted for name in node.input[1:3]}
    trained = [
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == 1 and tensor.dims and tensor.name in used
        if tensor.name in weights or tensor.name.split(".")[-1] in ("weight", "bias") or tensor.name.startswith("embedding")
    ]
    data = numpy.load(folder / f"{name}.npz")
    with tempfile.TemporaryDirectory() as made:
        artifacts.generate_artifacts(
            model, requires_grad=trained, loss=None, optimizer=artifacts.OptimType.AdamW, artifact_directory=made
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        state = CheckpointState.load_checkpoint(f"{made}/checkpoint")
        module = Module(f"{made}/training_model.onnx", state, None, session_options=options)
        optimizer = Optimizer(f"{made}/optimizer_model.onnx", module)
        optimizer.set_learning_rate(1e-3)
        module.train()

        def step():
            loss = module(*(data[key] for key in data.files))
            optimizer.step()
            module.lazy_reset_grad()
            return numpy.asarray(loss[0] if isinstance(loss, (list, tuple)) else loss)

        return {**timed(step, steps), "mib": resident()[1] - before}


def run_binary(binary, *arguments):
    """Runs the compiler. Returns its output and its peak of resident memory in MiB."""
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(list(map(str, (binary, *arguments))), stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        told = output.read()
    if started.returncode != 0:
        sys.exit(told)
    return told, usage.ru_maxrss / 2**10


def trainyard_steps(binary, name, folder, threads, steps, extra=()):
    with tempfile.TemporaryDirectory() as made:
        _, before = run_binary(binary, "--version")
        _, peak = run_binary(
            binary, "compile", folder / f"{name}.onnx", "--train", folder / f"{name}.npz", "--optimizer", "adamw",
            "--lr", "1e-3", "--weight-decay", "0.01", "--decay", "all", "--steps", WARM_STEPS + steps, "--threads", threads,
            "-o", f"{made}/run", *extra,
        )  # fmt: skip
        lines = [json.loads(line) for line in Path(f"{made}/run/metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "counting" not in line]
        return {"ms": [line["step_ms"] for line in lines[WARM_STEPS:]], "losses": [line["loss"] for line in lines], "mib": peak - before}


def torch_product(threads):
    """Returns the GFLOP/s of a product of two matrices of 1024 x 1024: the best of ten."""
    import torch

    torch.set_num_threads(threads)
    lhs, rhs = torch.full((1024, 1024), 0.5), torch.full((1024, 1024), 0.25)

    def once():
        start = time.perf_counter()
        torch.mm(lhs, rhs)
        return 2 * 1024**3 / (time.perf_counter() - start) / 1e9

    return max(once() for _ in range(10))


PEERS = {
    "eager": torch_steps,
    "compile": lambda *given: torch_steps(*given, compiled=True),
    "autocast": lambda *given: torch_steps(*given, autocast=True),
    "ort": ort_steps,
}


def in_process(python, threads, *arguments):
    """The answer of a peer, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(list(map(str, (python, __file__, *arguments))), capture_output=True, text=True, env=environment)
    if ended.returncode != 0:
        sys.exit(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


# The runs.


def median(runs):
    return statistics.median(ms for run in runs for ms in run["ms"])


def processor(arguments):
    """Returns lines about the processor: its name, its instructions, and the rates of a large product."""
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    lines = [f"{facts.get('model name', 'unknown processor')} ({', '.join(word for word in known if word in facts.get('flags', '').split())})"]
    name = arguments.only[0]
    for threads in arguments.threads:
        with tempfile.TemporaryDirectory() as made:
            given = ("compile", arguments.models / f"{name}.onnx", "--train", "synthetic", "--steps", 1, "--profile")
            told, _ = run_binary(arguments.trainyard, *given, "--threads", threads, "-o", f"{made}/run")
        rates = {"trainyard": float(re.search(r"of the ([\d.]+) GFLOP/s of a large", told)[1])}
        if arguments.torch:
            rates["torch"] = in_process(arguments.torch, threads, "product", arguments.models, threads)
        of_each = ", ".join(f"{peer} {rate:.0f}" for peer, rate in rates.items())
        lines.append(f"GFLOP/s of a product of 1024 x 1024 on {threads} threads: {of_each}")
    return lines


def peers_of(arguments):
    """Returns the peers that have an environment, each with its Python."""
    torch = ("eager", "autocast") if arguments.bf16 else ("eager", "compile")
    peers = {peer: arguments.torch for peer in torch if arguments.torch}
    return {**peers, "ort": arguments.ort} if arguments.ort and not arguments.bf16 else peers


def compared(name, arguments):
    """Returns the index of the loss that is compared, and the largest relative difference."""
    # Line by line: a child's peak of memory begins with that of its parent, so this process has to stay small.
    with open(arguments.models / f"{name}.onnx", "rb") as file:
        if any(b"BatchNormalization" in line for line in file):
            return 1, TOLERANCE_OF_BATCH_NORM[arguments.bf16]
    return -1, TOLERANCE[arguments.bf16]


def differ(losses, tolerance):
    """Whether the losses of Trainyard and PyTorch differ."""
    losses = [loss for peer, loss in losses.items() if peer != "ort"]
    return max(losses) - min(losses) > tolerance * max(map(abs, losses))


def run(arguments):
    print("\n".join(processor(arguments)))
    peers = {peer: python for peer, python in peers_of(arguments).items() if peer not in arguments.without}
    # With --bf16, the row has Trainyard's own step in f32 too.
    ours = ("trainyard", "f32") if arguments.bf16 else ("trainyard",)
    print(f"{'model':13}{'threads':>8}{'trainyard':>11}{'MiB':>7}" + "".join(f"{peer:>11}{'ratio':>7}{'MiB':>7}" for peer in (*ours[1:], *peers)))
    ratios, wrong = {}, []
    for name in arguments.only:
        for threads in arguments.threads:
            runs = {peer: [] for peer in (*ours, *peers)}
            for _ in range(arguments.rounds):
                for peer, done in runs.items():
                    if peer in ours:
                        extra = ("--bf16", "--device", arguments.device) if arguments.bf16 and peer == "trainyard" else ()
                        done.append(trainyard_steps(arguments.trainyard, name, arguments.models, threads, arguments.steps, extra))
                    else:
                        given = ("peer", arguments.models, peer, name, threads, "--steps", arguments.steps)
                        done.append(in_process(peers[peer], threads, *given))
            mib = {peer: statistics.median(run["mib"] for run in done) for peer, done in runs.items()}
            row = f"{name:13}{threads:8}{median(runs['trainyard']):11.2f}{mib['trainyard']:7.0f}"
            for peer in (*ours[1:], *peers):
                ratio = median(runs["trainyard"]) / median(runs[peer])
                ratios.setdefault((peer, threads), {})[name] = ratio
                row += f"{median(runs[peer]):11.2f}{ratio:7.2f}{mib[peer]:7.0f}"
            step, tolerance = compared(name, arguments)
            losses = {peer: done[-1]["losses"][step] for peer, done in runs.items()}
            told = ", ".join(f"{peer} {loss:.5f}" for peer, loss in losses.items())
            print(f"{row}   losses: {told}", flush=True)
            if differ(losses, tolerance):
                wrong.append(name)
    for (peer, threads), of_models in ratios.items():
        counted = [ratio for name, ratio in of_models.items() if name not in APART]
        if counted:
            print(f"geometric mean beside {peer} on {threads} threads: {math.exp(statistics.mean(map(math.log, counted))):.2f}")
    if wrong:
        sys.exit(f"the losses differ: {', '.join(wrong)}")


def ranks(arguments):
    """Two ranks of one thread for each stage of ZeRO, beside one rank of two threads."""
    import numpy

    stages = range(4)
    print(f"{'model':13}{'one rank':>10}" + "".join(f"{f'zero {stage}':>10}{'ratio':>7}" for stage in stages))
    for name in arguments.only:
        with numpy.load(arguments.models / f"{name}.npz") as batch:
            samples = len(batch[batch.files[0]])
        split = ("--mesh", "dp=2", "--microbatch", str(samples // 2))
        ways = [(), *((*split, "--zero", str(stage)) for stage in stages)]
        runs = [[] for _ in ways]
        for _ in range(arguments.rounds):
            for way, done in zip(ways, runs):
                done.append(trainyard_steps(arguments.trainyard, name, arguments.models, 2, arguments.steps, way))
        one, *split = [median(done) for done in runs]
        losses = ", ".join(f"{done[-1]['loss']:.5f}" for done in runs)
        print(f"{name:13}{one:10.2f}" + "".join(f"{ms:10.2f}{ms / one:7.2f}" for ms in split) + f"   losses: {losses}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["export", "run", "ranks", "peer", "product"])
    parser.add_argument("models", type=Path, help="the folder of the models")
    parser.add_argument("what", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary")
    parser.add_argument("--torch", help="the Python that has PyTorch")
    parser.add_argument("--ort", help="the Python that has ONNX Runtime's training")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="some of the models")
    parser.add_argument("--without", nargs="+", default=[], metavar="PEER", help="peers to leave out: eager, compile, autocast, ort")
    parser.add_argument("--bf16", action="store_true", help="train in bf16, beside PyTorch's autocast and our own f32")
    parser.add_argument("--device", default="cpu", help="with --bf16: the device of Trainyard's step in bf16, such as cpu-amx")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.action in ("run", "ranks") and not arguments.only:
        arguments.only = sorted(path.stem for path in arguments.models.glob("*.onnx"))
    if arguments.action == "export":
        from models import MODELS

        arguments.only = arguments.only or list(MODELS)
        export(arguments)
    elif arguments.action == "run":
        run(arguments)
    elif arguments.action == "ranks":
        ranks(arguments)
    elif arguments.action == "product":
        print(torch_product(int(arguments.what[0])))
    else:
        peer, name, threads = arguments.what
        print(json.dumps(PEERS[peer](name, arguments.models, int(threads), arguments.steps)))


if __name__ == "__main__":
    main()
