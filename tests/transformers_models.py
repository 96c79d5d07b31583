"""Tiny models from transformers' configurations, which need no downloads, with batches to train them on."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

transformers = pytest.importorskip("transformers")

WORDS, LENGTH, CLASSES = 48, 8, 3
_SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=CLASSES, **_SMALL, **_NO_DROPOUT
    )
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES, **_SMALL, **_NO_DROPOUT
    )
    return transformers.ViTForImageClassification(config)  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 2 * LENGTH}
    words = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes, **words)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    words = {"vocab_size": WORDS, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
    return transformers.T5ForConditionalGeneration(  # type: ignore[no-any-return]
        transformers.T5Config(dropout_rate=0.0, **sizes, **words)
    )


def stages(model: nn.Module) -> Any:
    """Return where stages begin, over two IPUs; T5 comes back to the first, where its shared words are."""
    names = [name for name, _ in model.named_modules()]
    if "shared" in names:
        return [("encoder", 0), ("encoder.block.1", 1), ("decoder", 0)]
    first = {"bert": "bert.embeddings", "transformer": "transformer.wte", "vit": "vit.embeddings"}
    second = ("bert.encoder.layer.1", "transformer.h.1", "vit.encoder.layer.1", "vit.layers.1")
    return [first[names[1].split(".")[0]], next(name for name in second if name in names)]


class Examples(Dataset):  # type: ignore[type-arg]
    """Inputs with labels that can be learned from them, as mappings."""

    def __init__(self, make: Any, count: int = 16) -> None:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
        self.columns: Dict[str, torch.Tensor] = {"input_ids": ids, "labels": ids}
        if make is bert:
            self.columns.update(attention_mask=torch.ones_like(ids), labels=ids[:, 0] % CLASSES)
        elif make is t5:
            self.columns["labels"] = ids.flip(1)
        elif make is vit:
            pixels = torch.randn(count, 1, 8, 8, generator=generator)
            self.columns = {"pixel_values": pixels, "labels": (pixels.mean((1, 2, 3)) > 0).long()}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> Dict[str, torch.Tensor]:
        return {name: column[index] for name, column in self.columns.items()}
