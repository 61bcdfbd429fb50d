#!/usr/bin/env python3
"""Exports small models of many families by both of PyTorch's exporters and tries each: docs/families.md.

    python testdata/scripts/check_families.py FOLDER [--trainyard BINARY] [--only NAME …]

For each file: ONNX Runtime's outputs against the compiled program's on the CPU backend (`verify --against`), the training step
against the untransformed graph (`verify`), and ten steps on made-up data (`compile`). Prints a row of the table for each
family; what went wrong is in FOLDER/NAME.EXPORTER.log. Weights are random, sizes small: a family is its graph.
Needs what testdata/requirements.txt lists.
"""

import argparse
import contextlib
import io
import subprocess
import warnings
from pathlib import Path

import numpy
import onnxruntime
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
EXPORTERS = ("dynamo", "legacy")
TOKENS = 16
# What configurations of language models share; those that name it otherwise come with their own.
LANGUAGE = dict(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64,
)  # fmt: skip


class Output(nn.Module):
    """A model of transformers, or any other, with tensors in and one tensor out."""

    def __init__(self, model, key="logits", names=None, **options):
        super().__init__()
        self.model, self.key, self.names, self.options = model, key, names, options

    def forward(self, *inputs):
        if self.names:
            result = self.model(**dict(zip(self.names, inputs)), **self.options)
        else:
            result = self.model(*inputs, **self.options)
        return getattr(result, self.key, result)


def tokens():
    return torch.randint(3, 100, (2, TOKENS))


def image(side):
    return torch.randn(2, 3, side, side)


def causal(name, **own):
    """A decoder of transformers."""
    config = getattr(transformers, f"{name}Config")(**{**LANGUAGE, **own})
    return Output(getattr(transformers, f"{name}ForCausalLM")(config), use_cache=False), (tokens(),)


def classifier(name, **own):
    """An encoder of transformers, for a sequence."""
    config = getattr(transformers, f"{name}Config")(**{**LANGUAGE, **own})
    return Output(getattr(transformers, f"{name}ForSequenceClassification")(config)), (tokens(),)


def pictures(name, task="ImageClassification", side=64, **own):
    """A model of transformers for images."""
    config = getattr(transformers, f"{name}Config")(num_labels=10, **own)
    return Output(getattr(transformers, f"{name}For{task}")(config)), (image(side),)


