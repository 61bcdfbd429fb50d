#!/usr/bin/env python3
"""Times a training step of Trainyard beside PyTorch's and ONNX Runtime's, interleaved in one run.

Forward, backward and AdamW (lr 1e-3, weight decay 0.01) in f32 on one fixed batch, the same for all. Peers take turns, `--rounds`
times over, each with a process of its own, 3 steps that do not count and `--steps` that do; what counts is the median of
all, so that a machine that is slow for a minute is slow for everyone.

    python benches/peers.py export MODELS            # once: the models and their batches (PyTorch)
    python benches/peers.py run MODELS --torch venv/bin/python --ort venv-ort/bin/python   # the table of docs/performance.md
    python benches/peers.py ranks MODELS             # dp=2 with a thread each against one rank with two

testdata/requirements.txt and benches/requirements-ort.txt say what the two environments have.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_STEPS = 3
# The models, with the samples of a batch: GPT-2 of 4 layers (d 256, 128 tokens, 8192 words), an MLP of 784-512-512-10,
# ResNet-18 for 10 classes on 32x32, the README's byte-level GPT-2 (64 tokens), and a Mixtral of 4 layers (d 256, 8 experts of 512 of
# which a token takes 2, 128 tokens, 8192 words).
BATCH = {"gpt2": 8, "mlp": 128, "resnet18": 16, "readme": 16, "mixtral": 8}


# The models, in PyTorch.


def build(name, exported=False):
    """The model with its loss, `(x, labels) -> loss`, and a batch. PyTorch runs experts in the way of transformers that is fastest on a
    processor, a loop over those that have tokens, which no exporter takes."""
    import torch
    from torch import nn
    from torch.nn import functional

    class WithLoss(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            logits = self.model(x)
            logits = getattr(logits, "logits", logits)
            return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(1)
    batch = BATCH[name]
    if name == "mlp":
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        x, labels = torch.randn(batch, 784, generator=drawn), torch.randint(0, 10, (batch,), generator=drawn)
    elif name == "gpt2":
        import transformers

        config = transformers.GPT2Config(
            n_layer=4, n_embd=256, n_head=4, vocab_size=8192, n_positions=128,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )
        model = transformers.GPT2LMHeadModel(config)
        x = torch.randint(0, 8192, (batch, 128), generator=drawn)
        labels = torch.randint(0, 8192, (batch, 128), generator=drawn)
    elif name == "mixtral":
        import transformers

        config = transformers.MixtralConfig(
            num_hidden_layers=4, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=8192, max_position_embeddings=128, num_local_experts=8, num_experts_per_tok=2, use_cache=False,
            experts_implementation="batched_mm" if exported else "eager",
        )
        model = transformers.MixtralForCausalLM(config)
        x = torch.randint(0, 8192, (batch, 128), generator=drawn)
        labels = torch.randint(0, 8192, (batch, 128), generator=drawn)
    elif name == "readme":
        sys.path.insert(0, str(ROOT / "testdata/scripts"))
        import make_quickstart

        model = make_quickstart.build_model()
        x = torch.randint(0, 256, (batch, make_quickstart.SEQUENCE), generator=drawn)
        labels = torch.randint(0, 256, x.shape, generator=drawn)
    else:
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
        x, labels = torch.randn(batch, 3, 32, 32, generator=drawn), torch.randint(0, 10, (batch,), generator=drawn)
    # The exporter merges equal initializers: scales of ones and biases of zeros are moved apart.
    moved = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=moved))
    return WithLoss(model).train(), x, labels


def export(folder):
    import numpy
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in BATCH:
        model, x, labels = build(name, exported=True)
        path = folder / f"{name}.onnx"
        names = dict(input_names=["x", "labels"], output_names=["loss"])
        if name == "resnet18":
            # The other exporter folds batch norms into the convolutions, also in training mode.
            mode = dict(dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        else:
            model.eval()
            mode = dict(dynamo=True, external_data=False, verbose=False)
        torch.onnx.export(model, (x, labels), path, **names, **mode)
        numpy.savez(folder / f"{name}.npz", x=x.numpy(), labels=labels.numpy())
        print(path, path.stat().st_size, "bytes")


# The peers. Each gives the milliseconds of its steps and its loss after them.


def timed(step, steps):
    for _ in range(WARM_STEPS):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        times.append((time.perf_counter() - start) * 1e3)
    return {"ms": times, "loss": float(loss)}


def torch_steps(name, folder, threads, steps, compiled):
    import torch

    torch.set_num_threads(threads)
    model, x, labels = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    forward = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return timed(step, steps)


def ort_steps(name, folder, threads, steps):
    import numpy
    import onnx
    import onnxruntime
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

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
            loss = module(data["x"], data["labels"])
            optimizer.step()
            module.lazy_reset_grad()
            return numpy.asarray(loss[0] if isinstance(loss, (list, tuple)) else loss)

        return timed(step, steps)


def trainyard_steps(binary, name, folder, threads, steps, extra=()):
    with tempfile.TemporaryDirectory() as made:
        command = [
            binary, "compile", folder / f"{name}.onnx", "--train", folder / f"{name}.npz",
            "--optimizer", "adamw", "--lr", "1e-3", "--weight-decay", "0.01", "--decay", "all", "--steps", str(WARM_STEPS + steps),
            "--threads", str(threads), "-o", f"{made}/run", *extra,
        ]  # fmt: skip
        ended = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if ended.returncode != 0:
            sys.exit(ended.stderr)
        lines = [json.loads(line) for line in Path(f"{made}/run/metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "counting" not in line]
        return {"ms": [line["step_ms"] for line in lines[WARM_STEPS:]], "loss": lines[-1]["loss"]}


PEERS = {
    "eager": lambda *given: torch_steps(*given, compiled=False),
    "compile": lambda *given: torch_steps(*given, compiled=True),
    "ort": ort_steps,
}


def in_process(python, peer, name, folder, threads, steps):
    """A peer's steps, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    command = [python, __file__, "peer", folder, peer, name, str(threads), "--steps", str(steps)]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    if ended.returncode != 0:
        sys.exit(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


# The runs.


def median(runs):
    return statistics.median(ms for run in runs for ms in run["ms"])


def run(arguments):
    print(f"{'model':10}{'threads':>8}{'trainyard':>11}" + "".join(f"{peer:>11}{'ratio':>7}" for peer in PEERS))
    for name in arguments.only:
        for threads in arguments.threads:
            runs = {peer: [] for peer in ("trainyard", *PEERS)}
            for _ in range(arguments.rounds):
                for peer, done in runs.items():
                    if peer == "trainyard":
                        done.append(trainyard_steps(arguments.trainyard, name, arguments.models, threads, arguments.steps))
                    elif python := arguments.ort if peer == "ort" else arguments.torch:
                        done.append(in_process(python, peer, name, arguments.models, threads, arguments.steps))
            ours = median(runs["trainyard"])
            row = f"{name:10}{threads:8}{ours:11.2f}"
            for peer in PEERS:
                row += f"{median(runs[peer]):11.2f}{ours / median(runs[peer]):7.2f}" if runs[peer] else f"{'-':>11}{'-':>7}"
            losses = ", ".join(f"{peer} {done[-1]['loss']:.5f}" for peer, done in runs.items() if done)
            print(f"{row}   losses: {losses}", flush=True)


def ranks(arguments):
    """Two ranks of one thread for each stage of ZeRO, beside one rank of two threads."""
    stages = range(4)
    print(f"{'model':10}{'one rank':>10}" + "".join(f"{f'zero {stage}':>10}{'ratio':>7}" for stage in stages))
    for name in arguments.only:
        split = ("--mesh", "dp=2", "--microbatch", str(BATCH[name] // 2))
        ways = [(), *((*split, "--zero", str(stage)) for stage in stages)]
        runs = [[] for _ in ways]
        for _ in range(arguments.rounds):
            for way, done in zip(ways, runs):
                done.append(trainyard_steps(arguments.trainyard, name, arguments.models, 2, arguments.steps, way))
        one, *split = [median(done) for done in runs]
        losses = ", ".join(f"{done[-1]['loss']:.5f}" for done in runs)
        print(f"{name:10}{one:10.2f}" + "".join(f"{ms:10.2f}{ms / one:7.2f}" for ms in split) + f"   losses: {losses}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["export", "run", "ranks", "peer"])
    parser.add_argument("models", type=Path, help="the folder of the models")
    parser.add_argument("what", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary")
    parser.add_argument("--torch", help="the Python that has PyTorch")
    parser.add_argument("--ort", help="the Python that has ONNX Runtime's training")
    parser.add_argument("--only", nargs="+", default=list(BATCH), choices=list(BATCH))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.action == "export":
        export(arguments.models)
    elif arguments.action == "run":
        run(arguments)
    elif arguments.action == "ranks":
        ranks(arguments)
    else:
        peer, name, threads = arguments.what
        warnings.filterwarnings("ignore")
        print(json.dumps(PEERS[peer](name, arguments.models, int(threads), arguments.steps)))


if __name__ == "__main__":
    main()
