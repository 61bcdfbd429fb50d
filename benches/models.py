"""The models that `peers.py` times. Each has its loss, and a batch of a fixed size.

A name leads to a `Bench`. Its function builds the model, and draws the inputs of the batch by their names; the last input is what the
loss compares with. Models of transformers and torchvision are built from configurations, so nothing is downloaded. None has dropout,
since it would let the losses of two programs differ.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
WORDS = 8192


@dataclass
class Bench:
    """A model. `build` takes the generator of the batch, and returns the model and the inputs by name."""

    build: Callable[[torch.Generator], tuple[nn.Module, dict[str, torch.Tensor]]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # Whether the model is trained in training mode, for the statistics of its batch norms.
    training: bool = False


class WithLoss(nn.Module):
    """A model with its loss, which compares the model's output with the last input."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs):
        output = self.model(*inputs[:-1])
        return self.loss(getattr(output, "logits", output), inputs[-1])


def classes(output, labels):
    """The cross-entropy of the last dim."""
    return functional.cross_entropy(output.flatten(0, -2), labels.flatten())


def distance(output, target):
    return functional.mse_loss(output, target)


def clicks(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


# Language models.


def tokens(drawn, batch, length, words=WORDS):
    """Random tokens, and random tokens to predict."""
    return {name: torch.randint(0, words, (batch, length), generator=drawn) for name in ("x", "labels")}


def gpt2(drawn):
    sizes = dict(n_layer=4, n_embd=256, n_head=4, vocab_size=WORDS, n_positions=128)
    config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return transformers.GPT2LMHeadModel(config), tokens(drawn, 8, 128)


def readme(drawn):
    """The byte-level GPT-2 of README's first command."""
    sys.path.insert(0, str(ROOT / "testdata/scripts"))
    import make_quickstart

    return make_quickstart.build_model(), tokens(drawn, 16, make_quickstart.SEQUENCE, 256)


def mixtral(drawn, experts):
    """8 experts of 512, of which a token takes 2. `experts` is the way in which transformers runs them."""
    config = transformers.MixtralConfig(
        num_hidden_layers=4, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=WORDS, max_position_embeddings=128, num_local_experts=8, num_experts_per_tok=2, use_cache=False,
        experts_implementation=experts,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config), tokens(drawn, 8, 128)


def llama(drawn):
    """4 queries for each key."""
    config = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=512, intermediate_size=1408, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=WORDS, max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokens(drawn, 4, 128)


def bert(drawn):
    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=512, intermediate_size=2048, num_attention_heads=8, vocab_size=WORDS,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config), tokens(drawn, 4, 128)


class Translation(nn.Module):
    """A model with an encoder and a decoder, with the tokens of both as its inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, decoded):
        return self.model(input_ids=x, decoder_input_ids=decoded, use_cache=False).logits


def t5(drawn):
    config = transformers.T5Config(
        num_layers=3, d_model=384, d_ff=1024, num_heads=6, d_kv=64, vocab_size=WORDS, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {name: torch.randint(0, WORDS, (8, 64), generator=drawn) for name in ("x", "decoded", "labels")}
    return Translation(transformers.T5ForConditionalGeneration(config)), inputs


def mamba(drawn):
    """A state space, as a loop over the tokens."""
    config = transformers.MambaConfig(
        num_hidden_layers=2, hidden_size=256, state_size=16, vocab_size=1024, use_cache=False, use_mambapy=False
    )
    return transformers.MambaForCausalLM(config), tokens(drawn, 4, 64, 1024)


class Recurrent(nn.Module):
    """A language model of recurrent layers."""

    def __init__(self, kind, width, words):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = kind(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0])


def recurrent(drawn, kind, width, batch, steps):
    return Recurrent(kind, width, 1024), tokens(drawn, batch, steps, 1024)


# Models of images and sounds.


def pictures(drawn, batch, side):
    """Random images, and one of ten classes for each."""
    labels = torch.randint(0, 10, (batch,), generator=drawn)
    return {"x": torch.randn(batch, 3, side, side, generator=drawn), "labels": labels}


def vision(drawn, model, batch, side, **settings):
    """A model of torchvision."""
    return model(num_classes=10, **settings), pictures(drawn, batch, side)


def vit(drawn):
    config = transformers.ViTConfig(
        num_hidden_layers=6, hidden_size=384, intermediate_size=1536, num_attention_heads=6, image_size=128, patch_size=16,
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), pictures(drawn, 8, 128)


class Mixer(nn.Module):
    """A block of MLP-Mixer: a network over the patches, and one over the channels."""

    def __init__(self, patches, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(nn.Linear(patches, 4 * patches), nn.GELU(), nn.Linear(4 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.patches(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


class MlpMixer(nn.Module):
    def __init__(self, side, width, blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Mixer((side // 16) ** 2, width) for _ in range(blocks)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


def mixer(drawn):
    return MlpMixer(128, 384, 6), pictures(drawn, 8, 128)


class UNet(nn.Module):
    """Three levels of two convolutions with batch norms, joined across."""

    def __init__(self, width):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(self.pair(before, after) for before, after in zip([3, *sizes], sizes))
        self.middle = self.pair(sizes[-1], 2 * sizes[-1])
        self.larger = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in reversed(sizes))
        self.up = nn.ModuleList(self.pair(2 * size, size) for size in reversed(sizes))
        self.head = nn.Conv2d(width, 3, 1)

    @staticmethod
    def pair(before, after):
        layers = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x):
        kept = []
        for level in self.down:
            kept.append(level(x))
            x = functional.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for larger, level in zip(self.larger, self.up):
            x = level(torch.cat([kept.pop(), larger(x)], 1))
        return self.head(x)


def unet(drawn):
    return UNet(32), {name: torch.randn(4, 3, 96, 96, generator=drawn) for name in ("x", "target")}


def wav2vec2(drawn):
    """A quarter of a second of sound, and a class for each frame."""
    config = transformers.Wav2Vec2Config(
        num_hidden_layers=4, hidden_size=256, intermediate_size=1024, num_attention_heads=4, conv_dim=(256,) * 7,
        num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=8, vocab_size=32, hidden_dropout=0.0, layerdrop=0.0,
        attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, apply_spec_augment=False,
    )  # fmt: skip
    labels = torch.randint(0, 32, (4, 49), generator=drawn)
    return transformers.Wav2Vec2ForCTC(config), {"x": torch.randn(4, 16000, generator=drawn), "labels": labels}


# Models of tables and graphs.


def mlp(drawn):
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    labels = torch.randint(0, 10, (128,), generator=drawn)
    return nn.Sequential(*layers), {"x": torch.randn(128, 784, generator=drawn), "labels": labels}


class Dlrm(nn.Module):
    """Products of the embeddings of categories with each other and with the numbers' features."""

    def __init__(self, tables, rows, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.numbers = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, x, categories):
        numbers = self.numbers(x)
        looked_up = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([numbers, *looked_up], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([numbers, products], 1)).flatten()


