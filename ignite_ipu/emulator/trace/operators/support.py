"""Operators that a model may use: a table to query, and the check of a traced model against it.

An operator that is not in the table counts by what PyTorch makes of it: it works when all the kernels that PyTorch
calls for it do. What does not work is refused when the model compiles. The one switch that turns this into a warning is
`set_strict(False)`, or `IGNITE_IPU_STRICT_OPERATORS=0` in the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
from typing import Any, Callable, Collection, ContextManager, Dict, Mapping, Optional, Set, Tuple, Union

import torch
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


class Status(enum.Enum):
    """Verdict on an operator."""

    COMPILES = "compiles"
    """The table has it."""
    COMPOSITE = "composite"
    """It is made of other operators, which are checked one by one when a model is traced."""
    UNSUPPORTED = "unsupported"
    """PopTorch does not compile it."""


@dataclasses.dataclass(frozen=True)
class Support:
    """Entry of one operator.

    Attributes:
        name: As it was asked for.
        status: Whether it works.
        part: The kind that it is made of and that does not compile; empty where it works, or is itself that kind.
        restrictions: What of it does not work.
    """

    name: str
    status: Status
    part: str = ""
    restrictions: str = ""

    @property
    def works(self) -> bool:
        """True if a model that uses it can compile; for a composite that depends on its parts."""
        return self.status is not Status.UNSUPPORTED


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


def support(operator: Union[str, Callable[..., Any], type]) -> Support:
    """Return what is known of an operator, function or module of PyTorch.

    Args:
        operator: The object itself, or a name such as `"torch.einsum"`, `"nn.Conv2d"` or `"aten::add_"`.
    """
    name = operator if isinstance(operator, str) else _name_of(operator)
    plain = operator_table.undecorated(name)
    if _is_module(plain):
        layer = f"torch.nn.{plain}"
        if layer in operator_table.LAYERS:
            return Support(name, Status.UNSUPPORTED, operator_table.LAYERS[layer])
        return Support(name, Status.COMPILES, "", _said(operator_table.restrictions_of(layer)))
    kind = operator_table.refused(plain)
    if kind is not None:
        return Support(name, Status.UNSUPPORTED, "" if kind == operator_table.canonical(plain) else kind)
    restrictions = _said(operator_table.restricted(plain))
    if operator_table.compiles(plain):
        return Support(name, Status.COMPILES, "", restrictions)
    if _is_composite(operator_table.canonical(plain)) or _is_python_function(plain, operator):
        return Support(name, Status.COMPOSITE, "", restrictions)
    return Support(name, Status.UNSUPPORTED)


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
    """Refuse arguments with which an operator does not compile, and warn of those with which it is likely not to.

    Returns:
        The arguments as the device reads them.

    Raises:
        Error: There is such an argument, and `strict()` holds.
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
            _doubt(capture, name, text)
    return args, kwargs


def check_write(capture: Trace, tensor: Any, *values: Any) -> None:
    """Refuse a write in place through a view, and warn of it, as of an assignment to all of the view.

    Raises:
        Error: The view has a step, and `strict()` holds.
    """
    if operator_arguments.views(tensor):
        check_arguments(capture, "__setitem__", (tensor, (), values), {})


def check_loss(capture: Trace, loss: fx.Node) -> None:
    """Warn of a loss whose gradient is likely to be another than PyTorch's."""
    call = operator_arguments.Call(str(loss.meta.get("operator")), loss.args, loss.kwargs, capture)
    for _, text in operator_arguments.found(call, loss=True):
        _doubt(capture, call.name, text)


def note(capture: Trace, name: str, node: fx.Node, kinds: Collection[str]) -> None:
    """Remember a call of which `kinds` do not compile, unless it is computed while compiling.

    Raises:
        Error: PyTorch 2.0 cannot even trace one, and `strict()` holds.
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
    """Refuse a traced model that uses operators PopTorch does not compile.

    Args:
        live: The nodes whose results are used.

    Raises:
        Error: There are some, and `strict()` holds.
    """
    capture.unsupported[:] = [use for use in capture.unsupported if use.node is None or use.node in live]
    first: Dict[str, Use] = {}
    for use in capture.unsupported:
        first.setdefault(use.kind, use)
    if not first:
        return
    kinds = ", ".join(f"aten::{kind}" for kind in sorted(first))
    uses = " ".join(f"{_described(use)}. {operator_table.instead(use.kind) or REMEDY}" for use in first.values())
    _report(f"Unsupported ops found in compiled model: [{kinds}]. {uses}", Refusal.UNSUPPORTED_OPERATOR)


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


def _doubt(capture: Trace, name: str, text: str) -> None:
    _warn_once(capture, name, f"{text} {DOUBT}")


def _warn_once(capture: Trace, name: str, text: str) -> None:
    if text not in capture.warned:
        capture.warned[text] = name
        logger.warning("%s (%s)", text, call_sites.here())


def _described(use: Use) -> str:
    itself = operator_table.canonical(use.name) == use.kind
    return f"{use.kind} is used {use.place}" if itself else f"{use.kind} is part of {use.name}, used {use.place}"


def _said(restrictions: Any) -> str:
    return "; ".join(dict.fromkeys(each.says for each in restrictions))


def _name_of(operator: Any) -> str:
    name = getattr(operator, "__name__", None)
    if name is None:
        raise TypeError(f"Expected the name of an operator, a function or a module class of PyTorch, got {operator!r}.")
    return str(name)


def _is_composite(plain: str) -> bool:
    packet = getattr(torch.ops.aten, plain, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    (first, *_) = packet.overloads()  # type: ignore[no-untyped-call]
    schema = getattr(packet, first)._schema
    full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    # Some operators are TorchScript's alone, such as aten::cuda, and unknown to the dispatcher.
    if not torch._C._dispatch_has_kernel(full):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"))


def _is_module(name: str) -> bool:
    found = getattr(torch.nn, name, None)
    return isinstance(found, type) and issubclass(found, torch.nn.Module)


def _is_python_function(name: str, operator: Any) -> bool:
    for place in (torch.nn.functional, torch.functional, torch):
        found = getattr(place, name, None) if operator is None or isinstance(operator, str) else operator
        if found is not None and hasattr(found, "__code__"):
            return True
    return False
