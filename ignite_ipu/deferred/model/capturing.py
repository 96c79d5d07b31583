"""Begins to capture the calls of a model, and tells what captures one."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import nn

from ignite_ipu.deferred.model.capturing_class import CAPTURE, capturing_class
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.deferred.model.optimizer import joined_by_optimizers
from ignite_ipu.deferred.settings import CaptureObserver
from ignite_ipu.program.config import IPUConfig

__all__ = ["capture_model", "captured"]

_DEFAULTS = IPUConfig()


def capture_model(
    model: nn.Module,
    config: IPUConfig = _DEFAULTS,
    postponed: Callable[[], Optional[str]] = lambda: None,
    clip_remedy: Optional[str] = None,
    observer: Optional[CaptureObserver] = None,
) -> CapturedModel:
    """Capture a model's calls from now on, and return what does; the same again for a captured model.

    Args:
        model, config, postponed, clip_remedy, observer: As for `CapturedModel`.

    Raises:
        SessionError: The model is trained by another engine, or some of it is not on the CPU.
    """
    existing: Optional[CapturedModel] = model.__dict__.get(CAPTURE)
    if existing is not None:
        return existing
    with torch._C.DisableTorchFunctionSubclass():
        owners = {owner for owner in map(owner_of, model.parameters()) if owner is not None}
    for part in [owner for owner in owners if owner.is_untrained and _is_within(owner.model, model)]:
        # It was asked for the shape of what it returns, or evaluated, before the model that it is a part of.
        part.close()
        owners.discard(part)
    part_of = next((owner for owner in owners if _is_within(model, owner.model)), None)
    capture = CapturedModel(model, config, joined_by_optimizers, postponed, clip_remedy, part_of, observer)
    if observer is not None:
        observer.captured(capture)
    model.__dict__[CAPTURE] = capture
    own_class: Any = type(model)
    model.__class__ = capturing_class(own_class)
    return capture


def captured(model: Any) -> Optional[CapturedModel]:
    """Return what captures a model, alone or together with others; None for an ordinary one."""
    found: Optional[CapturedModel] = getattr(model, "__dict__", {}).get(CAPTURE)
    return None if found is None else found.whole


def _is_within(part: nn.Module, whole: nn.Module) -> bool:
    return any(module is part for module in whole.modules())
