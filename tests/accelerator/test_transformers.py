"""Tiny transformers models fine-tune in the shape of accelerate's nlp example, to accelerate's own weights."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ignite_ipu import backend
from ignite_ipu.deferred import CaptureError, captured
from ignite_ipu.deferred.accelerator import IPUAccelerator
from tests.accelerate_state import forget

transformers = pytest.importorskip("transformers")

SAMPLES, LENGTH, WORDS = 48, 8, 64


class Sentences(Dataset):  # type: ignore[type-arg]
    """Random tokens, some padded; the label is whether the first is in the upper half of the vocabulary."""

    def __init__(self, language: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(1, WORDS, (SAMPLES, LENGTH), generator=generator)
        self.mask = torch.ones_like(self.ids)
        self.mask[::3, 5:] = 0
        self.labels = self.ids if language else (self.ids[:, 0] > WORDS // 2).long()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def classifier() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    )
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def language_model() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=LENGTH,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=WORDS - 1,
        eos_token_id=WORDS - 1,
    )
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def fine_tune(accelerator: Any, make: Any) -> Tuple[nn.Module, List[float]]:
    set_seed(42)
    model = make()
    language = make is language_model
    train = DataLoader(Sentences(language), batch_size=4, shuffle=True, collate_fn=transformers.default_data_collator)
    test = DataLoader(Sentences(language), batch_size=8, collate_fn=transformers.default_data_collator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=2, num_training_steps=len(train) * 2 // accelerator.gradient_accumulation_steps
    )
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    seen: List[float] = []
    for _ in range(2):
        model.train()
        total: Any = 0
        for batch in train:
            batch = {name: value.to(accelerator.device) for name, value in batch.items()}
            with accelerator.accumulate(model):
                output = model(**batch)
                total += output.loss.detach().float()
                accelerator.backward(output.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        for batch in test:
            with torch.no_grad():
                output = model(**batch)
            guesses, labels = accelerator.gather_for_metrics((output.logits.argmax(dim=-1), batch["labels"]))
            assert guesses.shape == labels.shape
            seen.append(output.loss.item())
        seen.append(total.item())
    return model, seen


@pytest.mark.parametrize("make", [classifier, language_model])
def test_final_weights_are_accelerates(make: Any) -> None:
    """To float32 accuracy, with accumulation, clipping and a schedule; one compilation."""
    native, expected = fine_tune(Accelerator(cpu=True, gradient_accumulation_steps=2), make)
    forget()
    model, found = fine_tune(IPUAccelerator(gradient_accumulation_steps=2), make)
    assert found == pytest.approx(expected, rel=1e-3)
    states = [model.state_dict(), native.state_dict()]
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=2e-4)
    capture = captured(model)
    assert capture is not None and capture.compilations == 1
    counters = backend.poptorch().counters(capture.session.training.executor)  # type: ignore[union-attr]
    assert (counters.compiles, counters.device_calls, counters.micro_batches) == (1, 12, 24)


def test_pretrained_files(tmp_path: Any) -> None:
    """`unwrap_model(model).save_pretrained` writes an ordinary checkpoint."""
    accelerator = IPUAccelerator()
    model, _ = fine_tune(accelerator, classifier)
    accelerator.unwrap_model(model).save_pretrained(tmp_path, save_function=accelerator.save)
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_generation_in_the_middle_of_training() -> None:
    """Without a cache it is the host's; a cache, which lives in Python, is refused with the way out."""
    accelerator = IPUAccelerator()
    model = language_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    ids = Sentences(True).ids[:4]
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    prompt, settings = ids[:, :4], {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    generated = accelerator.unwrap_model(model).generate(prompt, use_cache=False, **settings)
    if int(transformers.__version__.split(".")[0]) >= 5:  # older caches are tuples, which the model returns
        with pytest.raises(CaptureError, match=r"Cache keeps results of one call.*use_cache=False.*copy\.deepcopy"):
            accelerator.unwrap_model(model).generate(prompt, **settings)
    own = copy.deepcopy(accelerator.unwrap_model(model))
    assert torch.equal(own.generate(prompt, **settings), generated)
