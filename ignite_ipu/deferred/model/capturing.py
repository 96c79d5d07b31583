"""Begins to capture the calls of a model."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Set

import torch
from torch import nn

from ignite_ipu.deferred.events import IGNORING, CaptureObserver
from ignite_ipu.deferred.model.capturing_class import CAPTURE, capturing_class
from ignite_ipu.deferred.model.fused_updates import FusedUpdates
from ignite_ipu.deferred.model.host_updates import HostUpdates
from ignite_ipu.deferred.model.joined import join, joined_by_optimizers
from ignite_ipu.deferred.model.loop import Loop, Setup, Updates, has_no_updates
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.deferred.tensor.stored_values import follow_stored
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_DEFAULTS = IPUConfig()


def capture_model(
    model: nn.Module,
    config: IPUConfig = _DEFAULTS,
    postponed: Callable[[], Optional[str]] = lambda: None,
    clip_remedy: Optional[str] = None,
    observer: CaptureObserver = IGNORING,
) -> CapturedModel:
    """Capture a model's calls from now on, and return the captured model; the same again for a captured one.

    Arguments are those of `setup_of`.

    Raises:
        SessionError: Another engine trains it, or some of it is not on the CPU.
    """
    existing: Optional[CapturedModel] = model.__dict__.get(CAPTURE)
    if existing is not None:
        return existing
    owners = owners_of(named_tensors(model).values())
    for part in [loop for loop in {owner.loop for owner in owners} if _is_part(loop, model)]:
        # It was called for the shape of its result, or evaluated, before the model that it is a part of.
        part.close(optimizers=False)
        owners = {owner for owner in owners if owner.loop is not part}
    part_of = next((owner.loop for owner in owners if _is_within(model, owner.model)), None)
    setup = setup_of(config, postponed, clip_remedy, observer)
    follow_stored()
    capture = CapturedModel(model, setup, part_of)
    observer.captured(capture)
    own_class: Any = type(model)
    model.__class__ = capturing_class(own_class)
    model.__dict__[CAPTURE] = capture
    others = {other.loop: None for other in capture.others_with_buffers()}
    if others:
        join([*others, capture.loop])
    return capture


def setup_of(
    config: IPUConfig,
    postponed: Callable[[], Optional[str]] = lambda: None,
    clip_remedy: Optional[str] = None,
    observer: CaptureObserver = IGNORING,
) -> Setup:
    """Return the settings with which models are captured, by those arguments of `Setup` that differ."""
    return Setup(config, _updates, joined_by_optimizers, postponed, clip_remedy, observer)


def _updates(loop: Loop, on_host: bool) -> Updates:
    return HostUpdates(loop) if on_host or loop.setup.config.update == "host" else FusedUpdates(loop)


def captured(model: Any) -> Optional[Loop]:
    """Return the loop of a captured model; None for an ordinary one."""
    found: Optional[CapturedModel] = getattr(model, "__dict__", {}).get(CAPTURE)
    return None if found is None else found.loop


def consists_of_captured(model: nn.Module) -> bool:
    """Return whether a model has trained weights of other captured ones, of none of which it is a part."""
    owners = owners_of(named_tensors(model).values())
    within = any(_is_within(model, owner.model) for owner in owners)
    return not within and not all(_is_part(owner.loop, model) for owner in owners)


def owners_of(tensors: Iterable[torch.Tensor]) -> Set[CapturedModel]:
    """Return the captured models that have some tensors."""
    with DisableTorchFunctionSubclass():
        return {owner for owner in map(owner_of, tensors) if owner is not None}


def _is_part(loop: Loop, model: nn.Module) -> bool:
    """Return whether a model has all models of a loop, none of which was trained."""
    return has_no_updates(loop) and all(_is_within(part.model, model) for part in loop.models)


def _is_within(part: nn.Module, whole: nn.Module) -> bool:
    return any(module is part for module in whole.modules())
