"""Families whose weights are computed from other parameters, and families with uncommon parameters and buffers.

The dynamo exporter folds a computed tensor whose operands have at most 8,192 elements, so most families come in two sizes.
"""

import math

import torch
from family import Family
from images import image
from language import tokens
from torch import nn
from torch.nn import functional

SMALL, LARGE = 16, 128


class Wrapped(nn.Module):
    """A perceptron whose two wide layers `make(inputs, outputs)` builds."""

    def __init__(self, make, width):
        super().__init__()
        self.first, self.second, self.head = make(12, width), make(width, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Standardised(nn.Conv2d):
    """A convolution whose filters are standardised before use (Qiao et al., 2019), with the scale of Brock et al. (2021)."""

    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        deviation = self.weight.std((1, 2, 3), keepdim=True) + 1e-5
        return self._conv_forward(x, (self.weight - mean) / (deviation * math.sqrt(self.weight[0].numel())), self.bias)


class Added(nn.Module):
    """LoRA whose product is added to the weight: x (W + s B A)ᵀ."""

    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(rank, inputs) * 0.1), nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return functional.linear(x, self.base.weight + 2.0 * (self.b @ self.a), self.base.bias)


class InSequence(Added):
    """LoRA whose factors are applied one after the other: x Wᵀ + s (x Aᵀ) Bᵀ."""

    def forward(self, x):
        return self.base(x) + 2.0 * functional.linear(functional.linear(x, self.a), self.b)


class Masked(nn.Linear):
    """A linear layer of which a mask keeps the lower triangle."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", torch.tril(torch.ones(outputs, inputs)))

    def forward(self, x):
        return functional.linear(x, self.weight * self.mask, self.bias)


class Mixed(nn.Module):
    """A weight that is the mean of three, by learned shares that a softmax makes."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(3))
        self.weights = nn.Parameter(torch.randn(3, outputs, inputs) / math.sqrt(inputs))

    def forward(self, x):
        return functional.linear(x, torch.einsum("k,koi->oi", self.shares.softmax(0), self.weights))


class MixedVectors(nn.Module):
    """The mean of several vectors of parameters is added, by learned shares that a softmax makes."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.shares, self.vectors = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.randn(3, outputs))

    def forward(self, x):
        return self.linear(x) + self.shares.softmax(0) @ self.vectors


class LayerMix(nn.Module):
    """The outputs of all layers, mixed by learned shares and scaled by a learned scalar (ELMo)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.shares, self.gamma, self.head = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(1)), nn.Linear(16, 10)

    def forward(self, x):
        outputs = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            outputs.append(x)
        shares = self.shares.softmax(0)
        return self.head(self.gamma * sum(share * output for share, output in zip(shares, outputs)))


class LayerScale(nn.Module):
    """Residual branches, each scaled by a vector that starts at 1e-6 (CaiT, ConvNeXt)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((16,), 1e-6)) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = x + scale * torch.tanh(layer(x))
        return self.head(x)


class HeadTemperatures(nn.Module):
    """Cosine attention with a temperature for each head: exp of a clamped parameter (Swin v2)."""

    def __init__(self, exponential=True):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(128, 32), nn.Linear(32, 96), nn.Linear(32, 10)
        self.temperature = nn.Parameter(torch.full((4, 1, 1), math.log(10.0)) if exponential else torch.ones(4, 1, 1))
        self.exponential = exponential

    def forward(self, x):
        q, k, v = self.qkv(self.embedding(x)).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
        scale = self.temperature.clamp(max=math.log(100.0)).exp() if self.exponential else self.temperature
        return self.head(((scores * scale).softmax(-1) @ v).transpose(1, 2).flatten(2))


class RelativeBias(nn.Module):
    """Attention with a bias for each head and distance: T5's buckets through an embedding, or Swin's table and index."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(128, 32), nn.Linear(32, 96), nn.Linear(32, 10)
        positions = torch.arange(16)
        distance = (positions[None, :] - positions[:, None]).clamp(-7, 7) + 7
        if embedding:
            self.bias = nn.Embedding(15, 4)
        else:
            self.relative_position_bias_table = nn.Parameter(torch.zeros(15, 4))
        self.register_buffer("relative_position_index", distance, persistent=not embedding)

    def forward(self, x):
        q, k, v = self.qkv(self.embedding(x)).view(x.shape[0], 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if hasattr(self, "bias"):
            bias = self.bias(self.relative_position_index)
        else:
            bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(16, 16, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(8) + bias.permute(2, 0, 1)
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Heads(nn.Module):
    """A language model's embedding and head: tied, apart, or apart with equal values at the start."""

    def __init__(self, kind, width=16):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(100, width), nn.LayerNorm(width), nn.Linear(width, 100, bias=False)
        if kind == "tied":
            self.head.weight = self.embedding.weight
        elif kind == "equal":
            self.head.weight.data = self.embedding.weight.data.clone()

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.embedding(x))))


