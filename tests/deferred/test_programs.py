"""Each kind of update is compiled once in a run: programs are kept while others train, with one copy at each switch."""

from __future__ import annotations

import re
from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import backend
from ignite_ipu.deferred import capture_model, capture_optimizer, captured

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
EPOCHS = 3


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.0), nn.Linear(16, 2))


def optimizer_of(model: Any, kind: str) -> Any:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def ragged(model: Any, optimizer: Any, sizes: List[int], steps: int = 1, epochs: int = EPOCHS) -> List[float]:
    """Train over batches of these sizes, with an update after every `steps` of them and at the end of an epoch."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    losses = []
    for _ in range(epochs):
        start = 0
        for number, size in enumerate(sizes, start=1):
            loss = F.cross_entropy(model(X[start : start + size]), Y[start : start + size])
            losses.append(loss.detach())
            loss.backward()
            start += size
            if number % steps == 0 or number == len(sizes):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return [float(loss) for loss in losses]


def prepared(kind: str = "adamw") -> Tuple[Any, Any]:
    model = network()
    capture_model(model)
    optimizer = optimizer_of(model, kind)
    capture_optimizer(optimizer)
    return model, optimizer


def same_weights(model: Any, native: Any) -> None:
    # An IPU has no 64-bit integers: how many batches were counted is the host's.
    pairs = zip(model.state_dict().items(), native.state_dict().values())
    for (name, mine), theirs in pairs:
        if mine.is_floating_point():
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


def executors(model: Any) -> List[Any]:
    session = captured(model).session  # type: ignore[union-attr]
    return [program.executor for program in session._programs if program.kind.training]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize(
    ("sizes", "steps", "programs", "switches"),
    [([8, 8, 8, 3], 1, 2, 5), ([8, 8, 8], 2, 2, 5), ([8, 4, 8, 4, 3], 1, 3, 14)],
)
def test_each_shape_compiles_once(kind: str, sizes: List[int], steps: int, programs: int, switches: int) -> None:
    """An incomplete batch or accumulation: native weights, losses and moments; one copy each way at each switch."""
    native = network()
    own = optimizer_of(native, kind)
    expected = ragged(native, own, sizes, steps)
    model, optimizer = prepared(kind)
    found = ragged(model, optimizer, sizes, steps)
    assert found == pytest.approx(expected, rel=1e-4)
    counts = [backend.poptorch().counters(executor) for executor in executors(model)]
    assert [count.compiles for count in counts] == [1] * programs
    assert captured(model).compilations == programs  # type: ignore[union-attr]
    assert sum(count.weight_downloads for count in counts) == switches
    assert sum(count.weight_uploads for count in counts) == switches + 1
    assert sum(count.optimizer_state_uploads for count in counts) == switches
    same_weights(model, native)
    for mine, theirs in zip(optimizer.state_dict()["state"].values(), own.state_dict()["state"].values()):
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor) and value.dim():
                torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)


def test_only_the_program_that_trains_holds_ipus() -> None:
    """The others are kept on the host."""
    model, optimizer = prepared()
    ragged(model, optimizer, [8, 3], epochs=1)
    assert sorted(executor.isAttachedToDevice() for executor in executors(model)) == [False, True]


def test_as_many_programs_are_kept_as_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for longest is given up."""
    monkeypatch.setattr("ignite_ipu.deferred.compiled.training._MOST_PROGRAMS", 2)
    native, (model, optimizer) = network(), prepared()
    expected = ragged(native, optimizer_of(native, "adamw"), [8, 4, 3, 2])
    assert ragged(model, optimizer, [8, 4, 3, 2]) == pytest.approx(expected, rel=1e-4)
    assert len(executors(model)) == 2
    assert len(ragged(model, optimizer, [3, 2, 3, 2], epochs=1)) == 4
    assert captured(model).compilations == 4 * EPOCHS  # type: ignore[union-attr]


def test_edits_and_reads_between_programs() -> None:
    """Weights read and written while an earlier program is about to train again are the newest."""
    native, (model, optimizer) = network(), prepared()
    own = optimizer_of(native, "adamw")
    for net, optim in ((native, own), (model, optimizer)):
        for size in (8, 3, 8, 3):
            F.cross_entropy(net(X[:size]), Y[:size]).backward()
            optim.step()
            optim.zero_grad()
            with torch.no_grad():
                net[0].weight.mul_(1 + 0.01 * float(net[3].weight.abs().max()))
    same_weights(model, native)


def test_closing_gives_all_programs_back() -> None:
    """The model is an ordinary one with the newest weights, and trains on the host."""
    native, (model, optimizer) = network(), prepared()
    own = optimizer_of(native, "adamw")
    ragged(native, own, [8, 3])
    ragged(model, optimizer, [8, 3])
    captured(model).close()  # type: ignore[union-attr]
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    ragged(native, own, [8, 3])
    ragged(model, optimizer, [8, 3])
    same_weights(model, native)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda scores: torch.lgamma(scores).square().mean(), r"lgamma is used at {line}\. "),
        (lambda scores: torch.linalg.svdvals(scores).mean(), r"_linalg_svd is part of linalg_svdvals, used at {line}"),
        (lambda scores: F.interpolate(scores[None], size=9, mode="linear").mean(), r"'linear'.*used at {line}"),
    ],
)
def test_what_no_ipu_computes_is_named_with_the_line_of_the_loop(
    loss: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    """Where it is called, though the step is compiled at its end."""
    model = network()
    capture_model(model)
    optimizer = optimizer_of(model, "sgd")
    capture_optimizer(optimizer)
    loss(model(X[:4])).backward()
    line = f"{re.escape(__file__)}:{loss.__code__.co_firstlineno}"
    with pytest.raises(poptorch.Error, match=message.format(line=line)):
        optimizer.step()
