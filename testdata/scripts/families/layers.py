"""Families of layers: one small module for each layer of torch.nn that others are made of."""

import torch
from family import Family
from images import image
from language import TOKENS, tokens
from torch import nn
from torch.nn import functional


class Recurrent(nn.Module):
    """Two layers in both directions. At a width of 72 each matrix has more than 8,192 elements."""

    def __init__(self, kind, width, **settings):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.layers = getattr(nn, kind)(16, width, num_layers=2, batch_first=True, bidirectional=True, **settings)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0].mean(1))


class Started(nn.Module):
    """Two layers that start from trained states, with the steps or the batch first. The last states are read too."""

    def __init__(self, kind, width=20, batch_first=True, both=True, **settings):
        super().__init__()
        self.embedding, self.batch_first = nn.Embedding(128, 16), batch_first
        self.layers = getattr(nn, kind)(16, width, num_layers=2, batch_first=batch_first, bidirectional=both, **settings)
        count, states = 4 if both else 2, 2 if kind == "LSTM" else 1
        self.start = nn.ParameterList(nn.Parameter(0.3 * torch.randn(count, 1, width)) for _ in range(states))
        self.head, self.of_last = nn.Linear(width * (2 if both else 1), 10), nn.Linear(width, 10)

    def first(self, batch):
        states = tuple(state.expand(-1, batch, -1).contiguous() for state in self.start)
        return states if len(states) == 2 else states[0]

    def forward(self, x):
        batch, x = x.shape[0], self.embedding(x)
        y, last = self.layers(x if self.batch_first else x.transpose(0, 1), self.first(batch))
        last = sum(last) if isinstance(last, tuple) else last
        return self.head(y.mean(1 if self.batch_first else 0)) + self.of_last(last.mean(0))


class Ragged(Started):
    """The same for a batch whose entries have lengths of their own."""

    def forward(self, x, lengths):
        batch, steps, x = x.shape[0], x.shape[1], self.embedding(x)
        x = x if self.batch_first else x.transpose(0, 1)
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=self.batch_first)
        rows, last = self.layers(rows, self.first(batch))
        y = nn.utils.rnn.pad_packed_sequence(rows, batch_first=self.batch_first, total_length=steps)[0]
        last = sum(last) if isinstance(last, tuple) else last
        return self.head(y.mean(1 if self.batch_first else 0)) + self.of_last(last.mean(0))


class UNet(nn.Module):
    """An instance norm, a slope for each channel, and a bilinear upsampling."""

    def __init__(self):
        super().__init__()
        self.down, self.norm, self.slope = nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8)
        self.middle, self.up = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(24, 5, 3, padding=1)

    def forward(self, x):
        wide = self.slope(self.norm(self.down(x)))
        low = functional.leaky_relu(self.middle(functional.max_pool2d(wide, 2)), 0.1)
        low = functional.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        return self.up(torch.cat([wide, low], 1))


class PixelShuffle(nn.Module):
    """Channels that become pixels, and a padding by reflection."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        return self.narrow(functional.pixel_shuffle(self.wide(x), 2)).clamp(-2, 2)


class Attention(nn.Module):
    """`nn.MultiheadAttention` with a causal mask."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 32), nn.Linear(32, 128)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        x = self.embedding(x)
        later = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.head(x + self.attention(x, x, x, attn_mask=later, need_weights=False)[0])


def conv(normalize, *, training=False, loss="classes", side=16, **settings):
    """Returns a family of two convolutions with the layers that `normalize` gives for 8 channels after each."""

    def build():
        layers = [nn.Conv2d(3, 8, 3, padding=1), normalize(), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), normalize(), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)), (image(side, 4),)

    return Family(build, training=training, loss=loss, **settings)


def recurrent(kind, width=24, lost=None, **settings):
    """Returns a family of recurrent layers."""
    return Family(lambda: (Recurrent(kind, width, **settings), (tokens(),)), lost=lost or {})


def started(kind, **settings):
    """Returns a family of recurrent layers with trained first states."""
    return Family(lambda: (Started(kind, **settings), (tokens(),)))


