#!/usr/bin/env python3
"""Writes testdata/state-dict/: a module of PyTorch as both exporters write it, and its `state_dict`.

The module has recurrent layers of every kind, a linear layer that the exporters transpose, an attention whose weights have
names of their own, and a PReLU. `module.legacy.onnx` and `module.dynamo.onnx` are optimised, so that the weights of the
recurrent layers are folded into ONNX's layouts. `module.safetensors` is what `state_dict` gives.

usage: python testdata/scripts/make_state_dict_models.py
"""

from pathlib import Path

import onnx
import torch
from export import export_model, make_constant_parameters_distinct
from safetensors.torch import save_file

OUTPUT = Path(__file__).resolve().parent.parent / "state-dict"


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(6, 4, batch_first=True)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.slope = torch.nn.PReLU(3)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.slope(x + mixed))


def main() -> None:
    torch.manual_seed(5)
    OUTPUT.mkdir(exist_ok=True)
    module = Module().eval()
    make_constant_parameters_distinct(module)
    x = torch.randn(2, 3, 2)
    save_file(module.state_dict(), OUTPUT / "module.safetensors")
    export_model(module, {"x": x}, OUTPUT / "module.dynamo.onnx", small=True)
    legacy = OUTPUT / "module.legacy.onnx"
    torch.onnx.export(module, (x,), str(legacy), dynamo=False, input_names=["x"], output_names=["logits"])
    onnx.checker.check_model(onnx.load(str(legacy)), full_check=True)


if __name__ == "__main__":
    main()
