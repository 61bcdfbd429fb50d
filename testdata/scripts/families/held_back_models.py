"""Held-back families: models of torchvision and transformers."""

import torch
import torchvision
import transformers
from family import Family
from images import image, pictures, vision
from language import SIZES, TOKENS, Output, causal, classifier, encoder_decoder, masked, tokens
from torch import nn


class First(nn.Module):
    """A model that returns a dictionary, of which one entry is the output."""

    def __init__(self, model, key):
        super().__init__()
        self.model, self.key = model, key

    def forward(self, *inputs):
        return self.model(*inputs)[self.key]


def resnext():
    """Returns a ResNeXt of one narrow block a stage."""
    return torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1] * 4, num_classes=10, groups=4, width_per_group=4)


def efficientnet_v2():
    """Returns an EfficientNetV2 of three stages."""
    fused, inverted = torchvision.models.efficientnet.FusedMBConvConfig, torchvision.models.efficientnet.MBConvConfig
    blocks = [fused(1, 3, 1, 8, 8, 1), fused(4, 3, 2, 8, 16, 1), inverted(4, 3, 2, 16, 24, 2)]
    return torchvision.models.EfficientNet(blocks, 0.0, num_classes=10, last_channel=32)


def maxvit():
    """Returns a MaxViT of two stages."""
    return torchvision.models.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=10)


def transformer():
    """Returns torchvision's ViT."""
    return torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)


def deeplab():
    """Returns DeepLabV3 on a narrow ResNet."""
    body = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1] * 4)
    features = torchvision.models._utils.IntermediateLayerGetter(body, {"layer2": "out"})
    head = torchvision.models.segmentation.deeplabv3.DeepLabHead(128, 5, (2, 3))
    return First(torchvision.models.segmentation.DeepLabV3(features, head), "out"), (image(64),)


def lraspp():
    """Returns LR-ASPP on the start of a MobileNetV3."""
    body = torchvision.models.mobilenet_v3_small(width_mult=0.25).features
    features = torchvision.models._utils.IntermediateLayerGetter(body, {"3": "low", "7": "high"})
    model = torchvision.models.segmentation.LRASPP(features, body[3].out_channels, body[7].out_channels, 5, 16)
    return First(model, "out"), (image(64),)


def video():
    """Returns the start of R(2+1)D with a head."""
    parts = torchvision.models.video.resnet
    model = parts.VideoResNet(parts.BasicBlock, [parts.Conv2Plus1D] * 4, [1] * 4, parts.R2Plus1dStem)
    layers = [model.stem, model.layer1, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers), (torch.randn(2, 3, 4, 16, 16),)


def series(name, task, key, inputs, **own):
    """Returns a family over time series."""

    def build():
        config = getattr(transformers, f"{name}Config")(**own)
        return Output(getattr(transformers, f"{name}{task}")(config), key=key), inputs()

    return Family(build, loss="distance")


def headless(name, key, **own):
    """Returns a family of encoders without a head."""

    def build():
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **own})
        return Output(getattr(transformers, f"{name}Model")(config), key=key), (tokens(),)

    return Family(build, loss="distance")


def siglip():
    """Returns SigLIP with its own loss, whose scale and bias are parameters."""
    shared = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.SiglipConfig(
        text_config=dict(vocab_size=128, max_position_embeddings=TOKENS, projection_size=32, eos_token_id=2, **shared),
        vision_config=dict(image_size=32, patch_size=8, **shared),
    )
    return Sigmoid(transformers.SiglipModel(config)), (tokens(4), image(32, 4))


