"""Families that train otherwise than their graph says: what ONNX has no form for, and buffers that look like parameters."""

import math

import torch
from family import Family
from language import tokens
from torch import nn
from torch.nn import functional

NO_DETACH = {"legacy": "detach"}
NO_PADDING = {"legacy": "padding_idx"}


class Sinusoidal(nn.Module):
    """A table of sines and cosines, as a buffer, that is added to an embedding."""

    def __init__(self, persistent):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16), nn.Linear(16, 10)
        angles = torch.arange(32)[:, None] * torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("table", table, persistent=persistent)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x) + self.table[: x.shape[1]]))


class RandomTable(nn.Module):
    """A buffer of random numbers that meets the input as a parameter would: fixed Fourier features, and a fixed shift."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(12, 16))
        self.register_buffer("shift", torch.randn(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.sin(x @ self.frequencies + self.shift))


class Normalised(nn.Module):
    """The input is normalised by the mean and deviation of the data, which are buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv((x - self.mean) / self.std)).mean((2, 3)))


class Padded(nn.Module):
    """An embedding whose row 1 gets no gradient, and tokens that use that row."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16, padding_idx=1), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)))


def padded():
    ids = tokens()
    ids[:, -4:] = 1
    return Padded(), (ids,)


class Detached(nn.Module):
    """Two branches, of which one passes no gradient back."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(x + torch.sigmoid(self.second(x.detach())))


class Unused(nn.Module):
    """A parameter and a layer that the output does not depend on."""

    def __init__(self):
        super().__init__()
        self.first, self.spare, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.token = nn.Parameter(torch.randn(1, 16))

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)))


class ClassWeights(nn.Module):
    """A loss with a weight for each class, which is a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 10)
        self.register_buffer("weights", torch.rand(10) + 0.5)

    def forward(self, x, labels):
        output = self.head(torch.tanh(self.first(x)))
        return output, functional.cross_entropy(output, labels, weight=self.weights)


class Scalars(nn.Module):
    """Scalars of no dims: a temperature through exp, a gain and a shift."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 10)
        self.t, self.gain, self.shift = (nn.Parameter(torch.tensor(value)) for value in (0.5, 1.0, 0.0))

    def forward(self, x):
        x = self.gain * torch.tanh(self.first(x)) + self.shift
        return self.head(x) * self.t.exp()


class Constant(nn.Module):
    """A parameter with `requires_grad=False` between two that are trained."""

    def __init__(self):
        super().__init__()
        self.first, self.fixed, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.fixed(torch.tanh(self.first(x)))))


def row(make, **settings):
    """Returns a family whose input is a row of 12 numbers."""
    return Family(lambda: (make(), (torch.randn(4, 12),)), **settings)


FAMILIES = {
    "sinusoidal table, persistent": Family(lambda: (Sinusoidal(True), (tokens(),))),
    "sinusoidal table, not persistent": Family(lambda: (Sinusoidal(False), (tokens(),))),
    "random buffers": row(RandomTable, buffers=("model.frequencies", "model.shift")),
    "normalised input": Family(lambda: (Normalised(), (torch.randn(2, 3, 8, 8),))),
    "padding_idx": Family(padded, lost=NO_PADDING),
    "detach": row(Detached, lost=NO_DETACH),
    "unused parameters": row(Unused),
    "class weights": Family(lambda: (ClassWeights(), (torch.randn(4, 12), torch.randint(0, 10, (4,)))), loss="own"),
    "scalars": row(Scalars),
    "requires_grad=False": row(Constant, frozen=("model.fixed.weight", "model.fixed.bias")),
}
