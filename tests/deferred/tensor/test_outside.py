"""Code of a model that computes with weights or buffers of another model, which a list or a variable leads to."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer, ipu_prepare

X = torch.randn(10, 8, 4, generator=torch.Generator().manual_seed(1))
Y = X.argmax(-1) % 3
cross_entropy = nn.CrossEntropyLoss()


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.layer(x))


def weight_of(trunk: Trunk) -> torch.Tensor:
    return trunk.layer.weight[:3]


def mean_of(trunk: Trunk) -> torch.Tensor:
    return trunk.norm.running_mean + torch.zeros(3, 4)


class Reader(nn.Module):
    """Computes with a tensor of a trunk that is no submodule."""

    def __init__(self, trunk: Trunk, read: Callable[[Trunk], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.trunk, self.read = nn.Linear(4, 4), [trunk], read

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.linear(self.layer(x), self.read(self.trunk[0]))


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for model in models for each in model.parameters()], 0.3)


def evaluated(prepare: Any, trunk: Trunk, reader: Reader) -> List[torch.Tensor]:
    optimizer, found = sgd(trunk), []
    prepare(trunk, optimizer)
    prepare(reader)
    for x, y in zip(X, Y):
        optimizer.zero_grad()
        cross_entropy(trunk(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            found.append(reader(x))
    return found


def prepared_later(prepare: Any, trunk: Trunk, reader: Reader) -> List[torch.Tensor]:
    prepare(reader)
    with torch.no_grad():
        first = reader(X[0])
    return [first, *evaluated(prepare, trunk, reader)]


def trained_together(prepare: Any, trunk: Trunk, reader: Reader) -> List[torch.Tensor]:
    optimizer, found = sgd(trunk, reader), []
    prepare(trunk, reader, optimizer)
    for x, y in zip(X, Y):
        optimizer.zero_grad()
        loss = cross_entropy(reader(trunk(x)), y)
        loss.backward()
        optimizer.step()
        reader.eval()
        with torch.no_grad():
            found += [loss.detach().clone(), reader(x)]
        reader.train()
    return found


def trained_in_turns(prepare: Any, trunk: Trunk, reader: Reader) -> List[torch.Tensor]:
    optimizers, found = [sgd(trunk), sgd(reader)], []
    prepare(trunk, optimizers[0])
    prepare(reader, optimizers[1])
    for x, y in zip(X, Y):
        for model, optimizer in zip((trunk, reader), optimizers):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach().clone())
    return found


@pytest.mark.parametrize("update", ["auto", "device", "host"])
@pytest.mark.parametrize("read", [weight_of, mean_of])
@pytest.mark.parametrize("play", [evaluated, prepared_later, trained_together, trained_in_turns])
def test_it_has_the_newest_values(play: Any, read: Any, update: str) -> None:
    results = []
    for config in (None, IPUConfig(update=update)):
        torch.manual_seed(0)
        trunk = Trunk()
        reader = Reader(trunk, read)

        def prepare(*given: Any, config: Any = config) -> None:
            if config is not None:
                ipu_prepare(*given, config=config)

        found = play(prepare, trunk, reader)
        results.append([each.tolist() for each in (*found, *trunk.state_dict().values(), *reader.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_a_warning_names_the_tensors(caplog: pytest.LogCaptureFixture) -> None:
    trunk = Trunk()
    reader = Reader(trunk, weight_of)
    evaluated(ipu_prepare, trunk, reader)
    told = [each for each in caplog.messages if "tensors of another captured model" in each]
    assert len(told) == 1 and "layer.weight of Trunk" in told[0] and "The code of Reader" in told[0]


def test_a_parameter_of_no_module_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    results = []
    for prepares in (False, True):
        torch.manual_seed(0)
        trunk, scale = Trunk(), nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([*trunk.parameters(), scale], 0.3)
        scales = [scale]

        class Scaled(nn.Module):
            def __init__(self, trunk: Trunk, scales: List[nn.Parameter]) -> None:
                super().__init__()
                self.trunk, self.scales = trunk, scales

            def forward(self, x: torch.Tensor) -> Any:
                return self.trunk(x) * self.scales[0]

        model = Scaled(trunk, scales)
        if prepares:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        losses = []
        for x, y in zip(X, Y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append([*losses, *scale.tolist()])
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert sum("trainable tensors that are no parameters of it, of shape (4,)" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("read", [weight_of, mean_of])
def test_an_evaluator_has_the_newest_values(read: Any) -> None:
    torch.manual_seed(0)
    trunk = Trunk()
    reader = Reader(trunk, lambda trunk: read(trunk).detach())
    trainer, evaluator = create_ipu_trainer(trunk, sgd(trunk), cross_entropy), create_ipu_evaluator(reader)
    for x, y in zip(X[:3], Y):
        trainer.run([(x, y)])
        found = evaluator.run([(x, y)]) and evaluator.state.output[0]
        with torch.no_grad():
            expected = nn.functional.linear(
                nn.functional.linear(x, *[each.detach() for each in reader.layer.parameters()]),
                read(trunk).detach(),
            )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
