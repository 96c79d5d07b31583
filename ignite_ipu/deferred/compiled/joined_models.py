"""The one module that PopTorch compiles for several models that are trained together."""

from __future__ import annotations

from typing import Any, List, Sequence

from torch import nn

from ignite_ipu.errors import CaptureError
from ignite_ipu.torch_names.modules import modules_of


class JoinedModels(nn.Module):
    """The one module that PopTorch compiles for several models: its children, named after their classes."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        for model in models:
            name, count = type(model).__name__, 1
            while name in modules_of(self):
                count += 1
                name = f"{type(model).__name__}_{count}"
            self.add_module(name, model)
        self.joined_names = " and ".join(sorted(type(model).__name__ for model in models))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError("Models that are trained together are called one by one.")


def joined_in(module: nn.Module) -> List[str]:
    """Return the names of the models that were joined in a module; nothing for a module that is one model."""
    return [name for name, _ in module.named_children()] if isinstance(module, JoinedModels) else []
