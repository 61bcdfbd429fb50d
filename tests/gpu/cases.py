"""What the benchmark's parts run, and for how long."""

from dataclasses import dataclass

from models import CONFIGS, Config
from part import Options


@dataclass(frozen=True)
class Timing:
    """How long it is measured."""

    # Of each process of a contender, which may have two.
    rounds: int
    burst_seconds: float
    least_steps: int
    warm_steps: int


@dataclass(frozen=True)
class Case:
    """What a part runs."""

    name: str
    # Of each microbatch, which is a step.
    tokens: int

    @property
    def config(self) -> Config:
        """The model."""
        return CONFIGS[self.name]


CASES = {
    "124m": Case("gpt2-124m", 32768),
    "350m": Case("gpt2-350m", 16384),
    "1.5b": Case("gpt2-1.5b", 8192),
    "llama": Case("llama-1b", 8192),
}
TOY = {"llama": Case("llama-toy", 128)}
REAL_TIMING = Timing(rounds=3, burst_seconds=2.0, least_steps=5, warm_steps=5)
REHEARSAL_TIMING = Timing(rounds=2, burst_seconds=0.05, least_steps=2, warm_steps=2)


def case_of(options: Options) -> Case:
    """The model of a part."""
    return TOY.get(options.part, Case("gpt2-toy", 128)) if options.rehearse else CASES[options.part]


def timing_of(options: Options) -> Timing:
    """How long a part measures."""
    return REHEARSAL_TIMING if options.rehearse else REAL_TIMING
