"""The Python state of a model in a traced forward: what is read there is compiled in, and what is written stays so."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

from torch import nn

from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.notes import Notes
from ignite_ipu.migration.trial.places import current_place, definition_of, is_users

_MISSING = object()


@contextlib.contextmanager
def watched_attributes(model: nn.Module, notes: Notes) -> Iterator[None]:
    """Note the writes to attributes of the user's modules in the `with` block, and the numbers read from them."""
    classes = {type(module) for module in model.modules() if _is_users_class(type(module))}
    replaced: List[Tuple[type, str, Any]] = []
    before = list(_containers(model))
    try:
        for owner in classes:
            for name, make in (("__setattr__", _noting_writes), ("__getattribute__", _noting_reads)):
                replaced.append((owner, name, vars(owner).get(name, _MISSING)))
                setattr(owner, name, make(getattr(owner, name), notes))
        yield
    finally:
        for owner, name, original in replaced:
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        for module, name, container, length in before:
            if len(container) != length:
                notes.add(
                    "mutated-python-state",
                    definition_of(module.forward),
                    f"{type(module).__name__}.forward changes self.{name}; that happens once, while tracing, and "
                    "never again",
                    about=name,
                )


def _noting_writes(original: Any, notes: Notes) -> Any:
    def set_attribute(self: Any, name: str, value: Any) -> None:
        place = current_place()
        own: Dict[str, Any] = self.__dict__
        registered = own["_buffers"].get(name, own["_parameters"].get(name))
        if registered is not None and value is registered:
            pass  # `self.buffer += x` changes the buffer in place, which an IPU keeps
        elif registered is not None:
            notes.add("rebound-buffer", place, f"{{where}} puts another tensor in place of the registered self.{name}")
        else:
            notes.add(
                "mutated-python-state",
                place,
                f"{{where}} changes self.{name}; that happens once, while tracing, and never again",
                about=name,
            )
        original(self, name, value)

    return set_attribute


def _noting_reads(original: Any, notes: Notes) -> Any:
    def get_attribute(self: Any, name: str) -> Any:
        value = original(self, name)
        if type(value) is float:
            notes.add(
                "captured-constant",
                current_place(),
                f"{{where}} reads self.{name}, which is {value!r}; the program keeps that number",
                Severity.NOTE,
                about=name,
            )
        return value

    return get_attribute


def _is_users_class(kind: type) -> bool:
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    return code is not None and is_users(code.co_filename)


def _containers(model: nn.Module) -> Iterator[Tuple[nn.Module, str, Any, int]]:
    for module in model.modules():
        if _is_users_class(type(module)):
            for name, value in vars(module).items():
                if type(value) in (list, dict, set) and not name.startswith("_"):
                    yield module, name, value, len(value)
