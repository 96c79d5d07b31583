"""Uses of PopTorch by frameworks beyond the public names: strategies, trainers, generation loops.

Each test drives the emulator as one of them does. Published frameworks that do so: PyTorch Lightning's and
Lightning-Graphcore's IPU strategies, Optimum Graphcore's trainers and pipelines.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any, Dict, List

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator as poptorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, target: Any = None) -> Any:
        out = self.head(self.norm(torch.tanh(self.body(x))))
        return out if target is None else (out, nn.functional.mse_loss(out, target))


class Strategy:
    """One model, an executor for each stage, and one stage's executor on the device at a time."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, iterations: int, accumulation: int):
        self.options = poptorch.Options().deviceIterations(iterations)
        self.options.Training.gradientAccumulation(accumulation)
        inference = poptorch.Options().deviceIterations(iterations)
        self.executors = {
            "train": poptorch.trainingModel(model.train(), options=self.options, optimizer=optimizer),
            "validate": poptorch.inferenceModel(model.eval(), options=inference),
        }
        model.train()

    def compiled(self, stage: str) -> bool:
        return self.executors[stage]._executable is not None

    def start(self, stage: str) -> None:
        for each, executor in self.executors.items():
            if self.compiled(each) and executor.isAttachedToDevice():
                executor.detachFromDevice()
        if self.compiled(stage) and not self.executors[stage].isAttachedToDevice():
            self.executors[stage].attachToDevice()

    def close(self) -> None:
        for executor in self.executors.values():
            executor.destroy()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_strategy_that_attaches_one_stage_at_a_time_trains_as_plain_pytorch_does() -> None:
    """Two epochs of training and validation, with a schedule sent to the device before each call."""
    torch.manual_seed(0)
    net, plain = Net(), Net()
    plain.load_state_dict(copy.deepcopy(net.state_dict()))
    data = TensorDataset(torch.randn(24, 3), torch.randn(24, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    strategy = Strategy(net, optimizer, iterations=2, accumulation=1)
    assert not strategy.compiled("train") and not strategy.compiled("validate")
    loader = poptorch.DataLoader(strategy.options, data, batch_size=4)
    evaluated = []
    for _ in range(2):
        strategy.start("train")
        for x, target in loader:
            strategy.executors["train"].setOptimizer(optimizer)
            strategy.executors["train"](x, target)
        schedule.step()
        strategy.start("validate")
        assert not strategy.executors["train"].isAttachedToDevice()
        net.eval()
        evaluated.append(strategy.executors["validate"](data.tensors[0][:8]))
        net.train()
    strategy.close()
    assert not strategy.compiled("train") and type(net) is Net

    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for epoch in range(2):
        # Detaching loses the momentum of torch's own optimizers.
        reference = torch.optim.SGD(plain.parameters(), lr=0.1 * 0.5**epoch, momentum=0.5)
        for x, target in DataLoader(data, batch_size=4):
            reference.zero_grad()
            plain.train()(x, target)[1].backward()
            reference.step()
        with torch.no_grad():
            torch.testing.assert_close(evaluated[epoch], plain.eval()(data.tensors[0][:8]))


def test_the_compiled_program_and_its_arguments_can_be_asked_for() -> None:
    """A pipeline compares the compiled batch size with the next input's, and starts over when they differ."""
    net = Net().eval()
    executor = poptorch.inferenceModel(net)
    assert executor._executable is None and executor._executable_inputs is None
    for rows in (4, 4, 2):
        x = torch.randn(rows, 3)
        inputs = executor._executable_inputs
        if inputs:
            compiled = next(value.shape[0] for value in inputs.args if isinstance(value, torch.Tensor))
            assert compiled == 4 and inputs.kwargs == {}
            if compiled != rows:
                executor.destroy()
                assert executor._executable is None and executor._executable_inputs is None
        torch.testing.assert_close(executor(x), net(x))
    assert executor._executable is not None


def test_options_of_an_executor_tell_the_replicas() -> None:
    executor = poptorch.inferenceModel(Net().eval(), poptorch.Options().replicationFactor(2))
    assert executor._options.toDict()["replication_factor"] == 2


def test_a_loader_class_is_made_again_as_poptorchs() -> None:
    """From the arguments of the user's loader, by name, and by inheritance with other defaults."""

    class Loader(poptorch.DataLoader):
        def __init__(self, options: Any, dataset: Any, scale: int = 1, **kwargs: Any) -> None:
            kwargs.setdefault("drop_last", False)
            super().__init__(options, dataset, batch_size=2 * scale, **kwargs)

    user = DataLoader(TensorDataset(torch.arange(10)), batch_size=2, shuffle=True)
    names = set(inspect.signature(DataLoader.__init__).parameters) & set(vars(user))
    arguments: Dict[str, Any] = {name: getattr(user, name) for name in names - {"sampler", "batch_sampler"}}
    options = poptorch.Options().deviceIterations(2)
    remade = poptorch.DataLoader(options, **arguments, sampler=torch.utils.data.SequentialSampler(user.dataset))
    assert [batch.tolist() for (batch,) in remade] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    own = Loader(options, user.dataset)
    assert isinstance(own, poptorch.DataLoader) and own.combinedBatchSize == 4 and len(own) == 3


def test_a_trained_model_is_unwrapped_for_generation_and_wrapped_again() -> None:
    """Its parts are compiled for inference meanwhile; training goes on as if nothing had happened."""
    torch.manual_seed(0)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    net, undisturbed = Net(), Net()
    undisturbed.load_state_dict(copy.deepcopy(net.state_dict()))
    executors: List[Any] = [
        poptorch.trainingModel(model, optimizer=poptorch.optim.Adam(model.parameters(), lr=0.1))
        for model in (net, undisturbed)
    ]
    for executor in executors:
        executor(x, target)
    wrapped = type(net), type(net.head.weight), type(net.norm.running_mean)
    executors[0].detachFromDevice()

    with poptorch.install():
        private = importlib.import_module("poptorch._impl")
    private.unwrapModelIfNecessary(net)
    private.unwrapModelIfNecessary(net)
    assert type(net) is Net and type(net.head.weight) is nn.Parameter and type(net.norm.running_mean) is torch.Tensor
    part = poptorch.inferenceModel(copy.deepcopy(net.body).eval())
    torch.testing.assert_close(part(x), undisturbed.body(x))
    part.destroy()
    private.rewrapModelIfNecessary(net)
    private.rewrapModelIfNecessary(net)
    assert (type(net), type(net.head.weight), type(net.norm.running_mean)) == wrapped

    for executor in executors:
        executor(x, target)
    for executor in executors:
        executor.destroy()
    torch.testing.assert_close(net.state_dict(), undisturbed.state_dict())
    assert type(net) is Net


def test_unwrapping_makes_the_hosts_weights_the_newest_first() -> None:
    net = Net()
    executor = poptorch.trainingModel(net)
    executor(torch.randn(4, 3), torch.randn(4, 2))
    before = poptorch.counters().weight_downloads
    poptorch_impl_unwrap(net)
    assert poptorch.counters().weight_downloads == before + 1 and not executor.copyWeightsToHostIfNeeded()


def test_an_unwrapped_model_can_be_destroyed_and_wrapped_afresh() -> None:
    net = Net()
    executor = poptorch.trainingModel(net)
    executor(torch.randn(4, 3), torch.randn(4, 2))
    poptorch_impl_unwrap(net)
    executor.destroy()
    assert type(net) is Net and type(net.head.weight) is nn.Parameter
    poptorch.trainingModel(net)(torch.randn(4, 3), torch.randn(4, 2))


@pytest.mark.parametrize("function", ["unwrapModelIfNecessary", "rewrapModelIfNecessary"])
def test_a_model_that_is_not_wrapped_is_left_alone(function: str) -> None:
    net = Net()
    with poptorch.install():
        getattr(importlib.import_module("poptorch._impl"), function)(net)
    assert type(net) is Net and type(net.head.weight) is nn.Parameter


def poptorch_impl_unwrap(model: nn.Module) -> None:
    with poptorch.install():
        importlib.import_module("poptorch._impl").unwrapModelIfNecessary(model)
