"""Sums of handlers over an epoch or a run, as plain data: metrics, stores of outputs, counters of patience.

Ignite resets them when a run starts and when an epoch does, also when a run resumes in the middle of one. A checkpoint
that holds them lets the resumed run end with the values of the uninterrupted one.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, Dict, Iterable, List, Mapping, MutableMapping, Optional, Tuple, Type

import ignite.base
import ignite.distributed as idist
import numpy as np
import torch
from ignite.engine import Engine
from ignite.handlers import Checkpoint, EpochOutputStore
from ignite.metrics import Metric

from ignite_ipu.engines.resume.position import is_between_epochs
from ignite_ipu.errors import logger

_KINDS: Tuple[Type[Any], ...] = (Metric, EpochOutputStore)
if hasattr(ignite.base, "ResettableHandler"):  # of Ignite 0.5.4: `EarlyStopping`, for example
    _KINDS = (*_KINDS, ignite.base.ResettableHandler)
_NESTED = "__metric__"
_DEEPEST = 16
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_COLLECTIONS = (list, tuple, dict, set, frozenset, np.ndarray, bytearray, torch.Tensor)


class _Odd(Exception):
    """A value that is no plain data."""


class _Kept:
    """One object that accumulates, and its attributes at the time when it was attached."""

    def __init__(self, owner: Any) -> None:
        self.owner = weakref.ref(owner)
        self.name: Optional[str] = None
        self.before = _plain_ones(vars(owner))


class Accumulations:
    """The metrics, `EpochOutputStore`s and resettable handlers that are attached to an engine.

    An object is carried by its attributes that have changed since it was attached, if they are plain data: tensors,
    numbers, strings, and lists, tuples and dictionaries of these. Its configuration is not changed.
    """

    def __init__(self) -> None:
        self._kept: List[_Kept] = []
        # Events at which a checkpoint saves the engine.
        self._saved_at: List[Any] = []
        self._expected: Optional[Mapping[str, Any]] = None

    def follow(self, engine: Engine, event_name: Any, handler: Any, arguments: Iterable[Any]) -> None:
        """Inspect a handler that is being attached to the engine; warn of metrics that checkpoints come before."""
        if self.note(handler, arguments):
            if event_name in self._saved_at:
                logger.warning(
                    "A %s is attached after a Checkpoint of this trainer, to the same event (%s): saved states lack "
                    "the metric's last step. Attach Checkpoint handlers after metrics.",
                    type(getattr(handler, "__self__", handler)).__name__,
                    event_name,
                )
        elif isinstance(handler, Checkpoint) and any(value is engine for value in handler.to_save.values()):
            self._saved_at.append(event_name)

    def note(self, handler: Any, arguments: Iterable[Any]) -> bool:
        """Inspect a handler that is being attached, with its arguments; return whether it accumulates."""
        owner = getattr(handler, "__self__", None)
        if not isinstance(owner, _KINDS):
            return False
        kept = next((known for known in self._kept if known.owner() is owner), None)
        if kept is None:
            self._kept = [known for known in self._kept if known.owner() is not None]
            kept = _Kept(owner)
            self._kept.append(kept)
        if isinstance(owner, Metric) and kept.name is None:
            kept.name = next((argument for argument in arguments if isinstance(argument, str)), None)
        return True

    def state_dict(self, values: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the accumulated values, and the plain data of `state.metrics`; or the state that is still expected."""
        if self._expected is not None:
            return dict(self._expected)
        named = self._named() if self._kept and idist.get_world_size() == 1 else []
        objects = {name: _changed(kept.owner(), kept.before) for name, kept in named}
        return {"objects": objects, "values": plain_values(values)}

    def load_state_dict(self, state: Mapping[str, Any], values: MutableMapping[str, Any]) -> List[str]:
        """Go on adding up from there, and return the names of objects that could not be restored and start anew."""
        values.update(copy.deepcopy(dict(state["values"])))
        anew = []
        for name, kept in self._named():
            attributes = state["objects"].get(name)
            try:
                if attributes is None:
                    raise _Odd
                _put_back(vars(kept.owner()), attributes)
            except _Odd:
                anew.append(name)
        return anew

    def expect(self, state: Optional[Mapping[str, Any]]) -> None:
        """Go on adding up from a result of `state_dict` when the next run starts; None for a run that begins anew."""
        self._expected = state

    def go_on(self, engine: Engine) -> None:
        """Go on adding up from the expected state; warn of objects that start anew in the middle of an epoch."""
        expected, self._expected = self._expected, None
        anew = self.load_state_dict(expected, engine.state.metrics) if expected else self.names()
        if anew and engine.state.iteration and not is_between_epochs(engine):
            logger.warning(
                "The checkpoint does not hold what %s had added up: the value of this epoch covers its rest alone.",
                ", ".join(anew),
            )

    def show_stores(self, engine: Engine) -> None:
        """Put the content of each `EpochOutputStore` into the engine's state, as it does at the end of an epoch."""
        for _, kept in self._named():
            owner = kept.owner()
            if isinstance(owner, EpochOutputStore) and getattr(owner, "name", None) is not None:
                owner.store(engine)

    def names(self) -> List[str]:
        """Return the names of the objects: a metric's own, or else the type's with a number."""
        return [name for name, _ in self._named()]

    def _named(self) -> List[Tuple[str, _Kept]]:
        named: Dict[str, _Kept] = {}
        for kept in self._kept:
            owner = kept.owner()
            if owner is None:
                continue
            name = kept.name or type(owner).__name__
            number = 1
            while name in named:
                number += 1
                name = f"{kept.name or type(owner).__name__} {number}"
            named[name] = kept
        return list(named.items())


