"""PyTorch as the benchmark's peer: the same model, trained by eager kernels and by torch.compile, in two precisions.

- `autocast`: weights, gradients and AdamW's states in f32; `torch.autocast` runs matrices and attention in bf16.
- `bf16`: weights and gradients in bf16; f32 masters and AdamW's states beside them, and each step copies gradients up and
  weights down. This is how `trainyard --bf16` computes, but that it has the gradients of weights in f32.

Attention is `scaled_dot_product_attention`, AdamW the fused one, both as PyTorch chooses them. Nothing is recomputed. Batches lie
on the GPU already, and the loss is not read back between steps: a real loop is slower.
"""

import gc
import time
from collections.abc import Callable

import torch
from models import Config
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
    """A model with its optimizer in one precision. Eager and compiled steps share it: memory holds its states once."""

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

    def resident(self) -> int:
        """Bytes of what stays from step to step: weights, masters, AdamW's states, which the first step makes, and batches."""
        states = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        return sum(tensor.nbytes for tensor in {*self.parameters, *self.masters, *states, self.batches})

    def step(self, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Forward, backward and update; the loss, which need not be there yet."""
        try:
            return self.train(loss_of)
        finally:
            # Also where it ran out of memory: what is left of it would burden the next.
            for tensor in [*self.parameters, *self.masters]:
                tensor.grad = None

    def train(self, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A step that leaves its gradients."""
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
        return loss.detach()


class Contender:
    """Steps of a trainer, eager or compiled. `taken_besides` are the bytes of the GPU that other programs have taken."""

    def __init__(self, trainer: Trainer, compiled: bool, taken_besides: int):
        self.trainer, self.compiled, self.taken_besides = trainer, compiled, taken_besides
        self.loss_of = torch.compile(trainer.loss, dynamic=False) if compiled else trainer.loss
        self.peak_allocated = 0
        self.peak_taken = 0

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"PyTorch {'compiled' if self.compiled else 'eager'}"

    def warm_up(self) -> float:
        """The first steps, which compile; the loss."""
        for _ in range(WARM_STEPS):
            loss = self.trainer.step(self.loss_of)
        return float(loss)

    def burst(self, seconds: float, least: int) -> tuple[int, float]:
        """Steps for so long, and so many at least; the steps and the seconds that they took."""
        device = self.trainer.device
        self.begin_memory()
        # The allocator has given its memory back since the last burst.
        for _ in range(WARM_STEPS):
            self.trainer.step(self.loss_of)
        synchronize(device)
        began = time.perf_counter()
        self.trainer.step(self.loss_of)
        synchronize(device)
        steps = max(least, int(seconds / (time.perf_counter() - began)))
        began = time.perf_counter()
        for _ in range(steps):
            self.trainer.step(self.loss_of)
        synchronize(device)
        taken = time.perf_counter() - began
        self.end_memory()
        return steps, taken

    def begin_memory(self) -> None:
        """Counts from here on, and without what other trainers hold, nor cuBLAS, whose workspaces lie among the tensors."""
        if self.trainer.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            resident = self.trainer.resident()
            self.allocated_by_others = torch.cuda.memory_allocated() - resident
            self.reserved_by_others = torch.cuda.memory_reserved() - resident

    def end_memory(self) -> None:
        """Keeps the most that tensors took, and what the process has taken, whose allocator gave nothing back meanwhile."""
        if self.trainer.device.type == "cuda":
            allocated = torch.cuda.max_memory_allocated() - self.allocated_by_others
            taken = memory_taken() - self.taken_besides - self.reserved_by_others
            self.peak_allocated = max(self.peak_allocated, allocated)
            self.peak_taken = max(self.peak_taken, taken)
            torch.cuda.empty_cache()


def trace(contender: Contender, path: str) -> None:
    """Writes the kernels of a step, as Perfetto and chrome://tracing read them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if contender.trainer.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    contender.warm_up()
    with torch.profiler.profile(activities=activities) as profiler:
        contender.trainer.step(contender.loss_of)
        synchronize(contender.trainer.device)
    profiler.export_chrome_trace(path)


def forget() -> None:
    """Frees what no contender holds any more, compiled code with it."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
