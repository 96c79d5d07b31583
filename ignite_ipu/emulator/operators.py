"""Which operators a model may use: a table to query, and the check of a traced model against it.

An operator that is in no table counts by what PyTorch makes of it: it works when all the kernels that PyTorch calls for
it do. What does not work is refused when the model compiles. The one switch that turns this into a warning is
`set_strict(False)`, or `IGNITE_IPU_STRICT_OPERATORS=0` in the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, List, Mapping, Optional, Set, Tuple, Union

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ignite_ipu.emulator import operator_arguments, places
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.operator_table import (
    ADD_ON_LIBRARIES,
    DECOMPOSED,
    KERNELS,
    MODULES,
    MOVEMENT,
    TENSOR_OPERATORS,
)

if TYPE_CHECKING:
    from ignite_ipu.emulator.capture import Capture

STRICT_VARIABLE = "IGNITE_IPU_STRICT_OPERATORS"

_SWITCH = {"0": False, "1": True}
_strict: Optional[bool] = None

_PYTHON_OPERATORS = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "get": "getattr",
}
_DECORATIONS = ("torch.nn.functional.", "torch.nn.", "torch.Tensor.", "torch.", "Tensor.", "nn.", "aten::")
_WRITTEN_OUT = {"linalg.": "linalg_", "functional.": "", "distributions.": "", "utils.": "_"}


class Status(enum.Enum):
    """Why an operator works, or that it does not."""

    LISTED = "listed"
    """PopTorch's guide lists it."""
    MOVEMENT = "movement"
    """It moves, converts or describes data."""
    DECOMPOSED = "decomposed"
    """It is not listed, but PyTorch defines it through listed operators; using it is warned of."""
    COMPOSITE = "composite"
    """It is made of other operators, which are checked one by one when a model is traced."""
    UNSUPPORTED = "unsupported"
    """PopTorch does not compile it."""


@dataclasses.dataclass(frozen=True)
class Support:
    """What the table says of one operator.

    Attributes:
        name: As it was asked for.
        status: Whether and why it works.
        means: The listed operators it stands for or consists of; empty where that is itself, or unknown.
        restrictions: What of it does not work.
    """

    name: str
    status: Status
    means: str = ""
    restrictions: str = ""

    @property
    def works(self) -> bool:
        """Whether a model that uses it can compile; for a composite that depends on its parts."""
        return self.status is not Status.UNSUPPORTED


def support(operator: Union[str, Callable[..., Any], type]) -> Support:
    """Return what is known of an operator, function or module of PyTorch.

    Args:
        operator: The object itself, or a name such as `"torch.einsum"`, `"nn.Conv2d"` or `"aten::add_"`.
    """
    name = operator if isinstance(operator, str) else _name_of(operator)
    module = _undecorated(name)
    if module in _MODULES:
        return Support(name, Status.LISTED, "", operator_arguments.restrictions(_MODULES[module].split()))
    plain = canonical(module)
    restrictions = operator_arguments.restrictions([plain])
    status = _known(plain)
    if status is not None:
        return Support(name, status, DECOMPOSED.get(plain, KERNELS.get(plain, "")), restrictions)
    if _is_composite(plain) or _is_module(module) or _is_python_function(module, operator):
        return Support(name, Status.COMPOSITE, "", restrictions)
    return Support(name, Status.UNSUPPORTED)


def listed() -> Dict[str, Tuple[str, ...]]:
    """Return the names that PopTorch's guide lists, by group."""
    groups = {group: tuple(f"torch.{name}" for name in names) for group, names in TENSOR_OPERATORS.items()}
    groups.update({f"nn: {group}": tuple(f"torch.nn.{name}" for name in names) for group, names in MODULES.items()})
    groups.update({library: names for library, names in ADD_ON_LIBRARIES.items()})
    return groups


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


