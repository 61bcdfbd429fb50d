"""Families of layers: one small module for each layer of torch.nn that others are made of."""

import torch
from family import Family
from images import image
from language import tokens
from torch import nn
from torch.nn import functional


class Recurrent(nn.Module):
    """Two layers in both directions. At a width of 72 each matrix has more than 8,192 elements."""

    def __init__(self, kind, width):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.layers = getattr(nn, kind)(16, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0].mean(1))


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


def recurrent(kind, width=24, **settings):
    """Returns a family of recurrent layers."""
    return Family(lambda: (Recurrent(kind, width), (tokens(),)), **settings)


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
    "TransformerEncoder": Family(encoder),
    "MultiheadAttention": Family(lambda: (Attention(), (tokens(),))),
    "autoencoder (GroupNorm, ConvTranspose2d)": Family(autoencoder, loss="distance"),
    "U-Net (InstanceNorm, PReLU, bilinear)": Family(lambda: (UNet(), (image(32),)), loss="distance"),
    "PixelShuffle, reflected padding": Family(lambda: (PixelShuffle(), (image(32),)), loss="distance"),
    "Conv1d (groups)": Family(line),
    "Conv3d": Family(volume),
}