class Sigmoid(nn.Module):
    """Pairs of texts and images, each pair with a loss of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, pixels):
        result = self.model(input_ids=ids, pixel_values=pixels, return_loss=True)
        return result.logits_per_text, result.loss


def hubert():
    """Returns HuBERT with layer norms in its feature extractor."""
    config = transformers.HubertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=[16, 16],
        conv_stride=[5, 4], conv_kernel=[10, 3], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True,
    )  # fmt: skip
    return Output(transformers.HubertForCTC(config)), (torch.randn(2, 800),)


def switch():
    """Returns a Switch transformer."""
    config = transformers.SwitchTransformersConfig(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4, num_experts=4,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.SwitchTransformersForConditionalGeneration(config)
    return Output(model, names=["input_ids", "decoder_input_ids"], use_cache=False), (tokens(), tokens())


def marian():
    """Returns Marian, whose positions are a frozen embedding."""
    config = transformers.MarianConfig(
        vocab_size=128, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
        max_position_embeddings=64,
    )  # fmt: skip
    names = ["input_ids", "decoder_input_ids"]
    return Output(transformers.MarianMTModel(config), names=names, use_cache=False), (tokens(), tokens())


def xlm():
    """Returns XLM with its head over the vocabulary."""
    config = transformers.XLMConfig(vocab_size=128, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64, pad_index=2)
    return Output(transformers.XLMWithLMHeadModel(config)), (tokens(),)


def xlnet():
    """Returns XLNet as a classifier."""
    config = transformers.XLNetConfig(vocab_size=128, d_model=32, n_layer=2, n_head=4, d_inner=64, num_labels=10)
    return Output(transformers.XLNetForSequenceClassification(config), use_mems=False), (tokens(),)


def rwkv():
    """Returns RWKV."""
    sizes = dict(vocab_size=128, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=64)
    config = transformers.RwkvConfig(**sizes)
    return Output(transformers.RwkvForCausalLM(config), use_cache=False), (torch.randint(3, 100, (2, 6)),)


def spectrogram():
    """Returns the audio spectrogram transformer."""
    config = transformers.ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, patch_size=8, frequency_stride=8,
        time_stride=8, max_length=32, num_mel_bins=16, num_labels=10,
    )  # fmt: skip
    return Output(transformers.ASTForAudioClassification(config)), (torch.randn(2, 32, 16),)


PATCHES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8)
SERIES = dict(context_length=24, prediction_length=6, patch_length=4, patch_stride=4, num_input_channels=3)
MIXTURE = dict(num_key_value_heads=2, num_experts_per_tok=2, pad_token_id=0)
FAMILIES = {
    # Decoders.
    "StableLM": causal("StableLm", num_key_value_heads=2, use_parallel_residual=True, qk_layernorm=True),
    "Cohere": causal("Cohere", num_key_value_heads=2, use_qk_norm=True, pad_token_id=0),
    "OLMo2": causal("Olmo2", num_key_value_heads=2, pad_token_id=0),
    "Granite": causal("Granite", num_key_value_heads=2, residual_multiplier=0.5, logits_scaling=2.0),
    "GPTBigCode": causal("GPTBigCode", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "OLMoE": causal("Olmoe", "batched_mm", num_experts=4, **MIXTURE),
    "Qwen2-MoE": causal(
        "Qwen2Moe", "batched_mm", num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, **MIXTURE
    ),
    "RWKV": Family(rwkv),
    # Encoders, and encoders with decoders.
    "RemBERT": classifier("RemBert", input_embedding_size=16, output_embedding_size=16),
    "FNet": classifier("FNet"),
    "Longformer": classifier("Longformer", attention_window=4, max_position_embeddings=66),
    "MobileBERT": masked(
        "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16, num_feedforward_networks=2
    ),
    "ConvBERT": classifier("ConvBert", embedding_size=32, conv_kernel_size=3),
    "XLM": Family(xlm),
    "XLNet": Family(xlnet),
    "ESM": masked("Esm", position_embedding_type="rotary", pad_token_id=1, mask_token_id=2),
    "Nystromformer": classifier("Nystromformer", num_landmarks=4, segment_means_seq_len=16, conv_kernel_size=3),
    "Pegasus": encoder_decoder("Pegasus", ("input_ids", tokens), ("model.model.final_logits_bias",), max_position_embeddings=64),
    "mBART": encoder_decoder("MBart", ("input_ids", tokens), ("model.model.final_logits_bias",), max_position_embeddings=64),
    "Marian": Family(marian, buffers=("model.model.final_logits_bias",)),
    "Switch": Family(switch),
    # Images of transformers.
    "DINOv2": pictures("Dinov2", side=32, **PATCHES),
    "DeiT": pictures("DeiT", side=32, **PATCHES),
    "BEiT": pictures("Beit", side=32, use_relative_position_bias=True, **PATCHES),
    "PoolFormer": pictures(
        "PoolFormer", side=32, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2],
        padding=[2, 1], mlp_ratio=2.0,
    ),
    "PVT": pictures(
        "Pvt", side=32, image_size=32, num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2],
        sequence_reduction_ratios=[2, 1], mlp_ratios=[2, 2], patch_sizes=[4, 2], strides=[4, 2],
    ),
    "LeViT": pictures(
        "Levit", side=64, image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2] * 3, depths=[1] * 3, key_dim=[8] * 3,
    ),
    "MobileViT": pictures(
        "MobileViT", side=64, image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32],
        num_attention_heads=4,
    ),
    "ResNet (transformers)": pictures("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "ConvNeXtV2": pictures("ConvNextV2", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "FocalNet": pictures("FocalNet", image_size=64, embed_dim=8, depths=[1, 1], use_layerscale=True),
    "CvT": pictures(
        "Cvt", embed_dim=[8, 16], num_heads=[1, 2], depth=[1, 2], patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1],
        mlp_ratio=[2.0, 2.0], cls_token=[False, True], qkv_bias=[True] * 2, qkv_projection_method=["dw_bn"] * 2,
        kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1], attention_drop_rate=[0.0] * 2,
        drop_rate=[0.0] * 2, drop_path_rate=[0.0] * 2,
    ),
    "SigLIP": Family(siglip, loss="own"),
    # Speech and time series.
    "HuBERT": Family(hubert),
    "audio spectrogram transformer": Family(spectrogram),
    "PatchTST": series(
        "PatchTST", "ForPrediction", "prediction_outputs", lambda: (torch.randn(2, 24, 3),), d_model=16, num_hidden_layers=2,
        num_attention_heads=2, ffn_dim=32, loss="mse", **SERIES,
    ),
    "PatchTSMixer": series(
        "PatchTSMixer", "ForPrediction", "prediction_outputs", lambda: (torch.randn(2, 24, 3),), d_model=16, num_layers=2,
        loss="mse", mode="mix_channel", gated_attn=True, **SERIES,
    ),
    # Images of torchvision.
    "ResNeXt": vision(resnext),
    "EfficientNetV2": vision(efficientnet_v2),
    "EfficientNetV2, training mode": vision(efficientnet_v2, training=True, lost={"dynamo": "batch statistics"}),
    "MaxViT": vision(maxvit, 32),
    "ViT (torchvision)": vision(transformer, 32),
    "DeepLabV3": Family(deeplab, loss="distance"),
    "LR-ASPP": Family(lraspp, loss="distance"),
    "R(2+1)D": Family(video),
}  # fmt: skip
