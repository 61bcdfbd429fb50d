"""Held-back families: modules as people write them by hand, with uncommon parameters and buffers."""

import math

import torch
from family import Family
from images import image
from language import tokens
from lost import NO_DETACH, row
from torch import nn
from torch.nn import functional


class Film(nn.Module):
    """Features scaled and shifted by a condition, and a squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.conv, self.film = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(5, 16)
        self.squeeze, self.excite, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Linear(8, 10)

    def forward(self, x, condition):
        gamma, beta = self.film(condition)[:, :, None, None].chunk(2, 1)
        x = torch.tanh((1 + gamma) * self.conv(x) + beta)
        x = x * torch.sigmoid(self.excite(functional.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head(x.mean((2, 3)))


class Siren(nn.Module):
    """Sines with a learned frequency for each layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 16), nn.Linear(16, 16)])
        self.omegas, self.head = nn.Parameter(torch.tensor([3.0, 1.0])), nn.Linear(16, 10)

    def forward(self, x):
        for omega, layer in zip(self.omegas, self.layers):
            x = torch.sin(omega * layer(x))
        return self.head(x)


class Nerf(nn.Module):
    """Positions as sines and cosines of fixed bands, which are a buffer, and a skip connection."""

    def __init__(self):
        super().__init__()
        self.bands = nn.Buffer(2.0 ** torch.arange(4) * math.pi / 4)
        self.first, self.second = nn.Linear(3 + 24, 16), nn.Linear(16 + 27, 16)
        self.density, self.colour = nn.Linear(16, 1), nn.Linear(16 + 3, 3)

    def forward(self, x, direction):
        angles = (x[..., None] * self.bands).flatten(-2)
        x = torch.cat([x, angles.sin(), angles.cos()], -1)
        hidden = torch.tanh(self.second(torch.cat([torch.tanh(self.first(x)), x], -1)))
        colour = torch.sigmoid(self.colour(torch.cat([hidden, direction], -1)))
        return torch.cat([colour, functional.softplus(self.density(hidden))], -1)


class WaveNet(nn.Module):
    """Causal dilated convolutions with gates, residuals and skips."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(3))
        self.residual = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(16, 16, 1, bias=False) for _ in range(3))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x, total = self.embedding(x).transpose(1, 2), 0
        for index, gate in enumerate(self.gates):
            a, b = gate(functional.pad(x, (2**index, 0))).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total = total + self.skip[index](z)
            x = x + self.residual[index](z)
        return self.head(torch.tanh(total).transpose(1, 2))


class Highway(nn.Module):
    """Layers with a gate, whose bias starts at -2."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.gates, self.head = nn.ModuleList(nn.Linear(12, 12) for _ in range(2)), nn.Linear(12, 10)
        for gate in self.gates:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x):
        for layer, gate in zip(self.layers, self.gates):
            share = torch.sigmoid(gate(x))
            x = share * torch.tanh(layer(x)) + (1 - share) * x
        return self.head(x)


class TinyViT(nn.Module):
    """A class token, learned positions of which a slice is used, and a pre-norm block with layer scale."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 32, 8, 8), nn.LayerNorm(32)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.randn(1, 32, 32) * 0.02)
        self.qkv, self.out, self.gamma = nn.Linear(32, 96, bias=False), nn.Linear(32, 32), nn.Parameter(torch.full((32,), 0.1))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.positions[:, : x.shape[1]]
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((x + self.gamma * self.out(mixed))[:, 0])


class Perceiver(nn.Module):
    """Learned queries that attend to the input."""

    def __init__(self):
        super().__init__()
        self.embedding, self.queries = nn.Embedding(128, 32), nn.Parameter(torch.randn(6, 32) * 0.02)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.embedding(x)
        queries = self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1)
        return self.head(self.norm(queries + self.attention(queries, x, x)[0]).mean(1))


class Centred(nn.Module):
    """Outputs centred by a running mean, which is a buffer that only training mode moves (DINO)."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 10)
        self.register_buffer("center", torch.randn(1, 10) * 0.1)

    def forward(self, x):
        return (self.head(torch.tanh(self.first(x))) - self.center) / 0.5


