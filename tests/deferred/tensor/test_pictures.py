"""Pictures put together after an update, from results of it: by slices of slices that are filled in place."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import nn

from ignite_ipu import ipu_prepare


def grid(shown: torch.Tensor) -> torch.Tensor:
    """Act as torchvision's `make_grid` and `save_image`."""
    with torch.no_grad():
        pictures = shown.clone()
        for each in pictures:
            each.clamp_(min=0.1, max=0.9)
            each.sub_(0.1).div_(0.8)
        pictures = torch.cat((pictures, pictures), 1)
        found = pictures.new_full((2, 4, 6), 0.5)
        for place in range(6):
            found.narrow(1, place // 3 * 2, 2).narrow(2, place % 3 * 2, 2).copy_(pictures[place])
        return found.mul(255).add_(0.5).clamp_(0, 255).to("cpu", torch.uint8)


def canvas(shown: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(3, 2, 2, 2)
    for place in range(6):
        found[place // 2][place % 2][:, :] = shown[place, 0].detach()
    return found


def written_in_place(shown: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        shown.mul_(255).add_(0.5)
        shown[0].zero_()
    return shown


MADE: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "grid": grid,
    "canvas": canvas,
    "written in place": written_in_place,
}


def after_an_update(make: Callable[[torch.Tensor], torch.Tensor], captures: bool) -> List[Any]:
    torch.manual_seed(0)
    maker = nn.Linear(3, 4)
    optimizer = torch.optim.Adam(maker.parameters(), lr=0.01)
    if captures:
        ipu_prepare(optimizer, maker)
    for _ in range(2):
        made = maker(torch.randn(6, 3))
        optimizer.zero_grad()
        (made - 1).square().mean().backward()
        optimizer.step()
    shown = ((made.reshape(6, 1, 2, 2) + 1) / 2).clamp(0, 1)
    found: List[Any] = make(shown).tolist()
    return found


@pytest.mark.parametrize("make", MADE)
def test_pictures_are_those_of_pytorch(make: str) -> None:
    found, expected = (torch.tensor(after_an_update(MADE[make], captures)) for captures in (True, False))
    assert torch.allclose(found.float(), expected.float(), rtol=1e-5)
