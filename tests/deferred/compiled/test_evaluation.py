"""Captured models evaluate on the device with the newest weights, one transfer per switch from training."""

from __future__ import annotations

import copy
import logging
from typing import Any, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, backend
from ignite_ipu.deferred import capture_model, capture_optimizer

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Labelled(nn.Module):
    """Returns a loss when it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: Any = None, scale: float = 1.0) -> Any:
        scores = self.net(x) * scale
        return {"scores": scores, "loss": None if labels is None else F.cross_entropy(scores, labels)}


def prepared(**settings: Any) -> Tuple[Labelled, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = Labelled()
    capture = capture_model(model, IPUConfig(**settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer, capture


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for _ in range(2):
        model(X[:8], labels=Y[:8])["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def native(model: Labelled) -> Labelled:
    twin = Labelled()
    twin.load_state_dict(model.state_dict())
    return twin.eval()


@pytest.mark.parametrize("share_ipus", [False, True])
def test_newest_weights_one_transfer_per_switch(share_ipus: bool) -> None:
    """Evaluating again transfers nothing, with IPUs of its own or in turns."""
    model, optimizer, capture = prepared(share_ipus=share_ipus)
    for _ in range(2):
        train(model, optimizer)
        model.eval()
        with torch.no_grad():
            outputs = [model(X[:8])["scores"] for _ in range(3)]
        torch.testing.assert_close(outputs[-1], native(model)(X[:8])["scores"])
    counters = backend.poptorch().counters(capture.session.evaluations[0].executor)
    assert (counters.compiles, counters.weight_uploads, counters.device_calls) == (1, 2, 6)


def test_weights_set_on_the_host_are_used() -> None:
    """By load_state_dict, and by hand."""
    model, optimizer, _ = prepared()
    train(model, optimizer)
    model.eval()
    with torch.no_grad():
        model(X[:8])
        model.net[0].weight.mul_(0.5)
        torch.testing.assert_close(model(X[:8])["scores"], native(model)(X[:8])["scores"])
    model.load_state_dict(Labelled().state_dict())
    torch.testing.assert_close(model(X[:8])["scores"], native(model)(X[:8])["scores"])


def test_batches_of_any_size() -> None:
    """A smaller batch is filled up where outputs have a row per sample, and another program where they do not."""
    model, _, capture = prepared()
    model.eval()
    twin = native(model)
    for rows in (8, 3, 5):
        torch.testing.assert_close(model(X[:rows])["scores"], twin(X[:rows])["scores"])
    assert len(capture.session.evaluations) == 1
    for rows in (8, 3):
        found, expected = model(X[:rows], labels=Y[:rows]), twin(X[:rows], labels=Y[:rows])
        torch.testing.assert_close(found["loss"], expected["loss"])
    assert len(capture.session.evaluations) == 3


class Centred(nn.Module):
    """Mixes the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(X.shape[1], 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x)
        return scores - scores.mean(0)


def test_a_batch_is_not_filled_up_where_that_changes_predictions() -> None:
    """Its outputs have a row per sample, but depend on the other rows: each size is a program of its own.

    One sample among copies of itself tells nothing, and has the right mean.
    """
    model = Centred().eval()
    twin = copy.deepcopy(model)
    capture = capture_model(model)
    with torch.no_grad():
        for rows in (8, 3, 1, 2, 8):
            torch.testing.assert_close(model(X[:rows]), twin(X[:rows]))
    assert len(capture.session.evaluations) == 3


def test_arguments_that_are_no_tensors() -> None:
    """They are part of the program; another value is another program."""
    model, _, _ = prepared()
    model.eval()
    twin = native(model)
    for scale in (1.0, 2.0, 1.0):
        torch.testing.assert_close(model(X[:8], scale=scale)["scores"], twin(X[:8], scale=scale)["scores"])


