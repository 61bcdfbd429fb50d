"""The models of the benchmark, in PyTorch: what Trainyard's graphs are exported from, and what it is timed against.

GPT-2 (Radford et al. 2019) in three of its sizes, with the tanh form of GELU and the head tied to the embedding; GPT-2 in larger
sizes, which rest on the host for the most part (offload.py); and a Llama in the size of Llama 3.2 1B: grouped queries, rotary embedding, SwiGLU, a tied head. Two things differ from what was published,
for both sides: GPT-2's vocabulary is padded from 50257 to 50304, a multiple of 64, which matrix units want; and its table of
positions has 2048 rows. There is no dropout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

ROTARY_BASE = 500_000.0
NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Config:
    """The size of a model."""

    family: str
    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int
    positions: int

    def build(self) -> "GPT2 | Llama":
        """The model, with PyTorch's own weights."""
        return {"gpt2": GPT2, "llama": Llama}[self.family](self)

    def flops_per_token(self, sequence: int) -> float:
        """Floating-point operations of forward and backward for a token: 6 for each weight that is multiplied with it, the tied
        head among them, and 6 · width · sequence a layer for attention, which is causal (Chowdhery et al. 2022, appendix B, whose
        12 count the half that is masked too)."""
        head_width = self.width // self.heads
        projections = self.width * (2 * self.width + 2 * self.key_heads * head_width)
        matrices = {"gpt2": 2, "llama": 3}[self.family]
        layer = projections + matrices * self.width * self.hidden
        weights = self.layers * layer + self.vocabulary * self.width
        return 6.0 * weights + 6.0 * self.layers * self.width * sequence


def gpt2(layers: int, width: int, heads: int, vocabulary: int = 50304, positions: int = 2048) -> Config:
    """A GPT-2."""
    return Config("gpt2", layers, width, heads, heads, 4 * width, vocabulary, positions)


# Those of the benchmark, and two toys in which the script is rehearsed on a processor.
CONFIGS = {
    "gpt2-124m": gpt2(12, 768, 12),
    "gpt2-350m": gpt2(24, 1024, 16),
    "gpt2-1.5b": gpt2(48, 1600, 25),
    "gpt2-2.7b": gpt2(32, 2560, 32),
    "gpt2-6.7b": gpt2(32, 4096, 32),
    "gpt2-10b": gpt2(48, 4096, 32),
    "gpt2-13b": gpt2(40, 5120, 40),
    "llama-1b": Config("llama", 16, 2048, 32, 8, 8192, 128256, 2048),
    "gpt2-toy": gpt2(2, 64, 4, vocabulary=512, positions=128),
    "llama-toy": Config("llama", 2, 64, 4, 2, 128, 512, 128),
}


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[batch, sequence, heads · d]` as `[batch, heads, sequence, d]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(2)


class GPT2Block(nn.Module):
    """Attention, then an MLP, each behind a norm and added to what came in."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, config.hidden), nn.Linear(config.hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(merge_heads(attended))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """`input_ids` of `[batch, sequence]` to logits."""

    def __init__(self, config: Config):
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.positions, config.width)
        self.h = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), self.wte.weight)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of `[batch, heads, sequence, d]`, with pairs half a head apart as in Llama."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cosine.to(x.dtype) + turned * sine.to(x.dtype)


class LlamaBlock(nn.Module):
    """Attention of grouped queries, then SwiGLU, each behind a norm and added to what came in."""

    def __init__(self, config: Config):
        super().__init__()
        width, narrow = config.width, config.key_heads * (config.width // config.heads)
        self.heads, self.key_heads = config.heads, config.key_heads
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPSILON)
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPSILON)
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(width, narrow, bias=False), nn.Linear(width, narrow, bias=False)
        self.gate_proj = nn.Linear(width, config.hidden, bias=False)
        self.up_proj = nn.Linear(width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        query = rotate(split_heads(self.q_proj(normed), self.heads), cosine, sine)
        key = rotate(split_heads(self.k_proj(normed), self.key_heads), cosine, sine)
        value = split_heads(self.v_proj(normed), self.key_heads)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(merge_heads(attended))
        normed = self.mlp_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Llama(nn.Module):
    """`input_ids` of `[batch, sequence]` to logits."""

    def __init__(self, config: Config):
        super().__init__()
        self.head_width = config.width // config.heads
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=NORM_EPSILON)

    def forward(self, input_ids: Tensor) -> Tensor:
        cosine, sine = self.rotation(input_ids.shape[1], input_ids.device)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return functional.linear(self.norm(x), self.embed_tokens.weight)

    def rotation(self, sequence: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `[sequence, d]`, in f32 whatever the model computes in."""
        pairs = torch.arange(0, self.head_width, 2, device=device, dtype=torch.float32)
        frequencies = ROTARY_BASE ** (-pairs / self.head_width)
        positions = torch.arange(sequence, device=device, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()
