"""Families of language and speech models of transformers."""

import torch
import transformers
from family import Family
from torch import nn

TOKENS = 16
# The settings that configurations share. A family with other names for them passes its own.
SIZES = dict(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64,
)  # fmt: skip


class Output(nn.Module):
    """A model of transformers with tensors as inputs and one tensor as output."""

    def __init__(self, model, key="logits", names=None, **options):
        super().__init__()
        self.model, self.key, self.names, self.options = model, key, names, options

    def forward(self, *inputs):
        if self.names:
            result = self.model(**dict(zip(self.names, inputs)), **self.options)
        else:
            result = self.model(*inputs, **self.options)
        return getattr(result, self.key)


def tokens(samples=2):
    """Returns random tokens, none of which is a special one."""
    return torch.randint(3, 100, (samples, TOKENS))


def causal(name, experts=None, **own):
    """Returns a family of decoders. `experts` is how a mixture computes its experts."""

    def build():
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **own})
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        if experts:
            model.set_experts_implementation(experts)
        return Output(model, use_cache=False), (tokens(),)

    return Family(build)


def gpt2(**own):
    """Returns a family of GPT-2."""

    def build():
        sizes = dict(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
        return Output(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **own)), use_cache=False), (tokens(),)

    return Family(build)


def classifier(name, sizes=SIZES, **own):
    """Returns a family of encoders that classify a sequence."""

    def build():
        config = getattr(transformers, f"{name}Config")(**{**sizes, **own})
        return Output(getattr(transformers, f"{name}ForSequenceClassification")(config)), (tokens(),)

    return Family(build)


def masked(name, **own):
    """Returns a family of encoders with a head over the vocabulary."""

    def build():
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **own})
        return Output(getattr(transformers, f"{name}ForMaskedLM")(config)), (tokens(),)

    return Family(build)


def encoder_decoder(name, first, buffers=(), **own):
    """Returns a family of encoders with decoders. `first` is the encoder's input: its name, and a function that draws it."""

    def build():
        config = getattr(transformers, f"{name}Config")(
            vocab_size=128, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1, **own,
        )  # fmt: skip
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        return Output(model, names=[first[0], "decoder_input_ids"], use_cache=False), (first[1](), tokens())

    return Family(build, buffers=buffers)


def t5(**own):
    """Returns a family of T5: relative position biases, and a head tied to the embedding or not."""

    def build():
        config = transformers.T5Config(
            vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
            decoder_start_token_id=0, **own,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
        return Output(model, names=["input_ids", "decoder_input_ids"], use_cache=False), (tokens(), tokens())

    return Family(build)


def wav2vec2():
    """Returns wav2vec 2, whose positions come from a convolution with weight norm."""
    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=[16, 16, 16], conv_stride=[5, 2, 2], conv_kernel=[10, 3, 3], num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return Output(transformers.Wav2Vec2ForCTC(config)), (torch.randn(2, 800),)


FAMILIES = {
    # Decoders.
    "GPT-2": gpt2(),
    "GPT-2, untied head": gpt2(tie_word_embeddings=False),
    "Llama": causal("Llama", num_key_value_heads=2),
    "Llama, tied head": causal("Llama", tie_word_embeddings=True),
    "Mistral": causal("Mistral", num_key_value_heads=2),
    "Mixtral": causal("Mixtral", "batched_mm", num_key_value_heads=2, num_local_experts=4),
    "Qwen2": causal("Qwen2", num_key_value_heads=2),
    "Qwen3": causal("Qwen3", num_key_value_heads=2, head_dim=8),
    "Phi": causal("Phi"),
    "Phi3": causal("Phi3", num_key_value_heads=2, pad_token_id=0),
    "Gemma": causal("Gemma", num_key_value_heads=1, head_dim=8),
    "Gemma2": causal("Gemma2", num_key_value_heads=2, head_dim=8),
    "GPT-NeoX": causal("GPTNeoX"),
    "GPT-J": causal("GPTJ", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    "Falcon": causal("Falcon"),
    "OLMo": causal("Olmo"),
    "OPT": causal("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "BLOOM": causal("Bloom", n_layer=2, n_head=4),
    "Mamba": causal("Mamba", num_hidden_layers=1, state_size=4),
    # Encoders.
    "BERT": classifier("Bert"),
    "BERT, tied head": masked("Bert"),
    "RoBERTa": classifier("Roberta", max_position_embeddings=66),
    "ELECTRA": classifier("Electra", embedding_size=32),
    "ALBERT": classifier("Albert", embedding_size=32),
    "DeBERTa-v2": classifier("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "ModernBERT": classifier("ModernBert", pad_token_id=0, reference_compile=False),
    "DistilBERT": classifier(
        "DistilBert", dict(vocab_size=128, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64)
    ),
    "MPNet": classifier("MPNet"),
    # Encoders with decoders, and speech.
    "T5": t5(),
    "T5, untied head": t5(tie_word_embeddings=False),
    "BART": encoder_decoder("Bart", ("input_ids", tokens), ("model.model.final_logits_bias",), max_position_embeddings=64),
    "Whisper": encoder_decoder(
        "Whisper", ("input_features", lambda: torch.randn(2, 16, 100)),
        max_source_positions=50, max_target_positions=64, num_mel_bins=16,
    ),
    "wav2vec2": Family(wav2vec2),
}  # fmt: skip
