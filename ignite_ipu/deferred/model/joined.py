"""Models that one step trains: an encoder and a decoder, two towers, a frozen backbone and its head.

To PyTorch they are separate modules; PopTorch compiles one. So they become the children of one module as soon as it is
seen that one optimizer holds parameters of several, or that a loss is computed with frozen ones, and each stays the
object that the user calls.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from torch import nn

from ignite_ipu.deferred.model.model import CapturedModel
from ignite_ipu.errors import CaptureError

__all__ = ["JoinedModels", "join"]


class JoinedModels(nn.Module):
    """The one module that PopTorch compiles for several models.

    Args:
        models: They become its children, named after their classes.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        for model in models:
            name, count = type(model).__name__, 1
            while name in self._modules:
                count += 1
                name = f"{type(model).__name__}_{count}"
            self.add_module(name, model)
        self.joined_names = " and ".join(sorted(type(model).__name__ for model in models))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Never called: a recorded step calls the children.

        Raises:
            CaptureError: Always.
        """
        raise CaptureError("Models that are trained together are called one by one.")


def join(captures: List[CapturedModel], reason: str) -> CapturedModel:
    """Return what captures several models as one from now on.

    Args:
        captures: What has captured each, the trained ones first.
        reason: What they have in common, as messages begin.

    Raises:
        CaptureError: A module is part of two of them.
    """
    parts: List[CapturedModel] = []
    tops: List[nn.Module] = []
    for capture in captures:
        joined = isinstance(capture.model, JoinedModels)
        parts += [*([] if joined else [capture]), *capture.parts]
        tops += capture.model.children() if joined else [capture.model]
    modules = [id(module) for top in tops for module in top.modules()]
    if len(set(modules)) < len(modules):
        names = " and ".join(sorted(capture.name for capture in captures))
        raise CaptureError(
            f"{reason} {names}, which share submodules and are called separately. Put them "
            "into one nn.Module whose forward does both, and call that."
        )
    for capture in captures:
        # What has been trained alone goes on together with the others.
        for turn in capture.turns:
            turn.training.forget_program()
    whole = captures[0].like(JoinedModels(tops))
    whole.join(parts)
    return whole
