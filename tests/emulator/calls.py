"""A model that is nothing but a function, for tests of its treatment by a program."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn


class Calls(nn.Module):
    """Calls a function with the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)