def encoder_decoder(name, first, **own):
    """An encoder and a decoder of transformers; `first` is the encoder's input and its name."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=128, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, **own,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return Output(model, names=[first[0], "decoder_input_ids"], use_cache=False), (first[1], tokens())


def vision(name, **own):
    """A model of torchvision."""
    return getattr(torchvision.models, name)(num_classes=10, **own), (image(64),)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.layers = getattr(nn, kind)(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0].mean(1))


class UNet(nn.Module):
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
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        return self.narrow(functional.pixel_shuffle(self.wide(x), 2)).clamp(-2, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 32), nn.Linear(32, 128)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        x = self.embedding(x)
        later = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.head(x + self.attention(x, x, x, attn_mask=later, need_weights=False)[0])


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


def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=128, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64
    )
    return Output(transformers.DistilBertForSequenceClassification(config)), (tokens(),)


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=[16, 16, 16], conv_stride=[5, 2, 2], conv_kernel=[10, 3, 3], num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return Output(transformers.Wav2Vec2ForCTC(config)), (torch.randn(2, 800),)


def clip():
    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    return Output(transformers.CLIPVisionModel(config), key="pooler_output"), (image(32),)


FAMILIES = {
    # Decoders.
    "Mistral": lambda: causal("Mistral", num_key_value_heads=2),
    "Qwen2": lambda: causal("Qwen2", num_key_value_heads=2),
    "Qwen3": lambda: causal("Qwen3", num_key_value_heads=2, head_dim=8),
    "Phi": lambda: causal("Phi"),
    "Phi3": lambda: causal("Phi3", num_key_value_heads=2, pad_token_id=0),
    "Gemma": lambda: causal("Gemma", num_key_value_heads=1, head_dim=8),
    "Gemma2": lambda: causal("Gemma2", num_key_value_heads=2, head_dim=8),
    "GPT-NeoX": lambda: causal("GPTNeoX"),
    "GPT-J": lambda: causal("GPTJ", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    "Falcon": lambda: causal("Falcon"),
    "OLMo": lambda: causal("Olmo"),
    "OPT": lambda: causal("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "BLOOM": lambda: causal("Bloom", n_layer=2, n_head=4),
    "Mamba": lambda: causal("Mamba", num_hidden_layers=1, state_size=4),
    # Encoders, and both.
    "RoBERTa": lambda: classifier("Roberta", max_position_embeddings=66),
    "ELECTRA": lambda: classifier("Electra", embedding_size=32),
    "ALBERT": lambda: classifier("Albert", embedding_size=32),
    "DeBERTa-v2": lambda: classifier("DebertaV2"),
    "ModernBERT": lambda: classifier("ModernBert", pad_token_id=0, reference_compile=False),
    "DistilBERT": distilbert,
    "BART": lambda: encoder_decoder("Bart", ("input_ids", tokens()), max_position_embeddings=64),
    "Whisper": lambda: encoder_decoder(
        "Whisper", ("input_features", torch.randn(2, 16, 100)),
        max_source_positions=50, max_target_positions=64, num_mel_bins=16,
    ),
    "wav2vec2": wav2vec2,
    # Images.
    "ViT": lambda: pictures(
        "ViT", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=64, patch_size=16
    ),
    "Swin": lambda: pictures(
        "Swin", image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "ConvNeXt": lambda: pictures("ConvNext", hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 2, 1]),
    "SegFormer": lambda: pictures(
        "Segformer", "SemanticSegmentation",
        hidden_sizes=[16, 16, 32, 32], depths=[1] * 4, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32,
    ),
    "CLIP's images": clip,
    "MobileNetV3": lambda: vision("mobilenet_v3_small"),
    "EfficientNet": lambda: vision("efficientnet_b0"),
    "DenseNet": lambda: vision("densenet121"),
    "ShuffleNetV2": lambda: vision("shufflenet_v2_x0_5"),
    "SqueezeNet": lambda: vision("squeezenet1_1"),
    "MNASNet": lambda: vision("mnasnet0_5"),
    "VGG": lambda: vision("vgg11"),
    "RegNet": lambda: vision("regnet_y_400mf"),
    "GoogLeNet": lambda: vision("googlenet", aux_logits=False, init_weights=False),
    "Swin v2": lambda: vision("swin_v2_t"),
    # Layers of torch.nn.
    "LSTM": lambda: (Recurrent("LSTM"), (tokens(),)),
    "GRU": lambda: (Recurrent("GRU"), (tokens(),)),
    "RNN": lambda: (Recurrent("RNN"), (tokens(),)),
    "TransformerEncoder": encoder,
    "MultiheadAttention": lambda: (Attention(), (tokens(),)),
    "autoencoder (GroupNorm, ConvTranspose2d)": autoencoder,
    "U-Net (InstanceNorm, PReLU, bilinear)": lambda: (UNet(), (image(32),)),
    "PixelShuffle, reflected padding": lambda: (PixelShuffle(), (image(32),)),
    "Conv1d (groups)": line,
    "Conv3d": volume,
}


def export(name, exporter, path):
    """Whether the exporter takes the model."""
    torch.manual_seed(0)
    model, inputs = FAMILIES[name]()
    options = dict(external_data=False, verbose=False) if exporter == "dynamo" else {}
    try:
        # The legacy exporter prints the graph that it cannot take.
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(model.eval(), inputs, path, dynamo=exporter == "dynamo", **options)
    except Exception as error:  # the exporter's, of any kind
        path.with_suffix(".log").write_text(str(error))
        return False
    return True


def expected(path):
    """Writes what ONNX Runtime computes, for `--against`."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = numpy.random.default_rng(0)
    arrays = {}
    for entry in session.get_inputs():
        if "int" in entry.type:
            arrays[entry.name] = drawn.integers(3, 100, entry.shape)
        else:
            arrays[entry.name] = drawn.standard_normal(entry.shape).astype(numpy.float32)
    outputs = zip(session.get_outputs(), session.run(None, arrays))
    file = path.with_suffix(".npz")
    numpy.savez(
        file,
        **{f"input.{key}": value for key, value in arrays.items()},
        **{f"output.{entry.name}": value for entry, value in outputs},
    )
    return file


def tried(binary, path):
    """How a file fares: a word for each of the three."""
    against = ["verify", path, "--mode", "cpu", "--against", expected(path)]
    step = ["verify", path]
    steps = ["compile", path, "--train", "synthetic", "--steps", "10", "-o", path.with_suffix(".run"), "--force"]
    words, log = [], []
    for arguments, good in ((against, "outputs"), (step, "step"), (steps, "training")):
        ended = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
        log.append(ended.stdout + ended.stderr)
        words.append(good if ended.returncode == 0 else f"**not {good}**")
    path.with_suffix(".log").write_text("\n".join(log))
    return ", ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="NAME")
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("| family | " + " | ".join(EXPORTERS) + " |\n| --- | --- | --- |")
    for index, name in enumerate(FAMILIES):
        if name not in arguments.only:
            continue
        row = []
        for exporter in EXPORTERS:
            path = arguments.folder / f"{index}.{exporter}.onnx"
            row.append(tried(arguments.trainyard, path) if export(name, exporter, path) else "not exported")
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