class Quantiles(nn.Module):
    """A head for each quantile and the pinball loss."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 3)
        self.register_buffer("quantiles", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, x, y):
        output = self.head(torch.tanh(self.first(x)))
        error = y - output
        return output, torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).mean()


class MixtureDensity(nn.Module):
    """A mixture of Gaussians, and its negative log likelihood."""

    def __init__(self):
        super().__init__()
        self.first, self.shares = nn.Linear(12, 16), nn.Linear(16, 4)
        self.means, self.scales = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x, y):
        hidden = torch.tanh(self.first(x))
        scales, means = self.scales(hidden), self.means(hidden)
        logs = -0.5 * ((y - means) * torch.exp(-scales)) ** 2 - scales - 0.5 * math.log(2 * math.pi)
        return means, -torch.logsumexp(self.shares(hidden).log_softmax(-1) + logs, -1).mean()


class DeepSets(nn.Module):
    """Members of a set, of which a mask buffer drops some before the mean."""

    def __init__(self):
        super().__init__()
        self.phi, self.rho = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16)), nn.Linear(16, 10)
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))

    def forward(self, x):
        total = (self.phi(x) * self.mask[None, :, None]).sum(1)
        return self.rho(total / self.mask.sum())


class GatedAttention(nn.Module):
    """Attention over instances with a gate (Ilse et al., 2018)."""

    def __init__(self):
        super().__init__()
        self.v, self.u, self.w = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 1, bias=False)
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        share = self.w(torch.tanh(self.v(x)) * torch.sigmoid(self.u(x))).softmax(1)
        return self.head((share * x).sum(1))


class TiedAutoencoder(nn.Module):
    """A decoder that is the encoder's transposed weight."""

    def __init__(self, width=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 12) / math.sqrt(width))
        self.inner, self.outer = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(12))

    def forward(self, x):
        hidden = torch.tanh(functional.linear(x, self.weight, self.inner))
        return functional.linear(hidden, self.weight.t(), self.outer)


class Shared(nn.Module):
    """One block used three times, and two names for one layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(12, 16), nn.LayerNorm(16)
        self.block, self.head = nn.Linear(16, 16), nn.Linear(16, 10)
        self.alias = self.block

    def forward(self, x):
        x = self.first(x)
        for layer in (self.block, self.alias, self.block):
            x = x + torch.tanh(layer(self.norm(x)))
        return self.head(x)


class RootMeanSquare(nn.Module):
    """RMSNorm by hand, with eps as a buffer."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("eps", torch.tensor(1e-5))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale


class ScaleNorm(nn.Module):
    """A norm with one learned length."""

    def __init__(self, width):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(width**0.5))

    def forward(self, x):
        return self.g * x / torch.linalg.norm(x, dim=-1, keepdim=True).clamp(min=1e-5)


class Scaled(nn.Module):
    """Residual blocks, each with a norm and a scalar of its own, and a softmax with a learned temperature."""

    def __init__(self, norm, start):
        super().__init__()
        self.norms = nn.ModuleList(norm(16) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.alphas = nn.ParameterList(nn.Parameter(torch.tensor(start)) for _ in range(2))
        self.first, self.head, self.temperature = nn.Linear(12, 16), nn.Linear(16, 10), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        x = self.first(x)
        for norm, layer, alpha in zip(self.norms, self.layers, self.alphas):
            x = x + alpha * torch.tanh(layer(norm(x)))
        return self.head(x) / self.temperature


class ArcFace(nn.Module):
    """A cosine classifier with an angular margin on the label's class."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(12, 16), nn.Parameter(torch.randn(10, 16))

    def forward(self, x, labels):
        cosine = functional.linear(functional.normalize(torch.tanh(self.first(x))), functional.normalize(self.weight))
        angle = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))
        label = functional.one_hot(labels, 10).to(cosine.dtype)
        scores = 8.0 * torch.cos(angle + 0.3 * label)
        return scores, functional.cross_entropy(scores, labels)


class CenterLoss(nn.Module):
    """Cross-entropy, and the squared distance to a learned centre of the label's class."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.centers = nn.Linear(12, 16), nn.Linear(16, 10), nn.Parameter(torch.randn(10, 16))

    def forward(self, x, labels):
        x = torch.tanh(self.first(x))
        output = self.head(x)
        away = (x - self.centers[labels]).pow(2).sum(1).mean()
        return output, functional.cross_entropy(output, labels) + 0.1 * away


class Darts(nn.Module):
    """Operations mixed by architecture weights."""

    def __init__(self):
        super().__init__()
        self.stem, self.alphas = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(1e-3 * torch.randn(2, 4))
        self.wide = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.dilated = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        for index in range(2):
            shares = self.alphas[index].softmax(-1)
            options = [self.wide[index](x), self.dilated[index](x), functional.avg_pool2d(x, 3, 1, 1), x]
            x = torch.tanh(sum(share * option for share, option in zip(shares, options)))
        return self.head(x.mean((2, 3)))


class Hypernetwork(nn.Module):
    """A layer whose weight an MLP makes from a parameter."""

    def __init__(self):
        super().__init__()
        self.z, self.hyper = nn.Parameter(torch.randn(4, 8)), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 48))
        self.bias, self.head = nn.Parameter(torch.zeros(16)), nn.Linear(16, 10)

    def forward(self, x):
        weight = self.hyper(self.z).view(16, 12)
        return self.head(torch.tanh(functional.linear(x, weight, self.bias)))


