"""The user's code: whose a file is, at which line something was recorded, and which names are in code."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Folder of this library's files."""
_NAMING = frozenset([*dis.hasname, *dis.hasconst])

# Found, not imported: `ignite-ipu check` asks for owners, and imports no torch.
_TORCH = os.path.dirname(os.path.abspath(str(getattr(importlib.util.find_spec("torch"), "origin", "")))) + os.sep
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_PASSING_ON = ("accelerate", "ignite", "poptorch", "torch")
_LIBRARIES = tuple(f"{place}{name}{os.sep}" for place in _PACKAGES for name in _PASSING_ON)
_SHOW_VARIABLES = frozenset(("locals", "vars", "exec", "eval"))
_CALL = compile("function(*args, **kwargs)", "", "eval")


class Line(Tuple[CodeType, int]):
    """A line of code, as the code and the instruction's place in it.

    Its number is found when a message names it, for which Python searches the whole function.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "{}:{}".format(*self.place)

    @property
    def place(self) -> Tuple[str, int]:
        """The file, and the number of the line in it."""
        return self[0].co_filename, self._number()

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function as if it stood at this line, for compilers and tracebacks that name the line of a call."""
        here = _CALL.replace(co_filename=self[0].co_filename, co_name=self[0].co_name, co_firstlineno=self._number())
        # PyTorch imports by the built-in names of the calling code.
        known = {"function": function, "args": args, "kwargs": kwargs, "__builtins__": builtins}
        return FunctionType(here, known)()

    def _number(self) -> int:
        code, instruction = self
        number = code.co_firstlineno
        for start, line in dis.findlinestarts(code):
            if start <= instruction:
                number = line or number
        return number


def current_line(above: int = 0, inner: Optional[FrameType] = None) -> Line:
    """Return the line of the innermost frame that is neither Python's nor a library's; the outermost where none is.

    As many calls `above` as led here are known to be this library's, and need no look. With an `inner` frame, the
    search begins outside of that.
    """
    frame: FrameType = sys._getframe(above) if inner is None else inner
    outer: Optional[FrameType] = frame.f_back
    while outer is not None:
        frame = outer
        if _is_named(frame.f_code.co_filename):
            break
        outer = frame.f_back
    return Line((frame.f_code, frame.f_lasti))


def frame_outside(*files: str) -> Optional[FrameType]:
    """Return the innermost frame outside of some files and folders, None where there is none."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(files):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=None)
def _is_named(file: str) -> bool:
    """Return whether a file of code is the user's or another package's."""
    return owner_of(file) in (Owner.USER, Owner.INSTALLED)


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of running code, without making its frame keep values that it drops later.

    Before Python 3.13 none are returned for a function that may use `locals()`: reading them would overwrite its
    changes to that dictionary.
    """
    code = frame.f_code
    of_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    if of_function and sys.version_info < (3, 13) and _SHOW_VARIABLES & loaded_by(code, "LOAD_GLOBAL"):
        return {}
    variables = frame.f_locals
    if not of_function or not isinstance(variables, dict):
        return variables
    found = dict(variables)
    # Before Python 3.13 a function's frame keeps the dictionary that it was asked for until the function returns. It
    # is left as it is where a debugger writes from it. Functions that use `locals()` do not come here.
    if frame.f_trace is None:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
    return found


class Owner(enum.Enum):
    """Owner of a file of code."""

    LIBRARY = "this library, PyTorch, Ignite or accelerate, which pass on the user's calls"
    PYTHON = "Python's standard library"
    INSTALLED = "another installed package"
    USER = "the user; code without a file, as in a notebook, is the user's, too"


@functools.lru_cache(maxsize=None)
def owner_of(file: str) -> Owner:
    """Return whose a file of code is."""
    path = os.path.abspath(file)
    if file.startswith("<frozen") or path.startswith((OURS, _TORCH)) or any(name in path for name in _LIBRARIES):
        return Owner.LIBRARY
    if path.startswith(_INSTALLED) or any(name in path for name in _PACKAGES):
        return Owner.INSTALLED
    return Owner.PYTHON if path.startswith(_STANDARD) else Owner.USER


def is_users_file(file: str) -> bool:
    """Return whether a file of code is the user's own; code without a file, as in a notebook, is, too."""
    return owner_of(file) is Owner.USER


def found_instead(package: str) -> Optional[str]:
    """Return the user's own file that Python imports under the name of a package; None when there is none."""
    module = sys.modules.get(package)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(package)
    file = None if spec is None else spec.origin
    return file if file is not None and is_users_file(file) else None


def _folders(*found: str) -> Tuple[str, ...]:
    return tuple(os.path.abspath(folder) + os.sep for folder in found)


_PATHS = sysconfig.get_paths()
_INSTALLED = _folders(_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages())
# In a virtual environment the standard library is elsewhere.
_STANDARD = _folders(_PATHS["stdlib"], _PATHS["platstdlib"], os.path.dirname(os.__file__))


@functools.lru_cache(maxsize=4096)
def read_by(code: CodeType) -> FrozenSet[str]:
    """Return the names in code that it does not only assign to, and texts, which may be some; inner functions' too."""
    found = _names_of_operations(code).items()
    return frozenset().union(*[names for operation, names in found if not operation.startswith("STORE_")])


@functools.lru_cache(maxsize=4096)
def loaded_by(code: CodeType, *operations: str) -> FrozenSet[str]:
    """Return the names that some operations in code have, those of the functions within it included."""
    found = _names_of_operations(code)
    return frozenset().union(*[found.get(operation, ()) for operation in operations])


@functools.lru_cache(maxsize=4096)
def _names_of_operations(code: CodeType) -> Mapping[str, FrozenSet[str]]:
    """Return the names and texts in code by the operations that have them, those of inner functions included."""
    found: Dict[str, Set[str]] = {}
    for each in dis.get_instructions(code):
        if each.opcode in _NAMING and isinstance(each.argval, str):
            found.setdefault(each.opname, set()).add(each.argval)
    for inner in codes_in(code):
        for operation, names in _names_of_operations(inner).items():
            found.setdefault(operation, set()).update(names)
    return {operation: frozenset(names) for operation, names in found.items()}


def codes_in(code: CodeType) -> List[CodeType]:
    """Return the codes of the functions within code."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