def plain_values(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return copies of those values that are plain data.

    None in several processes: each has values of its own, and a checkpoint is written by one of them.
    """
    return _plain_ones(values) if values and idist.get_world_size() == 1 else {}


def _changed(owner: Any, before: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the attributes that have changed; None if one of them cannot be saved."""
    found: Dict[str, Any] = {}
    for name, value in vars(owner).items():
        try:
            now = _plain(value)
        except _Odd:
            if name in before or isinstance(value, _COLLECTIONS):
                return None
            continue  # functions, devices, engines: its configuration
        if name not in before or not same_values(now, before[name]):
            found[name] = now
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a copy of plain data."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), depth)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.dtype in _DTYPES:
        return value.detach().cpu().clone()
    if depth == _DEEPEST:
        raise _Odd
    if isinstance(value, Metric):
        return {_NESTED: _plain_ones(vars(value), depth + 1)}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, depth + 1) for item in value)
    if isinstance(value, dict) and all(_is_key(key) for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise _Odd


def _plain_ones(values: Mapping[str, Any], depth: int = 0) -> Dict[str, Any]:
    found = {}
    for name, value in values.items():
        try:
            found[name] = _plain(value, depth)
        except _Odd:
            if isinstance(value, _COLLECTIONS) and depth:
                raise
    return found


def _is_key(key: Any) -> bool:
    # Keys that a checkpoint file may have.
    return type(key) is str or (type(key) is int and abs(key) < 1 << 31)


def same_values(a: Any, b: Any) -> bool:
    """Return whether two of plain data are alike, in their types, too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_values, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_values(a[key], b[key]) for key in a)
    return bool(a == b)


def _put_back(attributes: Dict[str, Any], saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        attributes[name] = _restored(attributes.get(name), value)


def _restored(now: Any, saved: Any) -> Any:
    """Return the saved value in the form of the present one."""
    if isinstance(saved, dict) and _NESTED in saved:
        if not isinstance(now, Metric):
            raise _Odd  # metrics that came to be on the way
        _put_back(vars(now), saved[_NESTED])
        return now
    if isinstance(saved, dict):
        own = isinstance(now, dict)
        values = {key: _restored(now.get(key) if own else None, value) for key, value in saved.items()}
        if not own or type(now) is dict:
            return values
        # Counters and dictionaries with a default keep their types.
        again = copy.copy(now)
        again.clear()
        again.update(values)
        return again
    if isinstance(saved, (list, tuple)):
        same_length = isinstance(now, (list, tuple)) and len(now) == len(saved)
        return type(saved)(
            _restored(present, value) for present, value in zip(now if same_length else [None] * len(saved), saved)
        )
    return saved.clone() if isinstance(saved, torch.Tensor) else saved
