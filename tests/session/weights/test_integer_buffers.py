"""Buffers of integers and booleans that forward writes have the values of eager PyTorch, on every engine."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import OptionsError, SessionError
from ignite_ipu.handlers import Recovery
from ignite_ipu.session.hooks import IPUEvents
from tests.supervised import assert_same_weights, task

LOADER = DataLoader(task(48), batch_size=4)
CROSS_ENTROPY = nn.CrossEntropyLoss()


class Counting(nn.Module):
    """A network with a warm-up, the use of its classes, a queue, and numbers beyond those that float32 holds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("warm", torch.tensor(False))
        self.register_buffer("used", torch.zeros(3, dtype=torch.int32))
        self.register_buffer("kind", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.register_buffer("queue", torch.zeros(10, 3))
        self.register_buffer("classes", torch.zeros(10, dtype=torch.long))
        self.register_buffer("large", torch.tensor(2**24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        self.steps += 1
        self.warm |= self.steps > 3
        self.used += F.one_hot(h.argmax(1), 3).sum(0).int()
        self.kind.copy_(self.steps % 5)
        places = (self.pointer + torch.arange(4)) % 10
        self.queue[places], self.classes[places] = h.detach(), h.argmax(1)
        self.pointer[0] = (self.pointer[0] + 4) % 10
        self.large -= 4_000_001
        return torch.where(self.warm, h, h * self.steps / 4) + self.queue.mean(0) + self.pointer


def made(kind: type = Counting):
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "factors", [{}, {"device_iterations": 3}, {"gradient_accumulation_steps": 2, "device_iterations": 2}], ids=str
)
def test_values_are_those_of_a_native_run(factors):
    """Also after evaluations, which write, too, after writes on the host and in a resumed run; weights, too."""
    (model, optimizer), (reference, native) = made(), made()
    trainer, evaluator = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors), create_ipu_evaluator(model)
    accumulation = {"gradient_accumulation_steps": factors.get("gradient_accumulation_steps", 1)}
    expected = create_supervised_trainer(reference, native, CROSS_ENTROPY, **accumulation)
    trainer.run(LOADER, max_epochs=1)
    expected.run(LOADER, max_epochs=1)
    assert_same_weights(model, reference)
    output = evaluator.run(LOADER).output[0]
    with torch.no_grad():
        outputs = [reference.eval()(x) for x, _ in LOADER]
    torch.testing.assert_close(output[-4:], outputs[-1])
    for each in (model, reference):
        each.steps.fill_(1)
        each.load_state_dict({**each.state_dict(), "used": torch.arange(3, dtype=torch.int32), "warm": torch.tensor(0)})
    trainer.run(LOADER, max_epochs=2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), trainer.state_dict()))
    trainer.ipu.close()
    model, optimizer = made()
    resumed = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors)
    for each, state in zip((model, optimizer, resumed), saved):
        each.load_state_dict(state)
    resumed.run(LOADER, max_epochs=3)
    expected.run(LOADER, max_epochs=3)
    assert_same_weights(model, reference)
    assert model.large == reference.large < -(2**24)


def test_a_loss_counts_and_a_forward_assigns():
    """A buffer of the loss, and one that each call replaces by another tensor of its kind."""

    class Assigning(Counting):
        def forward(self, x):
            self.steps = self.steps + 2
            return self.layer(x) * self.steps

    class CountingLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, y_pred, y):
            self.calls += 1
            return F.cross_entropy(y_pred, y) / self.calls

    (model, optimizer), (reference, native) = made(Assigning), made(Assigning)
    losses = CountingLoss(), CountingLoss()
    trainer = create_ipu_trainer(model, optimizer, losses[0])
    trainer.run(LOADER)
    create_supervised_trainer(reference, native, losses[1]).run(LOADER)
    assert_same_weights(model, reference)
    assert model.steps == 24
    assert losses[0].calls == losses[1].calls == 12


def test_a_fault_loses_no_count(tmp_path):
    """The calls that recovery makes again count once."""
    (model, optimizer), (reference, native) = made(), made()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    Recovery(tmp_path, backoff=0.0).attach(trainer)
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=4), lambda: seen.append(int(model.steps)))
    with poptorch.inject_faults({6: poptorch.Fault("IPU_RESET")}):
        trainer.run(LOADER)
    assert trainer.state.recovery.recoveries == 1
    create_supervised_trainer(reference, native, CROSS_ENTROPY).run(LOADER)
    assert_same_weights(model, reference)
    assert seen == [4, 8, 12]


class Large(Counting):
    """Counts from a number that is set before."""

    def forward(self, x):
        self.large += 1
        return self.layer(x)