class InitialState(nn.Module):
    """A GRU and an LSTM that start from learned states."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16), nn.Linear(36, 10)
        self.gru, self.lstm = nn.GRU(16, 20, batch_first=True), nn.LSTM(20, 18, batch_first=True, bidirectional=True)
        self.h, self.c = nn.Parameter(torch.randn(2, 1, 18) * 0.1), nn.Parameter(torch.zeros(2, 1, 18))
        self.start = nn.Parameter(torch.zeros(1, 1, 20))

    def forward(self, x):
        x, count = self.embedding(x), x.shape[0]
        x = self.gru(x, self.start.expand(-1, count, -1).contiguous())[0]
        states = (self.h.expand(-1, count, -1).contiguous(), self.c.expand(-1, count, -1).contiguous())
        return self.head(self.lstm(x, states)[0][:, -1])


class Projected(nn.Module):
    """An LSTM of two layers in both directions, with projections."""

    def __init__(self, projection=6):
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True, proj_size=projection)
        self.head = nn.Linear(2 * projection, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Cells(nn.Module):
    """An LSTM cell and a GRU cell in a Python loop."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.head = nn.LSTMCell(12, 16), nn.GRUCell(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        h = c = g = torch.zeros(x.shape[0], 16, dtype=x.dtype)
        for step in range(x.shape[1]):
            h, c = self.lstm(x[:, step], (h, c))
            g = self.gru(h, g)
        return self.head(g)


class Bags(nn.Module):
    """Bags of embeddings: their mean, and their weighted sum."""

    def __init__(self):
        super().__init__()
        self.mean, self.sum = nn.EmbeddingBag(128, 16, mode="mean"), nn.EmbeddingBag(128, 16, mode="sum")
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(torch.tanh(torch.cat([self.mean(x), self.sum(x)], -1)))


class Renormed(nn.Module):
    """An embedding whose used rows are shortened at each forward pass."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16, max_norm=1.0), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.embedding(x))


class Bilinear(nn.Module):
    """A bilinear layer over two views."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.pair = nn.Linear(12, 6), nn.Linear(12, 7), nn.Bilinear(6, 7, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.pair(torch.tanh(self.left(x)), torch.tanh(self.right(x)))))


class BiasedKeys(nn.Module):
    """`nn.MultiheadAttention` with a learned key and value beside those of the input."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 32), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True, kdim=32, vdim=32)

    def forward(self, x):
        x = self.embedding(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0])


class Collections(nn.Module):
    """Parameters in a list and in a dictionary."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(12, 16) * 0.3, torch.randn(16, 16) * 0.3])
        self.heads = nn.ParameterDict({"left": torch.randn(16, 5) * 0.3, "right": torch.randn(16, 5) * 0.3})
        self.shifts = nn.ParameterDict({"left": torch.zeros(5), "right": torch.zeros(5)})

    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return torch.cat([x @ self.heads[key] + self.shifts[key] for key in ("left", "right")], -1)


class FourierMixing(nn.Module):
    """Tokens and features mixed by the constant matrices of a Fourier transform."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(128, 16), nn.LayerNorm(16)
        self.wide, self.head = nn.Linear(16, 16), nn.Linear(16, 10)
        turns = torch.outer(torch.arange(16.0), torch.arange(16.0)) * (2 * math.pi / 16)
        self.register_buffer("cosines", turns.cos())
        self.register_buffer("sines", turns.sin())

    def forward(self, x):
        x = self.embedding(x)
        mixed = self.cosines @ x @ self.cosines - self.sines @ x @ self.sines
        return self.head(torch.tanh(self.wide(self.norm(x + mixed))))


class Destandardised(nn.Module):
    """Inputs and outputs in the data's units: the means and deviations are buffers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
        self.register_buffer("x_mean", torch.randn(12))
        self.register_buffer("x_std", torch.rand(12) + 0.5)
        self.register_buffer("y_mean", torch.randn(3))
        self.register_buffer("y_std", torch.rand(3) + 0.5)

    def forward(self, x):
        return self.layers((x - self.x_mean) / self.x_std) * self.y_std + self.y_mean


class Prototypes(nn.Module):
    """Classes by the distance to learned prototypes."""

    def __init__(self):
        super().__init__()
        self.first, self.prototypes = nn.Linear(12, 16), nn.Parameter(torch.randn(10, 16))

    def forward(self, x):
        return -torch.cdist(torch.tanh(self.first(x)), self.prototypes)


class Projection(nn.Module):
    """A layer whose weight and bias are random and frozen: buffers called `weight` and `bias`."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("weight", torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.register_buffer("bias", torch.randn(outputs))

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


class Blur(nn.Module):
    """A fixed filter as a buffer, one for each channel, that a convolution applies (anti-aliased pooling)."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("kernel", torch.outer(line, line)[None, None].repeat(8, 1, 1, 1))

    def forward(self, x):
        x = functional.conv2d(torch.tanh(self.conv(x)), self.kernel, stride=2, padding=1, groups=8)
        return self.head(x.mean((2, 3)))


