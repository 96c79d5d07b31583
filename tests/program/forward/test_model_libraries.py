"""Model libraries that look at values unless they are told of a trace work on an IPU."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from ignite_ipu import LossError, create_ipu_trainer

transformers = pytest.importorskip("transformers")


class Sentences(Dataset):
    """Token sequences of which the last half is padding."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        torch.manual_seed(index)
        mask = torch.ones(8, dtype=torch.long)
        mask[4:] = 0
        return {"input_ids": torch.randint(1, 40, (8,)), "attention_mask": mask, "labels": torch.tensor(index % 2)}


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=40,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def gpt():
    """A language model as its configuration makes it: with a cache for generation."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    assert config.use_cache
    return transformers.GPT2ForSequenceClassification(config)


@pytest.mark.parametrize("make", [bert, gpt])
def test_a_transformer_with_a_padding_mask_trains_as_it_does_natively(make):
    """The model computes its own loss; weights equal a plain loop's."""
    loader = DataLoader(Sentences(), batch_size=4)
    model, reference = make(), make()
    model.config.pad_token_id = reference.config.pad_token_id = 0
    trainer = create_ipu_trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        None,
        prepare_batch=lambda batch, device, non_blocking: (batch, batch["labels"]),
        model_fn=lambda model, batch: model(**batch),
        model_transform=lambda output: dict(output),
    )
    trainer.run(loader)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        reference(**batch).loss.backward()
        optimizer.step()
    for (name, mine), expected in zip(model.state_dict().items(), reference.state_dict().values()):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6, msg=name)
    assert model.config.use_cache == reference.config.use_cache


class Masked(nn.Module):
    """A PyTorch transformer whose forward makes its masks, and says nothing of them."""

    def __init__(self, kind):
        super().__init__()
        self.kind, sizes = kind, {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0}
        self.layers = nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, batch_first=True, **sizes)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x.device)
        if self.kind == "encoder":
            x = self.layers.encoder(x, mask)
        elif self.kind == "decoder":
            x = self.layers.decoder(x, x.flip(1), tgt_mask=mask)
        else:
            x = self.layers(x, x.flip(1), mask, mask)
        return self.head(x).mean(1)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "whole"])
def test_masks_that_pytorch_is_told_nothing_of_compile(kind):
    """It looks at them to choose a kernel, which changes no number."""
    torch.manual_seed(0)
    model = Masked(kind)
    plain = copy.deepcopy(model)
    data = [(torch.randn(4, 5, 8), torch.randint(3, (4,))) for _ in range(4)]
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    trainer.run(data)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for (name, mine), expected in zip(model.state_dict().items(), plain.state_dict().values()):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_the_answer_is_the_ordinary_one_afterwards():
    """Nothing stays patched."""

    class Asks(nn.Linear):
        def forward(self, x):
            answers.add(torch.jit.is_tracing())
            return super().forward(x)

    answers = set()
    model = Asks(2, 2)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    trainer.run([(torch.zeros(2, 2), torch.zeros(2, 2))])
    assert True in answers  # while it was compiled
    answers.clear()
    model(torch.zeros(1, 2))
    assert answers == {False}


class Checkpointed(nn.Module):
    """A network some of whose layers are computed again in the backward pass, to save memory."""

    def __init__(self, **how):
        super().__init__()
        self.first, self.layers, self.how = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh()), how
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x) if self.how.get("prepare", True) else x
        return self.last(checkpoint(self.layers, x, use_reentrant=self.how["use_reentrant"]))


class Timed(Checkpointed):
    """Reads the time, so that the host checks the changes made by a call."""

    def forward(self, x):
        self.since = time.monotonic() * 0
        return super().forward(x)


@pytest.mark.parametrize("network", [Checkpointed, Timed])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_number(use_reentrant, network):
    """PyTorch's checkpointing asks for a module torch.ipu, and detaches; the device needs neither."""
    torch.manual_seed(0)
    model = network(use_reentrant=use_reentrant)
    plain = copy.deepcopy(model)
    data = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(3)]
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    trainer.run(data, max_epochs=2)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in data * 2:
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_checkpointing_that_passes_no_gradients_is_refused():
    """In eager PyTorch the reentrant variant trains nothing if no gradient is needed in front of it."""
    model = Checkpointed(use_reentrant=True, prepare=False)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    with pytest.raises(LossError, match="use_reentrant=False"):
        trainer.run([(torch.randn(8, 4), torch.randint(2, (8,)))])


class CheckpointedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.last = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(checkpoint(self.inside, x, use_reentrant=False))


@pytest.mark.parametrize("model", [CheckpointedNorm, lambda: Checkpointed(use_reentrant=False)])
def test_buffers_that_a_checkpointed_function_writes_are_named(model, caplog):
    """PyTorch writes them twice in each step. It is a warning, once for a model."""
    model = model()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    trainer.run([(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))] * 2)
    found = [each.message for each in caplog.records if "torch.utils.checkpoint calls" in each.message]
    assert len(found) == isinstance(model, CheckpointedNorm)
    assert all("inside.1.running_mean" in each for each in found)
