"""Attributes replaced for a while, and restored in the opposite order; some for the calls of a script alone."""

from __future__ import annotations

import contextlib
import functools
import linecache
import logging
import sys
from types import FrameType, ModuleType
from typing import AbstractSet, Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ignite_ipu.cli.terminal import LineHandler
from ignite_ipu.errors import RunError
from ignite_ipu.program.user_code import Owner, owner_of
from ignite_ipu.running.script_code import FileLine, ScriptCode, Substitution
from ignite_ipu.torch_names.dispatch import operators_of_scripts

_logger = logging.getLogger("ignite_ipu.running")


@contextlib.contextmanager
def list_substitutions() -> Iterator[None]:
    """Write substitutions to standard error in the `with` block, as they are made."""
    handler, level, propagate = LineHandler(sys.stderr), _logger.level, _logger.propagate
    handler.setFormatter(logging.Formatter("ignite-ipu: %(message)s"))
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
    try:
        yield
    finally:
        _logger.removeHandler(handler)
        _logger.setLevel(level)
        _logger.propagate = propagate


def lists_substitutions() -> bool:
    """Return whether `list_substitutions` is at work."""
    return any(isinstance(handler, LineHandler) for handler in _logger.handlers)


class Patches:
    """Replaces attributes until `undo`."""

    def __init__(self) -> None:
        self._restore: List[Callable[[], None]] = []
        # Replacements of module attributes, by `id` of the original, which is kept with it.
        self._of_modules: Dict[int, Tuple[Any, Any]] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class, also one that it inherits."""
        if isinstance(owner, ModuleType):
            before = getattr(owner, name)
            self._of_modules[id(before)] = before, value
        _stand_in_scripts(getattr(owner, name), value, self._restore)
        own = getattr(owner, "__dict__", {})
        if name in own:  # of a class, the entry and not the value: a static method is restored as one
            restore = functools.partial(setattr, owner, name, own[name])
        else:
            restore = functools.partial(delattr, owner, name)
        setattr(owner, name, value)
        self._restore.append(restore)

    def set_everywhere(self, package: str, original: Any, value: Any) -> None:
        """Replace an object under every name that it has in loaded modules of a package."""
        # A copy in one step: another thread, or a finalizer, may import modules.
        for module_name, module in sys.modules.copy().items():
            if module_name == package or module_name.startswith(package + "."):
                for name in _named(module, {id(original)}):
                    self.set(module, name, value)

    def set_held_names(self) -> None:
        """Replace the replaced objects also under the names by which other modules imported them before."""
        replaced = self._of_modules.copy()
        for module in list(sys.modules.copy().values()):
            found = _named(module, replaced.keys())
            if found and owner_of(getattr(module, "__file__", None) or "<none>") in (Owner.USER, Owner.INSTALLED):
                for name, original in found.items():
                    self.set(module, name, replaced[id(original)][1])

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call something when the attributes are restored, before those that were replaced earlier."""
        self._restore.append(action)

    def undo(self) -> None:
        """Restore everything, also after errors on the way.

        Raises:
            BaseException: The first that an action raised, or a signal handler during one, after all the others ran.
        """
        failures: List[BaseException] = []
        while self._restore:
            try:
                self._restore.pop()()
            except BaseException as error:
                failures.append(error)
        if failures:
            raise failures[0]


def _named(module: Any, ids: AbstractSet[int]) -> Dict[str, Any]:
    """Return those of some objects, by their ids, that a module has names for: few modules have any."""
    names = dict(getattr(module, "__dict__", None) or {})  # `sys.modules` may hold None
    if ids.isdisjoint(map(id, names.values())):
        return {}
    return {name: each for name, each in names.items() if id(each) in ids}


def _stand_in_scripts(original: Any, value: Any, restore: List[Callable[[], None]]) -> None:
    """Let TorchScript compile calls of a substitute for one of its operators as calls of that operator.

    It knows operators by the identity of PyTorch's functions. Without its table, code that calls a substitute cannot be
    compiled.
    """
    table = operators_of_scripts()
    operator = table.get(id(original))
    if operator is not None:
        table[id(value)] = operator

        def forget() -> None:
            del table[id(value)]

        restore.append(forget)