def dlrm(drawn):
    categories = torch.randint(0, 20000, (512, 8), generator=drawn)
    target = torch.randint(0, 2, (512,), generator=drawn).float()
    return Dlrm(8, 20000, 32), {"x": torch.randn(512, 13, generator=drawn), "categories": categories, "target": target}


class GraphNetwork(nn.Module):
    """Layers in which each node of a graph adds up messages from its neighbours. The graphs of a batch become one."""

    def __init__(self, features, width, layers):
        super().__init__()
        self.stem, self.head = nn.Linear(features, width), nn.Linear(width, 10)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.messages = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x, sources, targets):
        graphs, nodes = x.shape[:2]
        first = torch.arange(graphs).unsqueeze(1) * nodes
        sources, targets = (sources + first).flatten(), (targets + first).flatten()
        x = self.stem(x).flatten(0, 1)
        for own, messages in zip(self.own, self.messages):
            received = torch.zeros_like(x).index_add(0, targets, messages(x)[sources])
            x = functional.relu(own(x) + received)
        return self.head(x)


def graph(drawn):
    graphs, nodes, edges = 8, 256, 1024
    ends = {name: torch.randint(0, nodes, (graphs, edges), generator=drawn) for name in ("sources", "targets")}
    labels = torch.randint(0, 10, (graphs, nodes), generator=drawn)
    x = torch.randn(graphs, nodes, 32, generator=drawn)
    return GraphNetwork(32, 128, 3), {"x": x, **ends, "labels": labels}


def of_vision(name, batch, side, training=False, **settings):
    model = getattr(torchvision.models, name)
    return Bench(functools.partial(vision, model=model, batch=batch, side=side, **settings), classes, training)


def of_layers(kind, width, batch, steps):
    return Bench(functools.partial(recurrent, kind=kind, width=width, batch=batch, steps=steps), classes)


MODELS = {
    "gpt2": Bench(gpt2, classes),
    "mlp": Bench(mlp, classes),
    "resnet18": of_vision("resnet18", 16, 32, training=True),
    "readme": Bench(readme, classes),
    "mixtral": Bench(functools.partial(mixtral, experts="eager"), classes),
    "bert": Bench(bert, classes),
    "llama": Bench(llama, classes),
    "t5": Bench(t5, classes),
    "vit": Bench(vit, classes),
    "swin": of_vision("swin_t", 4, 112),
    "mlp-mixer": Bench(mixer, classes),
    "mamba": Bench(mamba, classes),
    "lstm-32": of_layers(nn.LSTM, 512, 16, 32),
    "lstm-512": of_layers(nn.LSTM, 256, 8, 512),
    "gru": of_layers(nn.GRU, 512, 16, 32),
    "mobilenet-v2": of_vision("mobilenet_v2", 8, 96, training=True, dropout=0.0),
    "mobilenet-v3": of_vision("mobilenet_v3_large", 8, 96, training=True, dropout=0.0),
    "efficientnet": of_vision("efficientnet_b0", 8, 96, training=True, dropout=0.0, stochastic_depth_prob=0.0),
    "convnext": of_vision("convnext_tiny", 4, 96, stochastic_depth_prob=0.0),
    "densenet": of_vision("densenet121", 8, 64, training=True),
    "unet": Bench(unet, distance, training=True),
    "wav2vec2": Bench(wav2vec2, classes),
    "dlrm": Bench(dlrm, clicks),
    "graph": Bench(graph, classes),
}


def build(name, exported=False):
    """Returns a model with its loss, and the inputs of its batch by name. PyTorch runs experts in the way of transformers that is fastest
    on a processor, a loop over those that have tokens, which no exporter takes."""
    bench = MODELS[name]
    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(1)
    model, inputs = mixtral(drawn, "batched_mm") if exported and name == "mixtral" else bench.build(drawn)
    # Weights that are equal in a new model, scales of ones and biases of zeros, are moved apart.
    moved = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=moved))
    return WithLoss(model, bench.loss).train(bench.training), inputs
