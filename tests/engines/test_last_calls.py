"""`drop_last=False`: a trainer that leaves no sample out trains as PyTorch does, whatever the batching factors are."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu import LoaderError, OptionsError, create_ipu_trainer
from ignite_ipu.errors import LossError
from ignite_ipu.handlers import Recovery
from ignite_ipu.program.geometry import BatchGeometry
from tests.supervised import assert_same_weights, network, pair, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()
MAKE = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


def train_in_updates(model, optimizer, data, size, epochs):
    """Train in eager PyTorch on consecutive samples, `size` of them for each update; return the losses."""
    losses = []
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=size):
            optimizer.zero_grad()
            loss = CROSS_ENTROPY(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(x)))
    return losses


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    ("samples", "factors"),
    [
        (30, {}),
        (61, {"device_iterations": 3}),
        (59, {"device_iterations": 2, "gradient_accumulation_steps": 3}),
        (61, {"replication_factor": 2, "device_iterations": 2}),
        (36, {"replication_factor": 2, "gradient_accumulation_steps": 2}),
    ],
    ids=str,
)
def test_every_sample_trains(kind, samples, factors):
    """Weights, state, losses and counts are those of plain PyTorch with updates of as many samples."""
    data, (model, reference) = task(samples), (network(), network())
    optimizer, native = MAKE[kind](model), MAKE[kind](reference)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, drop_last=False, **factors)
    outputs, seen = [], []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: outputs.append(trainer.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: seen.append(trainer.state.samples))
    state = trainer.run(DataLoader(data, batch_size=4), max_epochs=3)
    size = 4
    for factor in ("gradient_accumulation_steps", "replication_factor"):
        size *= factors.get(factor, 1)
    losses = train_in_updates(reference, native, data, size, 3)
    assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)
    assert seen == [samples, 2 * samples, 3 * samples]
    assert state.weight_updates == len(losses) and len(outputs) == 3 * state.epoch_length
    in_last = losses[
        -(-(-samples // size) % factors.get("device_iterations", 1) or factors.get("device_iterations", 1)) :
    ]
    expected = sum(loss * count for loss, count in in_last) / sum(count for _, count in in_last)
    assert outputs[-1] == pytest.approx(expected, rel=1e-3)
    for name, value in native.state_dict()["state"][0].items():
        torch.testing.assert_close(optimizer.state_dict()["state"][0][name], value, rtol=1e-3, atol=1e-5)
    trainer.ipu.close()


def test_programs_are_compiled_once(caplog):
    """One for whole calls, one for the last; nothing is said to be left out."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, drop_last=False, device_iterations=2)
    trainer.run(DataLoader(task(30), batch_size=4), max_epochs=4)
    whole, *aside = trainer.ipu.training, *trainer.ipu.trained.aside
    assert [poptorch.counters(program.executor).compiles for program in (whole, *aside)] == [1, 1, 1]
    assert "dropped" not in caplog.text and "left out" not in caplog.text


def test_layers_that_are_frozen_in_between_stay_as_they_are():
    """Programs of another time are compiled again."""
    model, reference = network(), network()
    optimizer, native = MAKE["Adam"](model), MAKE["Adam"](reference)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, drop_last=False)
    for frozen in (False, True, False):
        model[0].requires_grad_(not frozen)
        reference[0].requires_grad_(not frozen)
        trainer.run(DataLoader(task(30), batch_size=4), max_epochs=trainer.state.epoch + 1)
        train_in_updates(reference, native, task(30), 4, 1)
        assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)


def test_predictions_and_targets_of_all_samples_come_back():
    outputs = []
    model, optimizer = pair(lr=1e-9)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        CROSS_ENTROPY,
        drop_last=False,
        device_iterations=2,
        output_transform=lambda x, y, y_pred, loss: (x, y, y_pred),
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: outputs.append(trainer.state.output))
    data = task(31)
    trainer.run(DataLoader(data, batch_size=4))
    x, y, y_pred = map(torch.cat, zip(*outputs))
    assert torch.equal(x, data.tensors[0]) and torch.equal(y, data.tensors[1])
    torch.testing.assert_close(y_pred, network()(x), rtol=1e-4, atol=1e-4)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(task(30))


def test_streams_and_recoverable_faults(tmp_path):
    """A stream's tail is trained, and a fault in it changes nothing."""
    results = []
    for faults in ({}, {3: poptorch.Fault("IPU_RESET"), 7: poptorch.Fault("IPU_RESET")}):
        model, optimizer = pair(momentum=0.9)
        trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, drop_last=False, device_iterations=2)
        recovery = Recovery(tmp_path / str(len(faults)), {}, every=2, backoff=0.0)
        recovery.attach(trainer)
        with poptorch.inject_faults(faults):
            trainer.run(DataLoader(Stream(), batch_size=4), max_epochs=2)
        results.append({name: value.clone() for name, value in model.state_dict().items()})
        assert trainer.state.recovery.recoveries == len(faults)
        trainer.ipu.close()
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    reference, native = pair(momentum=0.9)
    train_in_updates(reference, native, task(30), 4, 2)
    torch.testing.assert_close(results[0], dict(reference.state_dict()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("data", [task(7), Stream()], ids=["7 samples", "a stream of 30"])
def test_less_data_than_one_whole_call_is_refused(data):
    """The geometry of a whole call determines that of its parts."""
    trainer = create_ipu_trainer(*pair(), CROSS_ENTROPY, drop_last=False, device_iterations=8)
    with pytest.raises(LoaderError, match=r"fewer than one device call|before it filled one device call of 32 samples"):
        trainer.run(DataLoader(data, batch_size=4))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"pipeline": [2, 1]}, "a pipeline"),
        ({"output_mode": "EveryN", "output_return_period": 2, "device_iterations": 2}, "OutputMode.EveryN"),
    ],
)
def test_what_has_no_program_for_a_few_samples_is_refused(arguments, reason):
    with pytest.raises(OptionsError, match=rf"drop_last=False .* does not go with {reason}.*drop_last=True"):
        create_ipu_trainer(*pair(), CROSS_ENTROPY, drop_last=False, config=arguments)


def test_sums_that_are_averaged_are_refused():
    """The rest has another number of micro-batches, by which its sum would be divided; a single one is exact."""
    loss_fn = nn.CrossEntropyLoss(reduction="sum")
    with pytest.raises(LossError, match=r"sum over samples.*drop_last=False would weigh it differently"):
        create_ipu_trainer(*pair(), loss_fn, drop_last=False, gradient_accumulation_steps=2).run(
            DataLoader(task(30), batch_size=4)
        )
    (model, optimizer), (reference, native) = pair(lr=0.01), pair(lr=0.01)
    create_ipu_trainer(model, optimizer, loss_fn, drop_last=False).run(DataLoader(task(30), batch_size=4))
    train_natively(reference, native, DataLoader(task(30), batch_size=4), loss_fn=loss_fn)
    assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("samples", range(1, 96))
def test_parts_are_whole_updates_and_a_rest(samples):
    geometry = BatchGeometry(4, device_iterations=3, gradient_accumulation=4, replication_factor=2)
    parts = geometry.parts(samples)
    assert sum(part.global_batch_size for part in parts) == samples
    assert [part.accumulated_batch_size for part in parts] == [32] * (samples >= 32) + [samples % 32] * (
        samples % 32 > 0
    )
    assert all(part.micro_batch_size <= 4 and part.replication_factor <= 2 for part in parts)