def weighted(make, large=False, **settings):
    """Returns a family of perceptrons whose layers `make` builds."""
    return Family(lambda: (Wrapped(make, LARGE if large else SMALL), (torch.randn(4, 12),)), **settings)


def both(name, make, **settings):
    """Returns a family in two sizes."""
    return {name: weighted(make, **settings), f"{name}, large": weighted(make, True, **settings)}


def convolved(make, channels):
    """Returns a family of two convolutions that `make(inputs, outputs)` builds."""

    def build():
        layers = [make(3, channels), nn.ReLU(), make(channels, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(channels, 10)), (image(8),)

    return Family(build)


def norm_of(norm, convolution=False):
    """Returns a function that builds a layer under a weight or spectral norm."""

    def make(inputs, outputs):
        return norm(nn.Conv2d(inputs, outputs, 3, padding=1) if convolution else nn.Linear(inputs, outputs))

    return make


def spectral(layer):
    """Returns a layer under the older spectral norm, with vectors that have converged as those of a trained model have."""
    layer = nn.utils.spectral_norm(layer, n_power_iterations=20)
    with torch.no_grad():
        layer(torch.zeros(1, layer.in_features))
    return layer


def standardised(inputs, outputs):
    return Standardised(inputs, outputs, 3, padding=1)


def temperature_free():
    return HeadTemperatures(exponential=False), (tokens(),)


OLD, NEW = nn.utils.weight_norm, nn.utils.parametrizations.weight_norm
FAMILIES = {
    **both("weight norm (weight_g, weight_v)", norm_of(OLD)),
    **both("weight norm (parametrization)", norm_of(NEW)),
    "weight norm of Conv2d (weight_g, weight_v)": convolved(norm_of(OLD, True), 8),
    "weight norm of Conv2d (parametrization)": convolved(norm_of(NEW, True), 8),
    "weight norm of Conv2d (parametrization), large": convolved(norm_of(NEW, True), 40),
    "weight standardisation": convolved(standardised, 8),
    "weight standardisation, large": convolved(standardised, 40),
    **both("spectral norm (hook)", norm_of(spectral)),
    **both("spectral norm (parametrization)", norm_of(nn.utils.parametrizations.spectral_norm)),
    **both("LoRA, added", Added),
    **both("LoRA, in sequence", InSequence),
    **both("W * mask", Masked),
    **both("mixed weights", Mixed),
    **both("mixed vectors", MixedVectors),
    "mixed layers": Family(lambda: (LayerMix(), (torch.randn(4, 16),))),
    "layer scale": Family(lambda: (LayerScale(), (torch.randn(4, 16),))),
    "temperature of each head": Family(temperature_free),
    "temperature of each head, exp": Family(lambda: (HeadTemperatures(), (tokens(),))),
    "relative positions (embedding)": Family(lambda: (RelativeBias(True), (tokens(),))),
    "relative positions (table)": Family(lambda: (RelativeBias(False), (tokens(),))),
    "tied head": Family(lambda: (Heads("tied"), (tokens(),))),
    "tied head, large": Family(lambda: (Heads("tied", 96), (tokens(),))),
    "untied head": Family(lambda: (Heads("apart"), (tokens(),))),
    # The older exporter writes a tied head's transposed copy too, so equal matrices do not tell tied from untied.
    "untied head, equal values": Family(lambda: (Heads("equal"), (tokens(),)), lost={"legacy-fresh": "whether the head is tied"}),
}
