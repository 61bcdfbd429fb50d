"""Families of image models of torchvision and transformers."""

import functools

import torch
import torchvision
import transformers
from family import Family
from language import Output, tokens
from torch import nn
from torch.nn import functional


def image(side, samples=2):
    """Returns random images."""
    return torch.randn(samples, 3, side, side)


def pictures(name, task="ImageClassification", loss="classes", side=64, **own):
    """Returns a family of transformers."""

    def build():
        config = getattr(transformers, f"{name}Config")(num_labels=10, **own)
        return Output(getattr(transformers, f"{name}For{task}")(config)), (image(side),)

    return Family(build, loss=loss)


def vision(make, side=64, **settings):
    """Returns a family of torchvision. `make` builds the model."""

    def build():
        model = make() if callable(make) else getattr(torchvision.models, make)(num_classes=10)
        # The layers for dropout and stochastic depth stand in training mode too, but drop nothing.
        for module in model.modules():
            if hasattr(module, "p") and isinstance(module.p, float):
                module.p = 0.0
        return model, (image(side, 8 if settings.get("training") else 2),)

    return Family(build, **settings)


def vgg():
    """Returns a narrow VGG."""
    layers = torchvision.models.vgg.make_layers([8, "M", 16, "M", 32, 32, "M", 32, 32, "M"])
    model = torchvision.models.VGG(layers, num_classes=10)
    model.classifier = nn.Sequential(nn.Linear(32 * 49, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 10))
    return model


def efficientnet():
    """Returns an EfficientNet-B0 of a quarter of the width and half the depth."""
    blocks, last = torchvision.models.efficientnet._efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=0.5)
    return torchvision.models.EfficientNet(blocks, 0.0, num_classes=10, last_channel=last)


def regnet():
    """Returns a narrow RegNet with squeeze and excitation."""
    parameters = torchvision.models.regnet.BlockParams.from_init_params(4, 16, 16.0, 2.0, 8, se_ratio=0.25)
    return torchvision.models.RegNet(parameters, num_classes=10, stem_width=8)


def densenet():
    """Returns a DenseNet with four short blocks."""
    return torchvision.models.DenseNet(8, (2, 2, 2, 2), 16, num_classes=10)


def convnext():
    """Returns a ConvNeXt of torchvision. Its layer scale has the shape [channels, 1, 1]."""
    settings = [
        torchvision.models.convnext.CNBlockConfig(16, 32, 1),
        torchvision.models.convnext.CNBlockConfig(32, 64, 2),
        torchvision.models.convnext.CNBlockConfig(64, None, 1),
    ]
    return torchvision.models.ConvNeXt(settings, num_classes=10)


def swin(version):
    """Returns a Swin of torchvision, of version 1 or 2."""
    blocks = {
        1: (torchvision.models.swin_transformer.SwinTransformerBlock, torchvision.models.swin_transformer.PatchMerging),
        2: (torchvision.models.swin_transformer.SwinTransformerBlockV2, torchvision.models.swin_transformer.PatchMergingV2),
    }
    block, downsample = blocks[version]
    return torchvision.models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10, block=block, downsample_layer=downsample
    )


def resnet():
    """Returns a ResNet of one block a stage."""
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


# The table that Swin v2's relative positions are computed from: a buffer that a linear layer reads.
COORDINATES = tuple(f"model.features.{i}.{k}.attn.relative_coords_table" for i in (1, 3) for k in (0, 1))


def mobilenet():
    """Returns a MobileNetV2 of a quarter of the width."""
    return torchvision.models.mobilenet_v2(num_classes=10, width_mult=0.25)


def clip_vision():
    """Returns the image half of CLIP."""
    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    return Output(transformers.CLIPVisionModel(config), key="pooler_output"), (image(32),)


class Contrast(nn.Module):
    """CLIP with its loss: cross-entropy of both directions. The temperature is `logit_scale`."""

    def __init__(self, clip):
        super().__init__()
        self.clip = clip

    def forward(self, ids, pixels):
        scores = self.clip(input_ids=ids, pixel_values=pixels).logits_per_image
        labels = torch.arange(len(scores))
        return scores, (functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.t(), labels)) / 2


def clip():
    """Returns both halves of CLIP."""
    shared = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=dict(vocab_size=128, max_position_embeddings=32, eos_token_id=2, **shared),
        vision_config=dict(image_size=32, patch_size=8, **shared),
        projection_dim=16,
    )
    return Contrast(transformers.CLIPModel(config)), (tokens(4), image(32, 4))


FOLDED = {"dynamo": "batch statistics"}
SWIN = dict(image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
FAMILIES = {
    "ViT": pictures(
        "ViT", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=64, patch_size=16
    ),
    "Swin": pictures("Swin", **SWIN),
    "Swin v2 (transformers)": pictures("Swinv2", **SWIN),
    "Swin (torchvision)": vision(functools.partial(swin, 1)),
    "Swin v2 (torchvision)": vision(functools.partial(swin, 2), buffers=COORDINATES),
    "ConvNeXt": pictures("ConvNext", hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 2, 1]),
    "ConvNeXt (torchvision)": vision(convnext),
    "SegFormer": pictures(
        "Segformer", "SemanticSegmentation", "distance",
        hidden_sizes=[16, 16, 32, 32], depths=[1] * 4, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32,
    ),
    "CLIP's images": Family(clip_vision),
    "CLIP": Family(clip, loss="own"),
    "ResNet": vision(resnet),
    "ResNet, training mode": vision(resnet, training=True, lost=FOLDED, seed=1),
    "MobileNetV2": vision(mobilenet),
    "MobileNetV2, training mode": vision(mobilenet, training=True, lost=FOLDED),
    "MobileNetV3": vision(lambda: torchvision.models.mobilenet_v3_small(num_classes=10, width_mult=0.25)),
    "EfficientNet": vision(efficientnet),
    "DenseNet": vision(densenet),
    "ShuffleNetV2": vision("shufflenet_v2_x0_5"),
    "SqueezeNet": vision("squeezenet1_1", seed=1),
    "MNASNet": vision(lambda: torchvision.models.MNASNet(0.35, num_classes=10)),
    "VGG": vision(vgg),
    "RegNet": vision(regnet),
    "GoogLeNet": vision(lambda: torchvision.models.googlenet(num_classes=10, aux_logits=False, init_weights=False), seed=2),
}  # fmt: skip