@pytest.mark.parametrize(
    ("first", "refusal"),
    [(2**30 - 2, "has reached 1,073,741,824"), (2**40, "have 32 bits"), (-(2**31), "below 1,073,741,824")],
)
def test_numbers_beyond_those_of_a_device_are_refused(first, refusal):
    """Integers of a device have 32 bits: a count that comes near is refused when it is read, and one that is near."""
    model, optimizer = made(Large)
    model.large.fill_(first)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: model.state_dict())
    with pytest.raises(SessionError, match=rf"model\.large .*{refusal}"):
        trainer.run(LOADER)


def test_a_count_that_was_refused_stays_unread():
    """The value of before the refusal is no value that a later read may return."""
    model, optimizer = made(Large)
    model.large.fill_(2**30 - 2)
    ipu_prepare(model, optimizer)
    for x, y in list(LOADER)[:3]:
        CROSS_ENTROPY(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(2):
        with pytest.raises(SessionError, match=r"model\.large has reached"):
            model.state_dict()["large"]


def test_a_type_that_a_device_lacks_is_refused():
    """A buffer of complex numbers that forward writes has no carrier."""

    class Complex(Large):
        def __init__(self):
            super().__init__()
            self.register_buffer("large", torch.tensor(0j))

    trainer = create_ipu_trainer(*made(Complex), CROSS_ENTROPY)
    with pytest.raises(SessionError, match=r"format that an IPU lacks \(model\.large of type torch\.complex64\)"):
        trainer.run(LOADER)


def test_programs_read_the_counts_of_others():
    """What training counts is current in evaluations, and what these count is in training; each compiles once more."""

    class Both(Large):
        def __init__(self):
            super().__init__()
            self.register_buffer("evaluations", torch.tensor(0))

        def forward(self, x):
            if self.training:
                self.large += 1
            else:
                self.evaluations += 1
            return self.layer(x) * self.large / 2**24 + self.evaluations * self.layer.bias

    (model, optimizer), (reference, native) = made(Both), made(Both)
    trainer, evaluator = create_ipu_trainer(model, optimizer, CROSS_ENTROPY), create_ipu_evaluator(model)
    expected = create_supervised_trainer(reference, native, CROSS_ENTROPY)
    compiled = []
    trainer.add_event_handler(IPUEvents.COMPILE_COMPLETED, lambda: compiled.append(trainer.state.epoch))
    for epoch in range(1, 5):
        trainer.run(LOADER, max_epochs=epoch)
        expected.run(LOADER, max_epochs=epoch)
        output = evaluator.run(LOADER).output[0]
        with torch.no_grad():
            outputs = [reference.eval()(x) for x, _ in LOADER]
        torch.testing.assert_close(output[-4:], outputs[-1])
    assert_same_weights(model, reference)
    assert compiled == [1, 1, 2]


@pytest.mark.parametrize("annotated", [False, True])
def test_a_layer_within_one_stage_counts(annotated):
    """By the placement of a trainer, or by annotations of the model."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.tensor(70_000))

        def forward(self, x):
            self.calls += 3
            return x * self.calls / 2**17

    def made_of_three():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), Counting(), nn.Linear(4, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    (model, optimizer), (reference, native) = made_of_three(), made_of_three()
    if annotated:
        poptorch.BeginBlock(model[0], ipu_id=0)
        poptorch.BeginBlock(model[1], ipu_id=1)
    settings = {} if annotated else {"pipeline": {"0": 0, "1": 1}}
    trainer = create_ipu_trainer(
        model, optimizer, CROSS_ENTROPY, gradient_accumulation_steps=4, device_iterations=1, **settings
    )
    trainer.run(LOADER, max_epochs=2)
    expected = create_supervised_trainer(reference, native, CROSS_ENTROPY, gradient_accumulation_steps=4)
    expected.run(LOADER, max_epochs=2)
    assert_same_weights(model, reference)
    assert model[1].calls == reference[1].calls > 70_000


def test_several_ipus_are_refused():
    """Replicas would each count, and the stages of a pipeline read before later ones have written."""

    class Placed(Large):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(super().forward(x))

    class Annotated(Large):
        def forward(self, x):
            with poptorch.Block("1", ipu_id=1):
                return super().forward(x)

    model, optimizer = made(Large)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, replication_factor=2)
    with pytest.raises(OptionsError, match=r"writes model\.large, and its 2 replicas"):
        trainer.run(LOADER)
    for kind, settings in (
        (Placed, {"pipeline": {"layer": 0, "head": 1}, "gradient_accumulation_steps": 4}),
        (Annotated, {}),
    ):
        model, optimizer = made(kind)
        trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **settings)
        with pytest.raises(SessionError, match=r"integers or booleans of a model over several IPUs.*\(model\.large\)"):
            trainer.run(LOADER)
    model, optimizer = made(Large)
    poptorch.BeginBlock(model.layer, ipu_id=0)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    with pytest.raises(SessionError, match=r"over several IPUs.*\(model\.large\)"):
        trainer.run(LOADER)
