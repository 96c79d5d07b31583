"""Counters and statistics of normalisations are those of a native run, also with replicas."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import OptionsError, UnsupportedArgumentError
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()
LOADER = DataLoader(task(), batch_size=4)


class Normalised(nn.Module):
    """One norm that is called twice, one that is frozen, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.frozen, self.unused = nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        return self.last(self.frozen(self.norm(self.norm(self.first(x)).relu())) + 0 * self.unused.weight.sum())


def made(**settings):
    torch.manual_seed(4)
    model = Normalised()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, **settings)


@pytest.mark.parametrize(
    "factors", [{}, {"device_iterations": 4}, {"gradient_accumulation_steps": 2, "device_iterations": 2}], ids=str
)
def test_counts_are_those_of_a_native_run(factors):
    """Also between trainings, evaluations, edits and a resumed run; statistics and weights, too."""
    (model, optimizer), (reference, native) = made(), made()
    trainer, evaluator = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors), create_ipu_evaluator(model)
    seen = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(LOADER))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: seen.append(int(model.norm.num_batches_tracked)))
    trainer.run(LOADER, max_epochs=2)
    assert seen == [32, 64] and int(model.frozen.num_batches_tracked) == int(model.unused.num_batches_tracked) == 0
    model.norm.num_batches_tracked.fill_(7)
    trainer.run(LOADER, max_epochs=3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), trainer.state_dict()))
    trainer.ipu.close()
    assert saved[0]["norm.num_batches_tracked"] == model.norm.num_batches_tracked == 7 + 32

    model, optimizer = made()
    resumed = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors)
    for each, state in zip((model, optimizer, resumed), saved):
        each.load_state_dict(state)
    resumed.run(LOADER, max_epochs=4)
    for _ in range(4):
        train_natively(reference, native, LOADER, factors.get("gradient_accumulation_steps", 1))
    reference.norm.num_batches_tracked.sub_(64 - 7)
    assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)


def train_as_two_ranks(model, optimizer):
    """Train in eager PyTorch as two processes with DistributedDataParallel do, of which the first keeps its buffers."""
    model.train()
    of_second = {name: buffer.clone() for name, buffer in model.named_buffers()}
    batches = iter(LOADER)
    for number, ((x, y), (second_x, second_y)) in enumerate(zip(batches, batches), 1):
        second = torch.func.functional_call(model, {**dict(model.named_parameters()), **of_second}, second_x)
        (CROSS_ENTROPY(model(x), y) / 4 + CROSS_ENTROPY(second, second_y) / 4).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_replicas_have_statistics_and_counts_of_their_own(caplog):
    """As the processes of DistributedDataParallel; the factory sets broadcastBuffers(False), and logs it."""
    caplog.set_level("INFO")
    (model, optimizer), (reference, native) = made(), made()
    factors = {"replication_factor": 2, "gradient_accumulation_steps": 2, "device_iterations": 2}
    trainer, evaluator = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors), create_ipu_evaluator(model)
    trainer.run(LOADER)
    train_as_two_ranks(reference, native)
    assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)
    assert int(model.norm.num_batches_tracked) == 2 * 16 // 2
    assert "Each of the 2 replicas has normalisation statistics of its own (broadcastBuffers(False))" in caplog.text
    expected = reference.eval()(task().tensors[0][-32:])
    torch.testing.assert_close(evaluator.run(LOADER).output[0], expected, rtol=1e-4, atol=1e-4)


def test_other_buffers_that_replicas_write_are_refused():
    """In eager PyTorch processes would broadcast them; options that say broadcastBuffers(False) settle it."""

    class Averaging(Normalised):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(3))

        def forward(self, x):
            x = super().forward(x)
            self.average.mul_(0.9).add_(x.detach().mean(0))
            return x

    model = Averaging()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, replication_factor=2)
    with pytest.raises(OptionsError, match=r"writes model\.average.*2 replicas.*broadcastBuffers\(False\)"):
        trainer.run(LOADER)
    assert not model.state_dict()["average"].any()
    trainer.ipu.close()
    options = poptorch.Options().broadcastBuffers(False)
    create_ipu_trainer(model, optimizer, CROSS_ENTROPY, options=options, replication_factor=2).run(LOADER)
    assert model.average.any()


def test_calls_that_a_fault_has_lost_are_not_counted(tmp_path):
    model, optimizer = made(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"weight_sync": "on demand"})
    Recovery(tmp_path, {}, every=5, backoff=0.0).attach(trainer)
    with poptorch.inject_faults({8: poptorch.Fault("IPU_RESET"), 13: poptorch.Fault("IPU_RESET")}):
        trainer.run(LOADER)
    assert trainer.state.recovery.recoveries == 2
    assert model.norm.num_batches_tracked == 32


def test_calls_of_a_program_that_is_replaced_are_counted():
    """A number that changes in the loop for the first time becomes an input of another program."""
    model, optimizer = made()
    optimizer = ipu_prepare(optimizer, model)
    for number, (x, y) in enumerate(LOADER, 1):
        loss = CROSS_ENTROPY(model(x), y) / number
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.norm.num_batches_tracked == 2 * len(LOADER)


def test_a_norm_without_momentum_is_refused():
    model, optimizer = made()
    model.norm.momentum = None
    with pytest.raises(UnsupportedArgumentError, match=r"norm is a BatchNorm1d with momentum=None.*Give it a momentum"):
        create_ipu_trainer(model, optimizer, CROSS_ENTROPY).run(LOADER)
    model, optimizer = made()
    model.frozen.momentum = None  # its statistics are only read
    create_ipu_trainer(model, optimizer, CROSS_ENTROPY).run(LOADER)
