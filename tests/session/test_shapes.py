"""Batches of a few shapes, as of samplers that pad to buckets: a program for each, and training is native."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator
from ignite.metrics import Accuracy, Loss
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import BatchError, IPUAccelerator, IPUSession, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import PlanError
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights

CROSS_ENTROPY = nn.CrossEntropyLoss()
MAKE = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, eps=0.01),  # rounds alike in all versions
}
LENGTHS = [4, 8, 4, 4, 12, 8, 12, 4]
SHARDED = {"pipeline": ["embed", "norm"], "execution": "sharded"}


class Sequences(nn.Module):
    """Classifies sequences of any length."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(11, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head(self.norm(self.mix(self.embed(tokens)).relu().mean(1)))


def made(kind="Adam"):
    torch.manual_seed(5)
    model = Sequences()
    return model, MAKE[kind](model)


def batches(rows=8, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(6)
    return [
        (torch.randint(0, 11, (rows, length), generator=generator), torch.randint(0, 3, (rows,), generator=generator))
        for length in lengths
    ]


def train_natively(model, optimizer, data, updates=1, accumulation=1):
    losses = []
    model.train()
    for x, y in data:
        rows = len(x) // updates // accumulation
        micro_batches = list(zip(x.split(rows), y.split(rows)))
        total = 0.0
        for number, (x_of_one, y_of_one) in enumerate(micro_batches, 1):
            loss = CROSS_ENTROPY(model(x_of_one), y_of_one) / accumulation
            loss.backward()
            total += loss.item() / updates
            if number % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("factors", [{}, {"device_iterations": 2, "gradient_accumulation_steps": 2}], ids=str)
def test_buckets_train_as_natively(kind, factors, caplog):
    """Losses, weights, statistics and moments; each program is compiled once and kept, and a switch is two copies."""
    (model, optimizer), (reference, native), losses = made(kind), made(kind), []
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"weight_sync": "on demand"}, **factors)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
    trainer.run(batches(), max_epochs=2)
    numbers = factors.get("device_iterations", 1), factors.get("gradient_accumulation_steps", 1)
    expected = [loss for _ in range(2) for loss in train_natively(reference, native, batches(), *numbers)]
    assert losses == pytest.approx(expected, rel=1e-3)
    counted = [poptorch.counters(each.executor) for each in (trainer.ipu.training, *trainer.ipu.trained.aside)]
    assert [each.compiles for each in counted] == [1, 1, 1]
    switches = 2 * sum(one != other for one, other in zip(LENGTHS, LENGTHS[1:]))  # an epoch ends as it begins
    assert sum(each.weight_uploads for each in counted) == 1 + switches
    assert sum(each.weight_downloads for each in counted) == switches
    assert caplog.text.count("The batch has other shapes") == 2
    assert "x (8, 12), y (8,)): a program is compiled for them and kept, 3 of at most 8" in caplog.text
    assert_same_weights(model, reference, rtol=1e-3, atol=1e-5)
    for name, value in native.state_dict()["state"][0].items():
        torch.testing.assert_close(optimizer.state_dict()["state"][0][name], value, rtol=1e-3, atol=1e-5)
    trainer.ipu.close()


@pytest.mark.parametrize("shared", [False, True])
def test_evaluations_over_buckets_are_native(shared):
    """With the newest weights, each sample once, and one program at a time on the evaluation's IPUs."""
    (model, optimizer), (reference, native) = made(), made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"share_ipus": shared})
    metrics = {"loss": Loss(CROSS_ENTROPY), "accuracy": Accuracy()}
    evaluator, found, expected = create_ipu_evaluator(model, metrics), [], []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: found.append(dict(evaluator.run(data).metrics)))
    data = [*batches(), *batches(5, [8, 4]), *batches(11, [12])]
    trainer.run(batches(), max_epochs=3)
    assert sum(each.ready for each in trainer.ipu.evaluations) == 1 and len(trainer.ipu.evaluations) == 3
    assert [poptorch.counters(each.executor).compiles for each in trainer.ipu.evaluations] == [1, 1, 1]
    evaluate = create_supervised_evaluator(reference, {"loss": Loss(CROSS_ENTROPY), "accuracy": Accuracy()})
    for _ in range(3):
        train_natively(reference, native, batches())
        expected.append(dict(evaluate.run(data).metrics))
    for mine, theirs in zip(found, expected):
        assert mine == pytest.approx(theirs, rel=1e-3)
    evaluator.ipu.most_shapes = 3
    with pytest.raises(BatchError, match="there are programs for 3 others already"):
        evaluator.run(batches(lengths=[4, 16]))