class Graph(nn.Module):
    """Two layers over the nodes of a fixed graph, whose normalised adjacency is a buffer; the second with attention (GAT)."""

    def __init__(self):
        super().__init__()
        edges = ((torch.rand(7, 7) > 0.6).float() + torch.eye(7)).clamp(max=1)
        edges = torch.maximum(edges, edges.t())
        scale = edges.sum(1).rsqrt()
        self.register_buffer("adjacency", scale[:, None] * edges * scale)
        self.register_buffer("edges", edges > 0)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 16) * 0.3), nn.Parameter(torch.zeros(16))
        self.lin, self.head = nn.Linear(16, 16, bias=False), nn.Linear(16, 10)
        self.att_src, self.att_dst = nn.Parameter(torch.randn(16) * 0.3), nn.Parameter(torch.randn(16) * 0.3)

    def forward(self, x):
        x = self.lin(torch.tanh(self.adjacency @ x @ self.weight + self.bias))
        scores = (x * self.att_src).sum(-1)[:, :, None] + (x * self.att_dst).sum(-1)[:, None, :]
        scores = functional.leaky_relu(scores, 0.2).masked_fill(~self.edges, float("-inf"))
        return self.head(torch.tanh(scores.softmax(-1) @ x).mean(1))


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: radial bases on a grid, which is a buffer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 8))
        self.coefficients = nn.Parameter(torch.randn(outputs, inputs, 8) * 0.1)
        self.base_weight = nn.Parameter(torch.randn(outputs, inputs) * 0.3)

    def forward(self, x):
        bases = torch.exp(-(((x[..., None] - self.grid) * 1.75) ** 2))
        return functional.linear(functional.silu(x), self.base_weight) + torch.einsum("big,oig->bo", bases, self.coefficients)


class NanoGpt(nn.Module):
    """A block as in nanoGPT: a causal mask in a buffer called `bias`, norms without a bias, and a tied head."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(128, 32), nn.Embedding(32, 32)
        self.ln_1, self.ln_2, self.ln_f = (nn.LayerNorm(32, bias=False) for _ in range(3))
        self.c_attn, self.c_proj = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.c_fc, self.c_out = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))
        self.lm_head = nn.Linear(32, 128, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, x):
        count = x.shape[1]
        x = self.wte(x) + self.wpe(torch.arange(count, device=x.device))
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(32, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        scores = scores.masked_fill(self.bias[:, :, :count, :count] == 0, float("-inf"))
        x = x + self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))
        return self.lm_head(self.ln_f(x))


class Rotary(nn.Module):
    """Attention with rotary tables as persistent buffers, and ALiBi's slopes as another."""

    def __init__(self):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(128, 32), nn.Linear(32, 96), nn.Linear(32, 10)
        angles = torch.outer(torch.arange(32.0), 10000.0 ** (-torch.arange(0, 8, 2) / 8))
        self.register_buffer("freqs_cos", angles.cos())
        self.register_buffer("freqs_sin", angles.sin())
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, 5))

    def turned(self, x):
        cos, sin = self.freqs_cos[: x.shape[2]], self.freqs_sin[: x.shape[2]]
        a, b = x.unflatten(-1, (4, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, x):
        count = x.shape[1]
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.embedding(x)).chunk(3, -1))
        places = torch.arange(count)
        slope = -self.slopes[:, None, None] * (places[:, None] - places[None, :]).abs()
        scores = self.turned(q) @ self.turned(k).transpose(-2, -1) / math.sqrt(8) + slope
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SoftExperts(nn.Module):
    """Experts in one stacked parameter, mixed by a router."""

    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(12, 4), nn.Linear(16, 10)
        self.w1, self.b1 = nn.Parameter(torch.randn(4, 12, 16) * 0.3), nn.Parameter(torch.zeros(4, 16))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        hidden = torch.tanh(torch.einsum("bd,edh->beh", x, self.w1) + self.b1)
        return self.head(torch.einsum("be,beh->bh", shares, hidden))


class Quantised(nn.Module):
    """A codebook with a straight-through estimate and its two losses (VQ-VAE)."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(8, 12)
        self.codebook = nn.Embedding(16, 8)

    def forward(self, x):
        z = self.encoder(x)
        away = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codebook.weight.t() + self.codebook.weight.pow(2).sum(1)
        code = self.codebook(away.argmin(1))
        loss = functional.mse_loss(code, z.detach()) + 0.25 * functional.mse_loss(z, code.detach())
        output = self.decoder(z + (code - z).detach())
        return output, functional.mse_loss(output, x) + loss


class Uncertainty(nn.Module):
    """Two tasks, weighed by learned uncertainties (Kendall et al., 2018)."""

    def __init__(self):
        super().__init__()
        self.first, self.classes, self.value = nn.Linear(12, 16), nn.Linear(16, 10), nn.Linear(16, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x, labels, y):
        x = torch.tanh(self.first(x))
        output = self.classes(x)
        losses = functional.cross_entropy(output, labels), functional.mse_loss(self.value(x), y)
        return output, sum(torch.exp(-s) * loss + s for s, loss in zip(self.log_vars, losses))


class Policy(nn.Module):
    """A Gaussian policy whose deviation is a parameter, and the weighted log probability of actions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
        self.log_std = nn.Parameter(torch.full((1, 3), -0.5))

    def forward(self, x, actions, advantages):
        mean = self.layers(x)
        std = self.log_std.expand_as(mean).exp()
        log = -((actions - mean) ** 2) / (2 * std**2) - std.log() - math.log(math.sqrt(2 * math.pi))
        entropy = (0.5 + 0.5 * math.log(2 * math.pi) + std.log()).sum(-1).mean()
        return mean, -(log.sum(-1) * advantages).mean() - 0.01 * entropy


