"""PyTorch as the benchmark's peer: the same model, trained by eager kernels and by torch.compile, in two precisions.

- `autocast`: weights, gradients and AdamW's states in f32; `torch.autocast` runs matrices and attention in bf16.
- `bf16`: weights and gradients in bf16; f32 masters and AdamW's states beside them, and each step copies gradients up and
  weights down. This is how `trainyard --bf16` computes, but that it has the gradients of weights in f32.

Attention is `scaled_dot_product_attention`, AdamW the fused one, both as PyTorch chooses them. Nothing is recomputed. Batches lie
on the GPU already, and the loss is not read back between steps: a real loop is slower.

benchmark.py starts this file as a program for each contender, which then has the GPU to itself:

    peer.py '{"model": "gpt2-124m", "precision": "bf16", "compiled": true, ...}'

`Visit` has the keys. A line of JSON is appended to the file `results` for what is known at each time: the first losses, each
burst, and at last the exception that ended it, if one did.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
from models import CONFIGS, Config
from part import memory_taken
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
BATCHES = 4
WARM_STEPS = 3


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def decay_matrices(parameters: list[Tensor]) -> list[dict]:
    """AdamW's groups: matrices decay, vectors do not, as `trainyard` has it."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]


class Trainer:
    """A model with its optimizer in one precision."""

    def __init__(self, config: Config, precision: str, batch: int, sequence: int, device: torch.device):
        self.precision, self.device = precision, device
        with device:
            torch.manual_seed(0)
            self.model = config.build()
            shape = (BATCHES, 2, batch, sequence)
            self.batches = torch.randint(0, config.vocabulary, shape)
        self.scale_down(self.model)
        if precision == "bf16":
            self.model.to(torch.bfloat16)
        self.parameters = list(self.model.parameters())
        self.masters = self.parameters
        if precision == "bf16":
            self.masters = [nn.Parameter(parameter.detach().float()) for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(decay_matrices(self.masters), lr=LEARNING_RATE, fused=True)
        self.done = 0

    @staticmethod
    def scale_down(model: nn.Module) -> None:
        """GPT-2's deviation: PyTorch's own tables, of deviation 1, would drown all else where the head is tied to one."""
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy, in f32."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "autocast"):
            logits = self.model(input_ids)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def step(self, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Forward, backward and update; the loss, which need not be there yet."""
        input_ids, labels = self.batches[self.done % BATCHES]
        self.done += 1
        loss = loss_of(input_ids, labels)
        loss.backward()
        if self.masters is not self.parameters:
            gradients = [parameter.grad for parameter in self.parameters]
            for master in self.masters:
                master.grad = torch.empty_like(master)
            torch._foreach_copy_([master.grad for master in self.masters], gradients)
            for parameter in self.parameters:
                parameter.grad = None
        self.optimizer.step()
        if self.masters is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        for tensor in self.masters:
            tensor.grad = None
        return loss.detach()


class Contender:
    """Steps of a trainer, eager or compiled."""

    def __init__(self, trainer: Trainer, compiled: bool):
        self.trainer = trainer
        self.loss_of = torch.compile(trainer.loss, dynamic=False) if compiled else trainer.loss

    def warm_up(self) -> float:
        """The first steps, which compile; the loss."""
        for _ in range(WARM_STEPS):
            loss = self.trainer.step(self.loss_of)
        return float(loss)

    def burst(self, seconds: float, least: int) -> tuple[int, float]:
        """Steps for so long, and so many at least; the steps and the seconds that they took."""
        device = self.trainer.device
        synchronize(device)
        began = time.perf_counter()
        self.trainer.step(self.loss_of)
        synchronize(device)
        steps = max(least, int(seconds / (time.perf_counter() - began)))
        began = time.perf_counter()
        for _ in range(steps):
            self.trainer.step(self.loss_of)
        synchronize(device)
        return steps, time.perf_counter() - began


def trace(contender: Contender, path: str) -> None:
    """Writes the kernels of a step, as Perfetto and chrome://tracing read them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if contender.trainer.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        contender.trainer.step(contender.loss_of)
        synchronize(contender.trainer.device)
    profiler.export_chrome_trace(path)


@dataclass
class Visit:
    """What the process of a contender does."""

    model: str
    precision: str
    compiled: bool
    batch: int
    sequence: int
    device: str
    # The file that gets a line of JSON for what is known.
    results: str
    rounds: int
    burst_seconds: float
    least_steps: int
    # Bytes of the GPU that were in use before it began.
    taken_before: int
    # The file of its trace, if it makes one.
    trace: str | None = None
    # A fault to rehearse: `raise`, `die` or `memory`.
    planted: str | None = None

    def say(self, **found) -> None:
        """Appends a line to the results."""
        with open(self.results, "a") as results:
            results.write(json.dumps(found) + "\n")

    def fail(self) -> None:
        """Fails as it was planted to."""
        if self.planted == "raise":
            raise ValueError("planted")
        if self.planted == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.planted == "memory":
            torch.empty(1 << 60, dtype=torch.uint8, device=self.device)

    def run(self) -> None:
        """Warms up, measures, and traces."""
        device = torch.device(self.device)
        torch.set_float32_matmul_precision("high")
        trainer = Trainer(CONFIGS[self.model], self.precision, self.batch, self.sequence, device)
        contender = Contender(trainer, self.compiled)
        self.fail()
        self.say(first_loss=contender.warm_up())
        if device.type == "cuda":
            # Compiling took memory that steps do not.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(self.rounds):
            steps, seconds = contender.burst(self.burst_seconds, self.least_steps)
            memory = {}
            if device.type == "cuda":
                taken = memory_taken() - self.taken_before
                memory = {"allocated": torch.cuda.max_memory_allocated(), "taken": taken}
            self.say(steps=steps, seconds=seconds, **memory)
        if self.trace:
            trace(contender, self.trace)


def is_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory is short, on the GPU or on the processor."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def main() -> int:
    """The process of a contender."""
    visit = Visit(**json.loads(sys.argv[1]))
    try:
        visit.run()
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        visit.say(error=text, of_memory=is_of_memory(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
