"""The first call of a captured model on the host, and the random numbers that it leaves to the loop."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, SessionError, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(2))


class MadeLater(nn.Module):
    """Makes a layer by the width of its first batch, as code that is no lazy module does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.layer is None:
            self.layer, self.norm = nn.Linear(x.shape[1], 2), nn.BatchNorm1d(2)
            nn.init.orthogonal_(self.layer.weight)
        return self.norm(self.layer(x))


class CopiedLater(nn.Module):
    """Makes a copy of a part of it in the first call, as a teacher's, after the part has been called."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))
        self.teacher: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.online(x)
        if self.teacher is None:
            self.teacher = copy.deepcopy(self.online).requires_grad_(False)
        return scores + self.teacher(x * 2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [lazy, MadeLater, CopiedLater])
def test_draws_for_the_weights_of_lazy_layers_are_the_program_s(make: Any, training: bool) -> None:
    """Later draws, as of batches and noise, go on from there; and the statistics are written once by each call."""

    def run(captures: bool) -> List[torch.Tensor]:
        torch.manual_seed(5)
        model = make()
        if captures:
            capture_model(model)
        with torch.set_grad_enabled(training):
            model.train(training)(X)
        found = [torch.rand(3)]
        optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
        if captures:
            capture_optimizer(optimizer)
        for _ in range(2):
            order = torch.randperm(16)
            optimizer.zero_grad()
            F.cross_entropy(model(X[order]), Y[order]).backward()
            optimizer.step()
        return [*found, torch.rand(3), *model.state_dict().values()]

    torch.testing.assert_close(run(captures=True), run(captures=False), rtol=1e-4, atol=1e-5)


def test_dropout_in_the_first_call_of_a_lazy_model_draws_on_the_device() -> None:
    """As with a GPU, the generator of the host moves by the draws for weights alone."""
    after = []
    for dropout in (nn.Identity(), nn.Dropout(0.5)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.LazyLinear(8), dropout, nn.LazyLinear(2))
        capture_model(model)
        model(X)
        after.append(torch.rand(3))
    assert torch.equal(*after)


class Flagged(nn.Module):
    """Keeps in an object whether its first call is over, and in a dictionary the table that this one has made."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(6, 2), factor
        self.state, self.tables = SimpleNamespace(first=True), {}  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> Any:
        width = x.shape[1]
        if width not in self.tables:
            self.tables[width] = torch.arange(width) / width
        scores = self.layer(x * self.tables[width])
        if self.state.first:
            self.state.first = False
            return scores * self.factor
        return scores


@pytest.mark.parametrize("mode", ["auto", "device", "host"])
def test_a_flag_of_the_first_call_may_not_change_the_result_of_a_compiled_program(mode: Any) -> None:
    def losses(factor: float, captures: bool) -> List[float]:
        torch.manual_seed(5)
        model = Flagged(factor)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update=mode))
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(1.0, captures=True) == pytest.approx(losses(1.0, captures=False), rel=1e-4)
    if mode == "device":
        with pytest.raises(SessionError, match=r"set \(self\.state\.first, tables\)\. A compiled program"):
            losses(2.0, captures=True)
    else:
        assert losses(2.0, captures=True) == pytest.approx(losses(2.0, captures=False), rel=1e-4)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).transpose(1, 2)


@pytest.mark.parametrize("training", [True, False])
def test_results_have_the_strides_of_pytorch_s(training: bool) -> None:
    """They decide which number `randn_like` draws for each element."""

    def run(captures: bool) -> List[torch.Tensor]:
        torch.manual_seed(5)
        model = Transposed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            capture_model(model)
            capture_optimizer(optimizer)
        model.train(training)
        results = []
        for rows in (4, 3):
            x = torch.randn(rows, 5, 6)
            with torch.set_grad_enabled(training):
                result = model(x)
            if training:
                optimizer.zero_grad()
                result.square().mean().backward()
                optimizer.step()
            result = result.detach()
            results += [result, torch.randn_like(result), torch.tensor(result.stride())]
        return results

    torch.testing.assert_close(run(captures=True), run(captures=False), rtol=1e-4, atol=1e-5)


class Detached(nn.Module):
    """Returns a result, and two through which no gradient flows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        with torch.no_grad():
            target = self.last(hidden)
        return self.last(hidden), hidden.detach(), target


def test_results_without_gradients_are_pytorch_s() -> None:
    """Of a part under `no_grad`, and detached ones; a loss of these alone trains nothing, and is refused."""

    def run(captures: bool) -> List[Any]:
        model = Detached()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            capture_model(model)
            capture_optimizer(optimizer)
        for _ in range(2):
            scores, hidden, target = model(X)
            optimizer.zero_grad()
            (F.cross_entropy(scores, Y) + (scores - target).square().mean()).backward()
            optimizer.step()
        needs_grad = [each.requires_grad for each in (scores, hidden, target)]
        with pytest.raises((RuntimeError, CaptureError), match=r"does not (require grad|depend on trainable weights)"):
            model(X)[1].sum().backward()
        return [*needs_grad, *[each.detach() + 0 for each in model.parameters()]]

    eager, captured = run(captures=False), run(captures=True)
    assert eager[:3] == captured[:3] == [True, False, False]
    torch.testing.assert_close(captured[3:], eager[3:], rtol=1e-4, atol=1e-5)