class Noisy(nn.Module):
    """A layer with learned noise, whose draws are buffers."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight_mu = nn.Parameter(torch.randn(outputs, inputs) * 0.3)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), 0.1))
        self.bias_mu, self.bias_sigma = nn.Parameter(torch.zeros(outputs)), nn.Parameter(torch.full((outputs,), 0.1))
        self.register_buffer("weight_epsilon", torch.randn(outputs, inputs))
        self.register_buffer("bias_epsilon", torch.randn(outputs))

    def forward(self, x):
        weight = self.weight_mu + self.weight_sigma * self.weight_epsilon
        return functional.linear(x, weight, self.bias_mu + self.bias_sigma * self.bias_epsilon)


class Reversible(nn.Module):
    """A forecast whose input is normalised, and whose output is given its scale back by the same affine parameters (RevIN)."""

    def __init__(self):
        super().__init__()
        self.affine_weight, self.affine_bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.seasonal, self.trend = nn.Linear(24, 6), nn.Linear(24, 6)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        x = (x - mean) / std * self.affine_weight + self.affine_bias
        smooth = functional.avg_pool1d(functional.pad(x.transpose(1, 2), (2, 2), "replicate"), 5, 1)
        y = (self.seasonal(x.transpose(1, 2) - smooth) + self.trend(smooth)).transpose(1, 2)
        return (y - self.affine_bias) / (self.affine_weight + 1e-10) * std + mean


class Activations(nn.Module):
    """Activations with learned shapes: Swish's beta, an adaptive tanh, a softplus of a raw scale."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 16)])
        self.beta, self.slope = nn.Parameter(torch.ones(16)), nn.Parameter(torch.tensor(0.2))
        self.raw, self.head = nn.Parameter(torch.tensor(0.5)), nn.Linear(16, 10)

    def forward(self, x):
        x = self.layers[0](x)
        x = x * torch.sigmoid(self.beta * x)
        x = torch.tanh(5.0 * self.slope * self.layers[1](x))
        return self.head(functional.softplus(self.raw) * torch.sin(self.layers[2](x)))


class Stateless(nn.Module):
    """Batch norms that keep no statistics, and one that has no parameters."""

    def __init__(self):
        super().__init__()
        self.conv, self.free = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, track_running_stats=False)
        self.second, self.plain = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.tanh(self.free(self.conv(x)))
        return self.head(torch.tanh(self.plain(self.second(x))).mean((2, 3)))


class Identities(nn.Module):
    """Layers that start as the identity: of zeros and ones alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(torch.eye(8))
        self.dirac, self.linear, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8), nn.Linear(8, 10)
        nn.init.dirac_(self.dirac.weight)
        nn.init.eye_(self.linear.weight)

    def forward(self, x):
        x = torch.tanh(self.dirac(torch.tanh(self.conv(x)))).mean((2, 3))
        return self.head(torch.tanh(self.linear(x @ self.mix)))


class Radial(nn.Module):
    """Radial bases with learned centres and widths."""

    def __init__(self):
        super().__init__()
        self.centres, self.log_widths = nn.Parameter(torch.randn(16, 12)), nn.Parameter(torch.full((16,), 1.0))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        away = (x.unsqueeze(1) - self.centres).pow(2).sum(-1).sqrt() / self.log_widths.exp()
        return self.head(torch.exp(-away.pow(2)))


class LearnedFourier(nn.Module):
    """Sines and cosines of learned frequencies, and Time2Vec."""

    def __init__(self):
        super().__init__()
        self.frequencies, self.head = nn.Parameter(torch.randn(12, 8)), nn.Linear(16 + 16, 10)
        self.w0, self.b0 = nn.Parameter(torch.randn(12, 1) * 0.3), nn.Parameter(torch.zeros(1))
        self.w, self.b = nn.Parameter(torch.randn(12, 15) * 0.3), nn.Parameter(torch.randn(15) * 0.3)

    def forward(self, x):
        turned = math.pi * x @ self.frequencies
        time = torch.cat([x @ self.w0 + self.b0, torch.sin(x @ self.w + self.b)], -1)
        return self.head(torch.cat([turned.cos(), turned.sin(), time], -1))


class LearnedScaling(nn.Module):
    """An input that a learned shift and scale prepare, and a learned weight for each feature."""

    def __init__(self):
        super().__init__()
        self.shift, self.scale, self.gate = (nn.Parameter(torch.rand(12) + 0.5) for _ in range(3))
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x):
        return self.layers((x - self.shift) / self.scale + torch.sigmoid(self.gate) * x)


class LearnedTable(nn.Module):
    """Positions that are trained, and start as sines and cosines."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 16), nn.Linear(16, 10)
        angles = torch.arange(32)[:, None] * torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        self.positions = nn.Parameter(torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x) + self.positions[: x.shape[1]]))