def test_many_shapes_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Each is a compilation."""
    model, _, _ = prepared()
    model.eval()
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        for rows in range(1, 7):
            model(X[:rows], labels=Y[:rows])
    assert "evaluated with 5 different shapes" in caplog.text


def test_programs_for_changing_arguments_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Eight are kept; a number that is passed as a tensor needs one."""
    model, optimizer, capture = prepared()
    train(model, optimizer)
    model.eval()
    twin = native(model)
    with caplog.at_level(logging.WARNING, "ignite_ipu"), torch.no_grad():
        for step in (*range(12), 11, 5, 0):
            scale = 1 + step / 10
            torch.testing.assert_close(model(X[:8], scale=scale)["scores"], twin(X[:8], scale=scale)["scores"])
            torch.testing.assert_close(model(X[:5], scale=scale)["scores"], twin(X[:5], scale=scale)["scores"])
        assert len(capture.session.evaluations) == 8
        assert caplog.text.count("more than 8 different") == caplog.text.count("timesteps, as tensors") == 1
        for step in range(12):
            scaled: Any = torch.tensor(1 + step / 10)
            torch.testing.assert_close(model(X[:8], scale=scaled)["scores"], twin(X[:8], scale=scaled)["scores"])
    assert len(capture.session.evaluations) == 8
    train(model, optimizer)
    model.eval()
    torch.testing.assert_close(model(X[:8])["scores"], native(model)(X[:8])["scores"])


def test_modes_of_sub_modules_count() -> None:
    """Dropout that stays on in an evaluation is another program than dropout that is off."""
    model, _, _ = prepared()
    model.eval()
    assert torch.equal(model(X)["scores"], model(X)["scores"])
    model.net[1].train()
    assert not torch.equal(model(X)["scores"], model(X)["scores"])


@pytest.mark.parametrize("momentum", [0.1, None], ids=["device", "host"])
def test_calls_in_training_mode_keep_statistics(caplog: pytest.LogCaptureFixture, momentum: Any) -> None:
    """As a generator's samples between updates do: outputs, statistics and the updates after are the native ones."""

    def run(captured: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if captured:
            capture_model(model, IPUConfig())
            capture_optimizer(optimizer)
        seen = []
        for number in range(4):
            if momentum:
                optimizer.zero_grad()
                F.cross_entropy(model(X[:8]), Y[:8]).backward()
                optimizer.step()
            model[1].momentum = momentum
            if number % 2:
                with torch.no_grad():
                    seen.append(model(X[8:24]))
        return [*seen, *model.state_dict().values()]

    torch.testing.assert_close(run(captured=True), run(captured=False), rtol=1e-4, atol=1e-5)
    assert caplog.text.count("Such calls run on the host") == (momentum is None)


def test_dropout_in_training_mode_without_gradients_draws_what_the_host_draws() -> None:
    """The same seed gives the same mask as in eager PyTorch."""
    layers = [nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5)) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    capture_model(layers[0], IPUConfig())
    found = []
    for layer in layers:
        torch.manual_seed(3)
        with torch.no_grad():
            found.append(layer(X))
    torch.testing.assert_close(found[0], found[1])


class Cached(nn.Module):
    """Keeps its inputs in buffers, in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("rows", torch.zeros(()))
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(self.layer(x)) + self.kept.sum(0)
        self.kept.copy_(torch.cat([self.kept[1:], output.mean(0, keepdim=True)]).detach())
        self.rows += len(x)
        return output


def test_buffers_that_evaluation_writes_are_there_for_every_reader_and_every_later_call() -> None:
    """For programs of several shapes, the update after them, and state_dict(); also where a norm stays in training."""

    def run(captured: bool) -> Any:
        torch.manual_seed(0)
        model = Cached()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captured:
            capture_model(model, IPUConfig())
            capture_optimizer(optimizer)
        seen = []
        for rows in (16, 5, 16):
            model.eval()
            model.norm.train(rows == 5)
            with torch.no_grad():
                seen += [model(X[:rows]), model(X[rows : 2 * rows]), model.rows.clone()]
            seen += [value.clone() for value in model.state_dict().values()]
            model.train()
            optimizer.zero_grad()
            model(X[:8]).square().mean().backward()
            optimizer.step()
        return [*seen, *model.state_dict().values()]

    torch.testing.assert_close(run(captured=True), run(captured=False), rtol=1e-4, atol=1e-5)


class Classifier(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        scores = super().forward(x)
        return scores, scores.argmax(1), scores.double(), scores > 0, x[:, 0].int()


def test_results_have_the_types_of_pytorch() -> None:
    """A device has no numbers of 64 bits: functions such as `one_hot` take no other labels."""
    model = Classifier(6, 2)
    twin = copy.deepcopy(model)
    capture_model(model)
    with torch.no_grad():
        for rows in (16, 5):
            results, expected = model.eval()(X[:rows]), twin(X[:rows])
            torch.testing.assert_close(list(results), list(expected))
            assert F.one_hot(results[1]).shape == F.one_hot(expected[1]).shape