def test_shapes_that_keep_coming_are_refused_at_a_limit():
    """Compiled programs stay, and the limit can be raised."""
    model, optimizer = made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.ipu.most_shapes = 2
    trainer.run(batches(lengths=[4, 8, 4]))
    with pytest.raises(BatchError, match=r"shapes x \(8, 12\), y \(8,\), and there are programs for 2 others.*buckets"):
        trainer.run(batches(lengths=[8, 12]))
    trainer.ipu.most_shapes = 3
    (reference, native) = made()
    train_natively(reference, native, batches(lengths=[4, 8, 4]))
    train_natively(reference, native, batches(lengths=[8]))
    assert_same_weights(model, reference, rtol=1e-3, atol=1e-5)


def test_layers_that_are_frozen_in_between_stay_as_they_are():
    """Programs that were kept from before are compiled again."""
    (model, optimizer), (reference, native) = made(), made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    for epoch, frozen in enumerate((False, True, False), 1):
        for each in (model, reference):
            each.mix.requires_grad_(not frozen)
        trainer.run(batches(), max_epochs=epoch)
        train_natively(reference, native, batches())
        assert_same_weights(model, reference, rtol=1e-3, atol=1e-5)


def test_a_release_in_between_drops_the_programs():
    """The optimizer's state is that of all of them, and later ones are compiled anew."""
    (model, optimizer), (reference, native) = made(), made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    for epoch in (1, 2, 3):
        trainer.run(batches(), max_epochs=epoch)
        trainer.ipu.release()
        train_natively(reference, native, batches())
        assert_same_weights(model, reference, rtol=1e-3, atol=1e-5)
    assert len(trainer.ipu.trained.aside) == 2


def test_captured_loops_keep_a_program_for_each_shape():
    """As engines do, with the optimizer's state of all of them."""
    (model, optimizer), (reference, native) = made(), made()
    accelerator = IPUAccelerator()
    model, optimizer = accelerator.prepare(model, optimizer)
    for x, y in batches() * 2:
        optimizer.zero_grad()
        accelerator.backward(CROSS_ENTROPY(model(x), y))
        optimizer.step()
    train_natively(reference, native, batches() * 2)
    state = {name.partition("module.")[2] or name: value for name, value in model.state_dict().items()}
    torch.testing.assert_close(state, dict(reference.state_dict()), rtol=1e-3, atol=1e-5)
    session = IPUSession.of(accelerator.unwrap_model(model))
    programs = session.training, *session.trained.aside
    assert [poptorch.counters(each.executor).compiles for each in programs] == [1, 1, 1]


def test_faults_and_learning_rates_between_shapes(tmp_path):
    """Both reach whichever program trains."""
    weights = []
    for faults in ({}, {3: poptorch.Fault("IPU_RESET"), 9: poptorch.Fault("IPU_RESET")}):
        model, optimizer = made("SGD")
        trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())  # noqa: B023
        Recovery(tmp_path / str(len(faults)), {}, every=2, backoff=0.0).attach(trainer)
        with poptorch.inject_faults(faults):
            trainer.run(batches(), max_epochs=2)
        assert trainer.state.recovery.recoveries == len(faults)
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        trainer.ipu.close()
    reference, native = made("SGD")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(native, 0.9)
    for batch in batches() * 2:
        train_natively(reference, native, [batch])
        scheduler.step()
    for found in weights:
        torch.testing.assert_close(found, dict(reference.state_dict()), rtol=1e-3, atol=1e-5)


def test_stages_begin_in_every_program():
    """A pipeline is put into the program of each shape."""
    (model, optimizer), (reference, native) = made(), made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, gradient_accumulation_steps=2, config=SHARDED)
    trainer.run(batches())
    assert [each.ipus for each in (trainer.ipu.training, *trainer.ipu.trained.aside)] == [2, 2, 2]
    train_natively(reference, native, batches(), 1, 2)
    assert_same_weights(model, reference, rtol=1e-3, atol=1e-5)
    trainer.ipu.close()


def test_the_memory_of_each_shape_is_estimated():
    """A longer batch that a pipeline has no memory for is refused before its program compiles."""
    model, optimizer = made()
    config = {**SHARDED, "memory_per_ipu": 20_000}
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config=config)
    trainer.run(batches(lengths=[4, 8]))
    with pytest.raises(PlanError, match="IPU has 16 kB for tensors"):
        trainer.run(batches(lengths=[64]))
    trainer.run(batches(lengths=[8]))
    assert trainer.state.iteration == 1
