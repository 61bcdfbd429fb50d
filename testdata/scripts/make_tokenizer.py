#!/usr/bin/env python3
"""Makes testdata/tokenizer.json, a BPE of 128 tokens over testdata/kjv.txt, and what Hugging Face's `tokenizers` gives with it.

128 is the vocabulary of `gpt2-fresh.onnx`. `tokenizer.ids.json` holds the ids of a part of the text, tokenised whole.

usage: python testdata/scripts/make_tokenizer.py      (tokenizers 0.23.3)
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 128
TRAINED_ON = 400_000
SAMPLE = slice(4_000_000, 4_012_000)

testdata = Path(__file__).resolve().parent.parent
text = (testdata / "kjv.txt").read_text(encoding="utf-8")
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], show_progress=False)
tokenizer.train_from_iterator([text[:TRAINED_ON]], trainer)
assert tokenizer.get_vocab_size() == VOCABULARY
tokenizer.save(str(testdata / "tokenizer.json"), pretty=False)

sample = text[SAMPLE]
encoded = tokenizer.encode(sample, add_special_tokens=False)
reference = {"start": SAMPLE.start, "stop": SAMPLE.stop, "ids": encoded.ids}
(testdata / "tokenizer.ids.json").write_text(json.dumps(reference, separators=(",", ":")) + "\n")
