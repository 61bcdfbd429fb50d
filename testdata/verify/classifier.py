"""The module of `classifier.onnx`, as a user writes one: for `scripts/reference.py`."""

import torch
from torch import nn


class Classifier(nn.Module):
    """Has a buffer, a layer that is frozen, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.linspace(0.5, 1.5, 12))
        self.first = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.spare = nn.Linear(4, 4)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.first(x * self.gain)))
        return self.head(torch.relu(self.frozen(hidden)))


def make_model() -> nn.Module:
    """A module whose parameters all differ: an exporter merges those that are equal."""
    torch.manual_seed(5)
    module = Classifier()
    with torch.no_grad():
        for parameter in module.norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module