class Substitutes(Patches):
    """Substitutes for calls of a script, until `undo`, in their order, and refusals.

    Both are of the script's current line, unless another one is given.

    Attributes:
        settings_are_used: Whether something was made by the settings, which cannot be changed from then on.
    """

    def __init__(self, code: ScriptCode) -> None:
        super().__init__()
        self.code = code
        self.substitutions: List[Substitution] = []
        self.refusals: List[RunError] = []
        self.settings_are_used = False
        self._known: Set[Tuple[FileLine, str, str]] = set()

    def use_settings(self) -> None:
        """Note that a model was captured or an engine made, by the settings that there are."""
        self.settings_are_used = True

    def note(self, original: str, became: str, line: Optional[FileLine] = None) -> None:
        """Log a substitution, unless it was made at this line before."""
        place = line or self.code.current_line() or ("<unknown>", 0)
        if (place, original, became) not in self._known:
            self._known.add((place, original, became))
            self.substitutions.append(Substitution(*place, original, became))
            _logger.info("%s", self.substitutions[-1])

    def refusal(self, what: str, reason: str, line: Optional[FileLine] = None) -> RunError:
        """Return the error for something that cannot be mapped.

        It is remembered, so that a script which catches every exception does not go on as if nothing had happened.
        """
        line = line or self.code.current_line()
        text = "" if line is None else linecache.getline(*line).strip()
        return self.remembered(
            RunError(line, f"{what} cannot be mapped to IPUs: {reason}" + (f"\n    {text}" if text else ""))
        )

    def remembered(self, refusal: RunError) -> RunError:
        """Return a refusal that counts also if the script catches every exception."""
        self.refusals.append(refusal)
        return refusal

    def calls(self, owner: Any, name: str, call: Callable[..., Any], *first: Any) -> None:
        """Let `call(*first, caller's frame, original, *args, **kwargs)` answer all calls."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def substitute(*args: Any, **kwargs: Any) -> Any:
            return call(*first, sys._getframe(1), original, *args, **kwargs)

        self.set(owner, name, substitute)

    def own_calls(self, owner: Any, name: str, call: Callable[..., Any], packages: bool = True) -> None:
        """Let `call(caller's line, original, *args, **kwargs)` answer the script's own calls, and those of packages."""
        self.set(owner, name, self.of_own_calls(getattr(owner, name), call, packages))

    def of_own_calls(
        self, original: Callable[..., Any], call: Callable[..., Any], packages: bool = True
    ) -> Callable[..., Any]:
        """Return the function for `own_calls`."""

        @functools.wraps(original)
        def substitute(*args: Any, **kwargs: Any) -> Any:
            line = self.code.line_of(sys._getframe(1), packages)
            return original(*args, **kwargs) if line is None else call(line, original, *args, **kwargs)

        return substitute

    def answer(self, owner: Any, name: str, text: str, answer: Any = None) -> None:
        """Answer calls from the script's own lines with a value; None leaves them out, also those of packages."""

        def answered(line: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(text, "left out" if answer is None else repr(answer), line)
            return answer

        self.own_calls(owner, name, answered, packages=answer is None)

    def refuse(self, owner: Any, name: str, text: str, reason: str, packages: bool = False) -> None:
        """Refuse calls from the script's own lines, and on request those of packages."""

        def refused(line: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
            raise self.refusal(text, reason, line)

        self.own_calls(owner, name, refused, packages)

    def maps(self, frame: Optional[FrameType], text: str, became: str, of_libraries: bool = False) -> bool:
        """Return whether a call is the script's, passed on for it, or of any library; record its substitution if so."""
        line, own = self.code.line_behind(frame)
        if own or of_libraries:
            self.note(text, became, line)
        return own or of_libraries