class LongTail(nn.Module):
    """Scores that the logarithm of the classes' frequencies adjusts, which is a buffer, with a focal loss."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 10)
        self.register_buffer("prior", torch.rand(10).softmax(0).log())

    def forward(self, x, labels):
        scores = self.head(torch.tanh(self.first(x))) + self.prior
        log = -functional.cross_entropy(scores, labels, reduction="none")
        return scores, (-((1 - log.exp()) ** 2) * log).mean()


class Segmentation(nn.Module):
    """A mask with Dice's loss and binary cross-entropy with a weight of the positive class, which is a buffer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 1, 1))
        self.register_buffer("pos_weight", torch.tensor([3.0]))

    def forward(self, x, y):
        scores, target = self.layers(x), torch.sigmoid(10 * y)
        share = torch.sigmoid(scores).flatten(1)
        dice = 1 - (2 * (share * target.flatten(1)).sum(1) + 1) / (share.sum(1) + target.flatten(1).sum(1) + 1)
        return scores, functional.binary_cross_entropy_with_logits(scores, target, pos_weight=self.pos_weight) + dice.mean()


class Distilled(nn.Module):
    """A student that learns from a teacher with `requires_grad=False`, and from the labels."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 10)).requires_grad_(False)
        self.student = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x, labels):
        scores, wanted = self.student(x), self.teacher(x)
        soft = functional.kl_div((scores / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="batchmean") * 4
        return scores, 0.5 * functional.cross_entropy(scores, labels) + 0.5 * soft


class Triplets(nn.Module):
    """One encoder of three inputs, and the triplet loss."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, anchor, positive, negative):
        a, p, n = (functional.normalize(self.encoder(x), dim=-1) for x in (anchor, positive, negative))
        return a, functional.triplet_margin_loss(a, p, n, margin=2.0)


class Variational(nn.Module):
    """A variational autoencoder, whose noise is an input."""

    def __init__(self):
        super().__init__()
        self.encoder, self.mu, self.log_var = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 12))

    def forward(self, x, noise):
        hidden = torch.tanh(self.encoder(x))
        mu, log_var = self.mu(hidden), self.log_var(hidden)
        output = self.decoder(mu + noise * (0.5 * log_var).exp())
        divergence = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).sum(1).mean()
        return output, functional.mse_loss(output, x, reduction="sum") / x.shape[0] + 0.1 * divergence


