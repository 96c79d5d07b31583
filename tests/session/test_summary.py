"""Output of `print(trainer.ipu)`: the plan before a run, and the facts after it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline import measure, plan
from tests.supervised import pair, task

CROSS_ENTROPY = nn.CrossEntropyLoss()


def test_the_epoch_is_worked_out_before_anything_is_compiled():
    """90 samples are 5 calls of 16, with two updates each, and 10 left over; those are two updates more."""
    loader = DataLoader(task(90), batch_size=4)
    for drop_last, told in (
        (True, "5 steps per epoch, 10 samples dropped. 10"),
        (False, "the last with 10 samples. 12"),
    ):
        model, optimizer = pair()
        trainer = create_ipu_trainer(
            model, optimizer, CROSS_ENTROPY, gradient_accumulation_steps=2, device_iterations=2, drop_last=drop_last
        )
        assert "b (the loader's batch_size) x 4 = 4 b samples per device call, 2 b per weight update" in repr(
            trainer.ipu
        )
        text = trainer.explain(loader)
        assert f"{told} weight updates per epoch" in text and "= 16 samples per device call" in text
        assert "so far" not in text and trainer.ipu.training.executor is None


def test_a_plan_tells_schedule_and_memory_before_anything_is_compiled():
    """Four stages and 16 micro-batches take 19 slots, 3 of which fill and drain; the plan's estimates are its own."""
    model, optimizer = pair()
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = plan(measure(model, torch.zeros(4, 6)), 4, accumulation=16, device_iterations=2, optimizer="sgd")
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, pipeline=found)
    text = repr(trainer.ipu)
    assert f"4 stages, pipelined: 16 micro-batches per weight update take 19 slots, {3 / 19:.0%} of them" in text
    assert f"estimated {found.throughput:,.0f} samples/s" in text and "at most 0% of 720 MB" in text
    other = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    fewer = create_ipu_trainer(other, optimizer, CROSS_ENTROPY, pipeline=found, gradient_accumulation_steps=8)
    assert "take 11 slots" in repr(fewer.ipu) and "samples/s" not in repr(fewer.ipu)  # it was planned for 16


@pytest.mark.parametrize("pipeline", [["0", "2"], "auto"], ids=str)
def test_a_loader_tells_the_memory_before_anything_is_compiled(pipeline):
    """By the first batch, which the run sees again; an unfitting batch is refused."""
    loader = DataLoader(task(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1))
    results = []
    for explained in (True, False):
        (model, optimizer), settings = pair(), {"pipeline": pipeline, "gradient_accumulation_steps": 4}
        trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"ipus": 2}, **settings)
        if explained:
            text = trainer.explain(loader)
            assert "IPU of a replica, estimated: at most" in text and "so far" not in text
            assert trainer.ipu.training.executor is None
        trainer.run(loader)
        results.append(copy.deepcopy(model.state_dict()))
        loader.generator.manual_seed(1)
    torch.testing.assert_close(*results, rtol=0, atol=0)
    refused = create_ipu_trainer(*pair(), CROSS_ENTROPY, config={"ipus": 2, "memory_per_ipu": 100}, **settings)
    with pytest.raises(PlanError, match="IPU has 80 B for tensors"):
        refused.explain(loader)


def test_it_says_what_happened():
    """Compilations, calls, updates, and copies of the weights, as the emulator counts them."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, device_iterations=2)
    evaluator = create_ipu_evaluator(model)
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader, max_epochs=3)
    evaluator.run(loader)
    text = repr(trainer.ipu)
    assert "so far      2 compilations; 12 training calls, 24 updates of the optimizer" in text
    counted = poptorch.counters(trainer.ipu.training.executor)
    assert (counted.optimizer_updates, counted.weight_downloads) == (24, 1)
    assert "copies of the weights: 1 to the host, 0 to devices" in text
    trainer.ipu.close()


@pytest.mark.parametrize(("change", "compilations"), [(False, 1), (True, 2)])
def test_what_is_said_to_compile_again_does(change, compilations):
    """Here a frozen layer; without a change nothing does."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader)
    assert "again when parameters are frozen or unfrozen" in repr(trainer.ipu)
    model[0].requires_grad_(not change)
    trainer.run(loader)
    assert f"so far      {compilations} compilations" in repr(trainer.ipu)
