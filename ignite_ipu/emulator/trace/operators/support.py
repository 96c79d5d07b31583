"""Operators that a model may use: a table to query, and the check of a traced model against it.

An operator that is not in the table counts by what PyTorch makes of it: it works when all the kernels that PyTorch
calls for it do. What does not work is refused when the model compiles. The one switch that turns this into a warning is
`set_strict(False)`, or `IGNITE_IPU_STRICT_OPERATORS=0` in the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Callable, Collection, ContextManager, Dict, Mapping, Optional, Set, Tuple

from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from ignite_ipu.emulator.errors import Refusal, backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace import call_sites
from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.operators import arguments as operator_arguments
from ignite_ipu.emulator.trace.operators import table as operator_table

STRICT_VARIABLE = "IGNITE_IPU_STRICT_OPERATORS"
SWITCH = "ignite_ipu.emulator.trace.operators.support.set_strict(False)"
DOUBT = "PopTorch's sources read so, and no test of its own shows it: the emulator computes what PyTorch does."
REMEDY = "Write it with operators that ignite_ipu.emulator.trace.operators.support.listed() names."

_SWITCH = {"0": False, "1": True}
_strict: Optional[bool] = None


@dataclasses.dataclass(frozen=True)
class Use:
    """An operator that does not compile, where a model uses it.

    Attributes:
        kind: What has no implementation.
        name: The function that the model calls.
        place: Where.
        node: What it computes; None in the body of a loop or branch.
    """

    kind: str
    name: str
    place: str
    node: Optional[fx.Node]


def listed() -> Dict[str, Tuple[str, ...]]:
    """Return the names of the operators that compile, by group."""
    return dict(operator_table.GROUPS)


def strict() -> bool:
    """Return whether an unsupported operator is an error (the default) rather than a warning.

    Raises:
        ValueError: `IGNITE_IPU_STRICT_OPERATORS` is neither 0 nor 1.
    """
    if _strict is not None:
        return _strict
    text = os.environ.get(STRICT_VARIABLE, "1")
    if text not in _SWITCH:
        raise ValueError(f"{STRICT_VARIABLE} is {text!r}; it must be 1 (refuse unsupported operators) or 0 (warn).")
    return _SWITCH[text]


def set_strict(enabled: Optional[bool]) -> Optional[bool]:
    """Refuse unsupported operators, or only warn of them; `None` leaves it to `IGNITE_IPU_STRICT_OPERATORS` again.

    Returns:
        What was set before, to be set again afterwards.
    """
    global _strict
    before, _strict = _strict, enabled
    return before


def observed(name: str, kernel: Callable[..., Any], kinds: Set[str]) -> ContextManager[Any]:
    """Return a context manager that adds to `kinds` what does not compile of an operator.

    What is in the table is known; of anything else the kernels are, which PyTorch calls inside the context.
    """
    if (getattr(kernel, "__module__", None) or "").startswith("ignite_ipu.") or operator_table.compiles(name):
        return contextlib.nullcontext()
    kind = operator_table.refused(name)
    if kind is not None:
        kinds.add(kind)
        return contextlib.nullcontext()
    return _Observer(kinds)


def check_arguments(
    capture: Trace, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of an operator as the device reads them.

    Those with which it does not compile are refused, and those with which it is likely not to are warned of.
    """
    call = operator_arguments.Call(name, args, kwargs, capture)
    if not operator_table.restricted(name) or not (call.varies() or capture.outer is not None):
        return args, kwargs  # what depends on constants alone is computed while compiling
    for restriction, text in operator_arguments.found(call):
        if restriction.refused:
            _report(f"{text} It is used {call_sites.here()}.", Refusal.RESTRICTED_ARGUMENT)
        elif restriction.replaced:
            args, kwargs = operator_arguments.replaced(call, restriction)
            if restriction.instead:
                _warn_once(capture, name, text)
        else:
            _warn_once(capture, name, f"{text} {DOUBT}")
    return args, kwargs


def check_write(capture: Trace, tensor: Any, *values: Any) -> None:
    """Refuse a write in place through a view with a step, and warn of others, as of an assignment to all of it."""
    if operator_arguments.views(tensor):
        check_arguments(capture, "__setitem__", (tensor, (), values), {})


def check_loss(capture: Trace, loss: fx.Node) -> None:
    """Warn of a loss whose gradient is likely to be another than PyTorch's."""
    call = operator_arguments.Call(str(loss.meta.get("operator")), loss.args, loss.kwargs, capture)
    for _, text in operator_arguments.found(call, loss=True):
        _warn_once(capture, call.name, f"{text} {DOUBT}")


def note(capture: Trace, name: str, node: fx.Node, kinds: Collection[str]) -> None:
    """Remember a call of which `kinds` do not compile, unless it is computed while compiling.

    One that PyTorch 2.0 cannot even trace is refused at once.
    """
    for kind in sorted(kinds):
        if kind in operator_table.UNTRACEABLE:
            part = "" if kind == operator_table.canonical(name) else f", part of {name}"
            _report(
                f"Type inference failed for aten::{kind}{part}, called {call_sites.here()}: it has no implementation "
                f"for tensors without values. {operator_table.instead(kind) or REMEDY}",
                Refusal.UNSUPPORTED_OPERATOR,
            )
        elif node.meta["varies"]:
            capture.unsupported.append(Use(kind, name, call_sites.here(), node))


def check(capture: Trace, live: Collection[fx.Node]) -> None:
    """Refuse a traced model that uses operators PopTorch does not compile; `live` nodes are those that are used."""
    capture.unsupported[:] = [use for use in capture.unsupported if use.node is None or use.node in live]
    first: Dict[str, str] = {}
    for use in capture.unsupported:
        part = "" if operator_table.canonical(use.name) == use.kind else f"part of {use.name}, "
        remedy = operator_table.instead(use.kind) or REMEDY
        first.setdefault(use.kind, f"{use.kind} is {part}used {use.place}. {remedy}")
    if first:
        kinds = ", ".join(f"aten::{kind}" for kind in sorted(first))
        text = f"Unsupported ops found in compiled model: [{kinds}]. {' '.join(first.values())}"
        _report(text, Refusal.UNSUPPORTED_OPERATOR)


class _Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the kernels that PyTorch calls and that do not compile."""

    def __init__(self, kinds: Set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kinds = kinds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kernel = str(func.overloadpacket.__name__)
        if not operator_table.compiles(kernel):
            self._kinds.add(operator_table.refused(kernel) or operator_table.canonical(kernel))
        return func(*args, **(kwargs or {}))


def _report(problem: str, kind: Refusal) -> None:
    if strict():
        raise backend_error(f"{problem} ({SWITCH} or {STRICT_VARIABLE}=0 turns this into a warning.)", kind=kind)
    logger.warning("%s", problem)


def _warn_once(capture: Trace, name: str, text: str) -> None:
    if text not in capture.warned:
        capture.warned[text] = name
        logger.warning("%s (%s)", text, call_sites.here())