class Factorised(nn.Module):
    """A factorisation machine: a global bias, biases of users and items, and the product of their vectors."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(60, 8)
        self.user_bias, self.item_bias = nn.Embedding(50, 1), nn.Embedding(60, 1)
        self.mu = nn.Parameter(torch.zeros(1))
        self.register_buffer("low", torch.tensor(1.0))

    def forward(self, x):
        user, item = x[:, 0], x[:, 1]
        score = (self.users(user) * self.items(item)).sum(-1, keepdim=True) + self.user_bias(user) + self.item_bias(item)
        return self.low + 4.0 * torch.sigmoid(score + self.mu)


class StateSpace(nn.Module):
    """A diagonal state space layer, whose convolution is made from parameters (S4D, real)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 8), nn.Linear(8, 10)
        self.log_a, self.c = nn.Parameter(torch.randn(8, 4) * 0.5), nn.Parameter(torch.randn(8, 4) * 0.5)
        self.log_dt, self.d = nn.Parameter(torch.full((8, 1), -1.0)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = self.embedding(x).transpose(1, 2)
        rate = -self.log_a.exp() * self.log_dt.exp()
        kernel = (self.c[:, :, None] * torch.exp(rate[:, :, None] * torch.arange(16.0))).sum(1)
        y = functional.conv1d(functional.pad(x, (15, 0)), kernel.flip(-1)[:, None], groups=8)
        return self.head(torch.tanh(y + self.d[:, None] * x).transpose(1, 2))


class Conditional(nn.Module):
    """A norm whose scale and shift are embeddings of a class (conditional instance norm)."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.Linear(8, 10)
        self.gain, self.shift = nn.Embedding(5, 8), nn.Embedding(5, 8)

    def forward(self, x, style):
        gain, shift = self.gain(style)[:, :, None, None], self.shift(style)[:, :, None, None]
        return self.head(torch.tanh(gain * self.norm(self.conv(x)) + shift).mean((2, 3)))


class ItemResponse(nn.Module):
    """Abilities, difficulties and discriminations: a number for each person and item, as vectors that are indexed."""

    def __init__(self):
        super().__init__()
        self.ability, self.difficulty = nn.Parameter(torch.randn(50)), nn.Parameter(torch.randn(60))
        self.discrimination = nn.Parameter(torch.ones(60))

    def forward(self, person, item, answer):
        scores = self.discrimination[item] * (self.ability[person] - self.difficulty[item])
        return scores, functional.binary_cross_entropy_with_logits(scores, answer)


class Clusters(nn.Module):
    """Squared distances to learned centres, expanded: |x|² - 2 x c + |c|²."""

    def __init__(self):
        super().__init__()
        self.first, self.centres = nn.Linear(12, 16), nn.Parameter(torch.randn(10, 16))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return -(x.pow(2).sum(1, keepdim=True) - 2 * x @ self.centres.t() + self.centres.pow(2).sum(1))


class Penalised(nn.Module):
    """A loss with penalties of weights: their squares, their absolute values, and their distance from orthogonality."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 10)

    def forward(self, x, labels):
        output = self.head(torch.tanh(self.first(x)))
        gram = self.head.weight @ self.head.weight.t() - torch.eye(10)
        penalty = 0.01 * self.first.weight.pow(2).sum() + 0.01 * self.first.bias.abs().sum() + 0.01 * gram.pow(2).sum()
        return output, functional.cross_entropy(output, labels) + penalty


class SoftCodebook(nn.Module):
    """Codes that are mixed by their expanded distances: the same table makes the distances and the output."""

    def __init__(self):
        super().__init__()
        self.first, self.codes, self.head = nn.Linear(12, 16), nn.Parameter(torch.randn(10, 16)), nn.Linear(16, 10)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        away = x.pow(2).sum(1, keepdim=True) - 2 * functional.linear(x, self.codes) + self.codes.pow(2).sum(1)
        return self.head((-away / 4).softmax(-1) @ self.codes)


class Convex(nn.Module):
    """Two branches that a learned share of each feature mixes: a x + (1 - a) y."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.share = nn.Linear(12, 16), nn.Linear(12, 16), nn.Parameter(torch.rand(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.share * torch.tanh(self.left(x)) + (1 - self.share) * torch.sin(self.right(x)))


def upsampling():
    layers = [
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.GroupNorm(4, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding="same", dilation=2, padding_mode="circular"), nn.Mish(),
        nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1, bias=False), nn.InstanceNorm2d(6, affine=True), nn.Softsign(),
        nn.ConvTranspose2d(6, 3, 3, 1, 1, groups=3),
    ]  # fmt: skip
    return nn.Sequential(*layers), (image(16),)


def perceptron(make):
    """Returns a function that builds two layers by `make`, and a plain head."""
    return lambda: nn.Sequential(make(12, 16), nn.Tanh(), make(16, 16), nn.Tanh(), nn.Linear(16, 10))


def read(make, **settings):
    """Returns a family whose input is tokens."""
    return Family(lambda: (make(), (tokens(),)), **settings)


def drawn(make, *shapes, classes=(), **settings):
    """Returns a family with random inputs of these shapes, and then labels of as many classes."""

    def build():
        labels = [torch.randint(0, count, (4,)) for count in classes]
        return make(), (*(torch.randn(4, *shape) for shape in shapes), *labels)

    return Family(build, **settings)


class Ordered(nn.Module):
    """Puts the labels before the last input, as `Uncertainty` takes them."""

    def __init__(self):
        super().__init__()
        self.inner = Uncertainty()

    def forward(self, x, y, labels):
        return self.inner(x, labels, y)


def called(*names):
    """Returns the names that the wrapper gives buffers."""
    return tuple(f"model.{name}" for name in names)


FAMILIES = {
    "FiLM, squeeze and excitation": Family(lambda: (Film(), (image(8, 4), torch.randn(4, 5)))),
    "SIREN": row(Siren),
    "NeRF": drawn(Nerf, (3,), (3,), loss="distance", buffers=("model.bands",)),
    "WaveNet": read(WaveNet),
    "highway": row(Highway),
    "class token, sliced positions": Family(lambda: (TinyViT(), (image(32, 4),))),
    "learned queries": read(Perceiver),
    "centred outputs": row(Centred, buffers=called("center")),
    "quantiles": drawn(Quantiles, (12,), (1,), loss="own", buffers=called("quantiles")),
    "mixture density": drawn(MixtureDensity, (12,), (1,), loss="own"),
    "deep sets": drawn(DeepSets, (5, 6), buffers=called("mask")),
    "gated attention": drawn(GatedAttention, (5, 6)),
    "tied autoencoder": row(TiedAutoencoder, loss="distance"),
    "tied autoencoder, large": row(lambda: TiedAutoencoder(800), loss="distance"),
    "shared block": row(Shared),
    "RMSNorm by hand, scaled residuals": row(
        lambda: Scaled(RootMeanSquare, 1.0), buffers=called("norms.0.eps", "norms.1.eps")
    ),
    "ScaleNorm, ReZero": row(lambda: Scaled(ScaleNorm, 0.0)),
    "ArcFace": drawn(ArcFace, (12,), classes=(10,), loss="own"),
    "center loss": drawn(CenterLoss, (12,), classes=(10,), loss="own"),
    "DARTS": Family(lambda: (Darts(), (image(8, 4),))),
    "hypernetwork": row(Hypernetwork),
    "learned initial states": read(InitialState),
    "LSTM with projections": drawn(Projected, (5, 12)),
    # As for an RNN: the first step's products with zeros are folded, with a bias.
    "recurrent cells": drawn(Cells, (4, 12), lost={"dynamo": "a use of `bias_hh`"}),
    "EmbeddingBag": read(Bags),
    "Embedding with max_norm": read(Renormed),
    "Bilinear": row(Bilinear),
    "attention with add_bias_kv": read(BiasedKeys),
    "ParameterList, ParameterDict": row(Collections),
    "Fourier matrices": read(FourierMixing, buffers=called("cosines", "sines")),
    "outputs in units": row(Destandardised, loss="distance", buffers=called("y_mean", "y_std")),
    "prototypes": row(Prototypes),
    "frozen projection": row(
        lambda: nn.Sequential(Projection(12, 16), nn.Tanh(), nn.Linear(16, 10)), buffers=called("0.weight", "0.bias")
    ),
    "blur": Family(lambda: (Blur(), (image(8, 4),)), buffers=called("kernel")),
    "graph": drawn(Graph, (7, 6), buffers=called("adjacency")),
    "KAN": row(perceptron(Splines), buffers=called("0.grid", "2.grid")),
    "nanoGPT": read(NanoGpt),
    "rotary tables, ALiBi": read(Rotary, buffers=called("freqs_cos", "freqs_sin", "slopes")),
    "soft experts": row(SoftExperts),
    "VQ-VAE": row(Quantised, loss="own", lost=NO_DETACH),
    "uncertainty weights": drawn(Ordered, (12,), (1,), classes=(10,), loss="own"),
    "Gaussian policy": Family(lambda: (Policy(), (torch.randn(4, 12), torch.randn(4, 3), torch.rand(4) + 0.5)), loss="own"),
    "noisy layers": row(
        perceptron(Noisy), buffers=called("0.weight_epsilon", "0.bias_epsilon", "2.weight_epsilon", "2.bias_epsilon")
    ),
    "RevIN": drawn(Reversible, (24, 3), loss="distance"),
    "learned activations": row(Activations),
    "BatchNorm without statistics or affine": Family(lambda: (Stateless(), (image(8, 4),))),
    "BatchNorm without statistics or affine, training mode": Family(
        lambda: (Stateless(), (image(8, 8),)), training=True, lost={"dynamo": "batch statistics"}
    ),
    "identity at the start": Family(lambda: (Identities(), (image(8, 4),))),
    "radial bases": row(Radial),
    "learned Fourier features": row(LearnedFourier),
    "learned scaling of the input": row(LearnedScaling),
    "learned table of sines": read(LearnedTable),
    "long tail": drawn(LongTail, (12,), classes=(10,), loss="own", buffers=called("prior")),
    "segmentation losses": drawn(Segmentation, (3, 8, 8), (1, 8, 8), loss="own", buffers=called("pos_weight")),
    "distillation": drawn(Distilled, (12,), classes=(10,), loss="own"),
    "triplets": drawn(Triplets, (12,), (12,), (12,), loss="own"),
    "variational autoencoder": drawn(Variational, (12,), (4,), loss="own"),
    "factorisation": Family(
        lambda: (Factorised(), (torch.randint(0, 50, (4, 2)),)), loss="distance", buffers=called("low")
    ),
    "state space": read(StateSpace),
    "expanded distances": row(Clusters),
    "soft codebook": row(SoftCodebook),
    "learned share": row(Convex),
    "penalties of weights": drawn(Penalised, (12,), classes=(10,), loss="own", lost={"dynamo": "the penalties"}),
    "conditional norm": Family(lambda: (Conditional(), (image(8, 4), torch.randint(0, 5, (4,))))),
    "item response": Family(
        lambda: (ItemResponse(), (torch.randint(0, 50, (4,)), torch.randint(0, 60, (4,)), torch.rand(4).round())), loss="own"
    ),
    "ConvTranspose with output_padding": Family(upsampling, loss="distance"),
}
