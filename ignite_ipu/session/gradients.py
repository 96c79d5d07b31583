"""Search of running code for reads of gradients, for which a training program brings them back.

Anchors are compiled in. So a program has the gradients of all its trained parameters or none, and who reads them after
the update has to be known before it.
"""

from __future__ import annotations

import dis
import functools
import linecache
import sys
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, Container, Iterable, List, Mapping, Optional, Set, Tuple

import torch
from ignite.engine import Engine

from ignite_ipu.errors import logger
from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.user_code import Line, Owner, owner_of, read_by, variables_of
from ignite_ipu.torch_names.engines import event_handlers_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
# Modules with functions named `grad`, and functions that clear a gradient without reading it.
_MODULES = ("autograd", "func", "torch", "functorch")
_CLEARING = ("zero_", "detach_", "requires_grad_")
# Names by which code reads attributes that it does not name.
_LISTING = ("vars", "__dict__", "getmembers")


def log_cost(reader: str, parameters: Iterable[torch.Tensor]) -> None:
    """Log that a step is compiled with its gradients, with the reader and the cost."""
    with DisableTorchFunctionSubclass():
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    logger.warning(
        "Gradients are used at %s, so the training step is compiled with them: each update returns %.1f kB more, as "
        "many bytes as the trained weights have, also if they are not read.",
        reader,
        size / 1e3,
    )


def gradient_reader(engines: Iterable[Engine] = ()) -> Optional[str]:
    """Return where running code, or code that it can reach by names, reads the gradients of parameters.

    Searched are the user's functions on the stack, the functions that they name, and the class of a library's loop on
    the stack. So are the handlers of the given engines, and of the engines on the stack.
    """
    parts, codes = _running_code(sys._getframe(1), engines)
    search = Named(parts, until=lambda code: _reading_line(code) is not None)
    named = [function.__code__ for function in search.functions]
    found = (_reading_line(code) for code in (*named, *codes))
    return next((str(line) for line in found if line is not None), None)


class WordsRead(Container[str]):
    """The names in the code that `gradient_reader` looks through, in a call of the user's code that is running.

    The search takes longer than a small call, so the first question begins it. All names are in it if the user's code
    lists attributes.
    """

    def __contains__(self, name: object) -> bool:
        users, libraries = self._words
        return name in users or name in libraries or not users.isdisjoint(_LISTING)

    @functools.cached_property
    def _words(self) -> Tuple[Set[str], Set[str]]:
        parts, codes = _running_code(sys._getframe(1))
        # Nothing after code that lists attributes counts: all names are in it then.
        users = Named(parts, until=lambda code: not read_by(code).isdisjoint(_LISTING)).names
        return users, set().union(*map(read_by, codes))


def _running_code(
    frame: Optional[FrameType], engines: Iterable[Engine] = ()
) -> Tuple[List[Tuple[str, Any]], List[CodeType]]:
    """Return the frames that lead to the running code of the user, and that of a library."""
    parts: List[Tuple[str, Any]] = []
    codes: List[CodeType] = []
    handlers = [handler for engine in engines for handler in _handlers_of(engine)]
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        variables = variables_of(frame)
        own = variables.get("self")
        if owner is Owner.USER and linecache.getlines(frame.f_code.co_filename, frame.f_globals):
            parts.append(("", _function_of(frame, variables)))
            if variables is not frame.f_globals:
                parts.append(("", list(variables.values())))
        elif owner is Owner.INSTALLED:
            codes += [frame.f_code, *_methods(own)]
        elif isinstance(own, Engine):
            handlers += _handlers_of(own)
        frame = frame.f_back
    for handler in handlers:
        # Ignite wraps a handler for `every=...`, and `Engine.on` wraps a method.
        handler = getattr(handler, "__wrapped__", handler)
        code = getattr(handler, "__code__", None)
        codes += [code] if code is not None else _methods(handler)
        parts.append(("", handler))
    return parts, codes


def _handlers_of(engine: Engine) -> List[Any]:
    return [handler for entries in event_handlers_of(engine).values() for handler, *_ in entries]


def _methods(value: Any) -> List[CodeType]:
    functions = [member for base in type(value).__mro__ for member in vars(base).values()]
    return [function.__code__ for function in functions if isinstance(function, FunctionType)]


def _function_of(frame: FrameType, variables: Mapping[str, Any]) -> FunctionType:
    """Return a function with the code and the variables of a frame."""
    cells = tuple(CellType(variables.get(name)) for name in frame.f_code.co_freevars)
    return FunctionType(frame.f_code, frame.f_globals, closure=cells)


@functools.lru_cache(maxsize=4096)
def _reading_line(code: CodeType) -> Optional[Line]:
    """Return the line at which code loads the attribute `grad` of something to use its values."""
    if "grad" in code.co_names:
        instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
        for before, each, after in zip(instructions, instructions[1:], instructions[2:]):
            loads = each.opname in _LOADS and each.argval == "grad" and before.argval not in _MODULES
            asks = "NONE" in after.opname or (after.opname == "LOAD_CONST" and after.argval is None)
            if loads and not asks and after.argval not in _CLEARING:
                return Line((code, each.offset))
    elif "grad" in code.co_consts and "getattr" in code.co_names:
        return Line((code, 0))
    inner = (_reading_line(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return next((line for line in inner if line is not None), None)