def canonical(name: str) -> str:
    """Return the name under which the tables know an operator: without the marks of in-place and Python operators."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name[:1] in "ri" and (name[1:] in _PYTHON_OPERATORS or name[1:] in _BINARY):
            name = ("r" if name == "rsub" else "") + name[1:]
        return _PYTHON_OPERATORS.get(name, name)
    return name[:-1] if name.endswith("_") and name != "_" else name


def observed(
    name: str, kernel: Callable[..., Any], primitives: Dict[str, Set[str]], used_at: Dict[str, str]
) -> ContextManager[Any]:
    """Return a context manager that adds the kernels PyTorch calls inside it to `primitives[name]`.

    `used_at[name]` becomes the place in the model that runs, if there is none yet.

    For an operator that the tables know, and for those of the emulator itself, it does nothing.
    """
    if (getattr(kernel, "__module__", None) or "").startswith("ignite_ipu."):
        return contextlib.nullcontext()
    if _known(canonical(name)) in (Status.LISTED, Status.MOVEMENT):
        return contextlib.nullcontext()
    if name not in used_at:
        used_at[name] = places.here()
    return _Observer(primitives.setdefault(name, set()))


def check_arguments(
    name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any], training: bool
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Refuse arguments with which a listed operator does not compile.

    Returns:
        The arguments as the device reads them.

    Raises:
        Error: There is such an argument, and `strict()` holds.
    """
    problem = operator_arguments.problem(canonical(name), args, kwargs)
    if problem is not None:
        _report(problem)
    return operator_arguments.as_read(canonical(name), args, kwargs, training)


def check(capture: Capture) -> None:
    """Refuse a traced model that uses operators PopTorch does not compile.

    Raises:
        Error: There are some, and `strict()` holds.
    """
    unsupported: Dict[str, str] = {}
    for name, kernels in sorted(capture.primitives.items()):
        for kernel in sorted(kernels):
            status = _known(canonical(kernel))
            if status is None:
                unsupported.setdefault(canonical(kernel), name)
            elif status is Status.DECOMPOSED:
                logger.warning(
                    "%s%s is not among the operators that PopTorch lists. PyTorch defines it through %s, which are.",
                    kernel,
                    "" if kernel == name else f" (of {name})",
                    DECOMPOSED[canonical(kernel)].replace(" ", ", "),
                )
    if not unsupported:
        return
    used = "; ".join(_use(kernel, name, capture.used_at[name]) for kernel, name in unsupported.items())
    _report(
        f"Unsupported ops found in compiled model: [{', '.join(f'aten::{kernel}' for kernel in unsupported)}]. {used}. "
        "Write them with operators that ignite_ipu.emulator.operators.listed() names."
    )


class _Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the kernels that PyTorch calls."""

    def __init__(self, seen: Set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        self._seen.add(str(func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))


def _report(problem: str) -> None:
    if strict():
        raise backend_error(
            f"{problem} (ignite_ipu.emulator.operators.set_strict(False) or {STRICT_VARIABLE}=0 turns this into a "
            "warning.)"
        )
    logger.warning("%s", problem)


def _known(plain: str) -> Optional[Status]:
    if plain in _LISTED:
        return Status.LISTED
    if plain in MOVEMENT:
        return Status.MOVEMENT
    return Status.DECOMPOSED if plain in DECOMPOSED else None


def _use(kernel: str, name: str, place: str) -> str:
    inside = f"{kernel} is used" if canonical(name) == kernel else f"{kernel} is part of {name}, used"
    return f"{inside} {place}"


def _undecorated(name: str) -> str:
    for decoration in _DECORATIONS:
        if name.startswith(decoration):
            name = name[len(decoration) :]
            break
    for prefix, inside in _WRITTEN_OUT.items():
        if name.startswith(prefix):
            return inside + name[len(prefix) :]
    return name


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


def _flat_modules() -> Dict[str, str]:
    modules = {name: recorded for group in MODULES.values() for name, recorded in group.items()}
    modules.update({name.split(".")[-1]: recorded for name, recorded in modules.items() if "." in name})
    return modules


def _listed_names() -> Set[str]:
    names: List[str] = list(KERNELS)
    for group in TENSOR_OPERATORS.values():
        for name in group:
            names.append(_undecorated(f"torch.{name}").split(".")[-1])
    for modules in MODULES.values():
        names += " ".join(modules.values()).split()
    return {canonical(name) for name in names}


_BINARY = {"add", "sub", "mul", "div", "pow", "matmul", "lshift", "rshift"}
_MODULES = _flat_modules()
_LISTED = _listed_names()
