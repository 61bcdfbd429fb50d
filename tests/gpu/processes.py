"""Part processes: ranks as processes, two on one GPU.

NCCL takes two ranks for two machines where NCCL_HOSTID differs, so one GPU stands for two. Traffic goes over sockets: this proves
that the calls are right, and says nothing about speed.

1. Six losses of GPT-2 on meshes of two processes are those of one process.
2. One of two processes is killed, and the other one ends and names it.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from part import ROOT, Failed, Options, Report, parse, run
from trainyard import command, need_device, read_metrics, tail, train

MODEL = "models/gpt2.dynamo.onnx"
# Two microbatches of one process are the batch of two data ranks.
TRAIN = ("--train", "synthetic", "--seed", "5", "--global-batch", "4")
STEPS = 6
BOUND = 1e-4
# A process that is killed must be noticed within this time.
SECONDS = 30
MESHES = {
    "dp": ("--mesh", "dp=2"),
    "tp": ("--mesh", "tp=2"),
    "zero1": ("--mesh", "dp=2", "--zero", "1"),
    "zero3": ("--mesh", "dp=2", "--zero", "3"),
    "pp": ("--mesh", "pp=2"),
    "zb-v": ("--mesh", "pp=2", "--schedule", "zb-v"),
}

# Ranks on one GPU: sockets alone, and few blocks, so that the kernels of both fit the GPU at once.
NCCL = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MAX_CTAS": "2",
    # Versions from 2.30.3 on allow several ranks on a GPU by this.
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


def free_port() -> int:
    """A port whose successor is free now: rank 0 listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1] - 1


def environment(rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set for a rank, and those of NCCL."""
    torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return os.environ | NCCL | {key: str(value) for key, value in torchrun.items()} | {
        "NCCL_HOSTID": f"rank{rank}",
        "CUDA_VISIBLE_DEVICES": gpu,
    }


def start(options: Options, folder: Path, *flags: str) -> list[subprocess.Popen]:
    """Two processes of one run; each writes a log."""
    arguments = command(options, MODEL, folder, (*TRAIN, "--timeout", "60", *flags), options.device)
    port = free_port()
    processes = []
    for rank in range(2):
        with open(log_of(folder, rank), "wb") as out:
            processes.append(
                subprocess.Popen(
                    arguments, stdout=out, stderr=out, cwd=ROOT, env=environment(rank, port), start_new_session=True
                )
            )
    return processes


def log_of(folder: Path, rank: int) -> Path:
    return folder.with_name(f"{folder.name}-rank{rank}.log")


def end(processes: list[subprocess.Popen]) -> None:
    """Ends what is left of a run."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def losses(options: Options, folder: Path, *flags: str) -> list[float]:
    """The losses of a run of two processes."""
    processes = start(options, folder, "--steps", str(STEPS), *flags)
    try:
        for rank, process in enumerate(processes):
            if process.wait(max(1, min(120, options.seconds_left()))) != 0:
                raise Failed(f"rank {rank} failed: {tail(log_of(folder, 0))}\n{tail(log_of(folder, 1))}")
    except subprocess.TimeoutExpired:
        raise Failed(f"it hangs: {tail(log_of(folder, 0))}\n{tail(log_of(folder, 1))}") from None
    finally:
        end(processes)
    return [step["loss"] for step in read_metrics(folder)]


def check_killed(options: Options, report: Report) -> None:
    """Kills rank 1 in the middle of a run; rank 0 must end by itself and name it."""
    folder = options.output / "processes-killed"
    processes = start(options, folder, "--steps", "1000000", "--mesh", "dp=2")
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() or len(read_metrics(folder)) < 3:
            if time.monotonic() > deadline or processes[0].poll() is not None:
                raise Failed(f"it does not begin: {tail(log_of(folder, 0))}")
            time.sleep(0.2)
        os.killpg(processes[1].pid, signal.SIGKILL)
        began = time.monotonic()
        status = processes[0].wait(SECONDS)
        told = tail(log_of(folder, 0))
        found = f"rank 0 ended with {status} after {time.monotonic() - began:.1f} s"
        report.check("killed", status != 0 and "rank 1 failed" in told, found)
    except subprocess.TimeoutExpired:
        report.check("killed", False, f"rank 0 still runs {SECONDS} s after rank 1 was killed")
    finally:
        end(processes)


def part(report: Report) -> None:
    options = report.options
    need_device(options)
    flags = (*TRAIN, "--steps", str(STEPS))
    expected = [step["loss"] for step in train(options, MODEL, options.output / "processes-one", *flags)]
    for name, mesh in MESHES.items():
        folder = options.output / f"processes-{name}"
        try:
            if options.rehearse:
                # On the processor the ranks are threads.
                given = [step["loss"] for step in train(options, MODEL, folder, *flags, *mesh)]
            else:
                given = losses(options, folder, *mesh)
        except Failed as failed:
            report.check(name, False, str(failed))
            continue
        apart = max(abs(one - other) for one, other in zip(expected, given, strict=True))
        report.check(name, apart <= BOUND, f"{len(given)} losses are {apart:.1e} apart at most from one process's")
    if options.rehearse:
        report.note("no process is killed: on the processor the ranks are threads")
    else:
        check_killed(options, report)


if __name__ == "__main__":
    sys.exit(0 if run(parse(sys.argv[1:]), part) else 1)
