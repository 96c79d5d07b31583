"""Refusals and reports of captured loops name the user's line, the variable and the way out, once."""

from __future__ import annotations

import logging
from typing import Any, Iterator, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu import emulator, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred import CaptureError
from ignite_ipu.errors import SessionError


class Tagged(nn.Linear):
    """A layer whose code reads a text."""

    tag = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tag == "assigns":
            self.weight.data = self.weight.data * 0.5
        return super().forward(x)


def prepared(kind: Any = torch.optim.SGD) -> Tuple[Tagged, torch.optim.Optimizer]:
    model = Tagged(4, 1)
    optimizer = kind(model.parameters(), lr=0.01)
    ipu_prepare(optimizer, model)
    return model, optimizer


def batches() -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    for number in range(4):
        y = torch.full((4, 1), float(number))
        yield torch.ones(4, 4), y if number < 3 else y * float("nan")


def test_a_mask_that_selects_nothing_is_named_with_its_line() -> None:
    model, optimizer = prepared()

    def train() -> None:
        for x, y in batches():
            known = ~y.isnan()
            loss = nn.functional.mse_loss(model(x)[known], y[known])
            optimizer.zero_grad()
            torch.nan_to_num(loss).backward()
            optimizer.step()

    with pytest.raises(CaptureError, match=r"getitem at .*test_messages\.py:\d+ .* selects nothing .*if mask\.any\(\)"):
        train()


def test_clipping_for_an_optimizer_that_cannot_clip_is_named_with_its_line() -> None:
    model, optimizer = prepared(torch.optim.RMSprop)
    model(torch.ones(2, 4)).sum().backward()
    ipu_clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(CaptureError, match=r"Clipping at .*test_messages\.py:\d+ .*update of RMSprop\. Use Adam"):
        optimizer.step()


def test_an_assignment_to_data_in_forward_is_named_with_its_line() -> None:
    model, _ = prepared()
    model.tag = "assigns"
    with torch.no_grad(), pytest.raises(SessionError, match=r"test_messages\.py:\d+: Tagged\.forward writes into a w"):
        model.eval()(torch.ones(2, 4))


def test_a_text_that_changes_in_every_batch_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = prepared()
    before = emulator.counters().compiles
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        for number in range(4):
            model.tag = f"batch {number}"
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert emulator.counters().compiles - before == 4
    assert caplog.text.count("Python values that its code reads have changed (tag)") == 1