def ragged(kind, **settings):
    """Returns a family of recurrent layers with lengths. Only the legacy exporter takes them."""
    return Family(lambda: (Ragged(kind, **settings), (tokens(4), torch.tensor([TOKENS, 9, 8, 1]))))


def autoencoder():
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers), (image(32),)


def line():
    layers = [nn.Conv1d(4, 8, 5, padding=2), nn.ELU(), nn.AvgPool1d(2), nn.Conv1d(8, 8, 3, groups=4), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 10)), (torch.randn(2, 4, 32),)


def volume():
    layers = [nn.Conv3d(1, 4, 3), nn.Softplus(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(4 * 27, 10)]
    return nn.Sequential(*layers), (torch.randn(2, 1, 8, 8, 8),)


def encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.Embedding(128, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 10)), (tokens(),)


def norms(make):
    """Returns a perceptron in which every layer is followed by a norm. A fresh one's norms are equal."""

    def build():
        layers = [nn.Linear(12, 16), make(), nn.GELU(), nn.Linear(16, 16), make(), nn.GELU(), nn.Linear(16, 10), nn.Identity()]
        return nn.Sequential(*layers), (torch.randn(4, 12),)

    return Family(build)


FAMILIES = {
    "LayerNorm": norms(lambda: nn.LayerNorm(16)),
    "RMSNorm": norms(lambda: nn.RMSNorm(16)),
    "BatchNorm1d": norms(lambda: nn.BatchNorm1d(16)),
    "PReLU, one slope": norms(lambda: nn.PReLU()),
    "PReLU, a slope per channel": conv(lambda: nn.PReLU(8)),
    "BatchNorm2d": conv(lambda: nn.BatchNorm2d(8)),
    # With optimize=True the exporter folds the norm into the convolution, by the running statistics.
    "BatchNorm2d, training mode": conv(lambda: nn.BatchNorm2d(8), training=True, lost={"dynamo": "batch statistics"}),
    "GroupNorm": conv(lambda: nn.GroupNorm(2, 8)),
    "GroupNorm without affine": conv(lambda: nn.GroupNorm(2, 8, affine=False)),
    "InstanceNorm": conv(lambda: nn.InstanceNorm2d(8, affine=True)),
    "InstanceNorm without affine": conv(lambda: nn.InstanceNorm2d(8)),
    "LSTM": recurrent("LSTM"),
    "LSTM, large": recurrent("LSTM", 72),
    "GRU": recurrent("GRU"),
    "GRU, large": recurrent("GRU", 72),
    # The exporter writes each step by itself, and folds the first one's product with a state of zeros and its bias.
    "RNN": recurrent("RNN", lost={"dynamo": "a use of `bias_hh`"}),
    "RNN, relu": recurrent("RNN", nonlinearity="relu", lost={"dynamo": "a use of `bias_hh`"}),
    "LSTM, first states": started("LSTM"),
    "LSTM, first states, steps first": started("LSTM", batch_first=False, both=False),
    "GRU, first states": started("GRU"),
    "GRU, first states, steps first": started("GRU", batch_first=False, both=False),
    "RNN, first states": started("RNN"),
    "RNN, relu, first states, steps first": started("RNN", batch_first=False, both=False, nonlinearity="relu"),
    "LSTM, lengths": ragged("LSTM"),
    "LSTM, lengths, steps first": ragged("LSTM", batch_first=False, both=False),
    "GRU, lengths": ragged("GRU"),
    "GRU, lengths, steps first": ragged("GRU", batch_first=False, both=False),
    "RNN, lengths": ragged("RNN"),
    "RNN, relu, lengths, steps first": ragged("RNN", batch_first=False, both=False, nonlinearity="relu"),
    "TransformerEncoder": Family(encoder),
    "MultiheadAttention": Family(lambda: (Attention(), (tokens(),))),
    "autoencoder (GroupNorm, ConvTranspose2d)": Family(autoencoder, loss="distance"),
    "U-Net (InstanceNorm, PReLU, bilinear)": Family(lambda: (UNet(), (image(32),)), loss="distance"),
    "PixelShuffle, reflected padding": Family(lambda: (PixelShuffle(), (image(32),)), loss="distance"),
    "Conv1d (groups)": Family(line),
    "Conv3d": Family(volume),
}
