"""Making `import poptorch` mean the emulator, in this process and the ones it starts by `multiprocessing`.

The package that stands in for PopTorch is a real one, with its distribution's metadata beside it, in a directory that
`install` puts on `sys.path`. So everything that looks for modules and distributions finds it the ordinary way. The
packages that PopTorch programs import beside it have a directory each.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import os
import runpy
import sys
import threading
from typing import Any, Dict, List, Sequence

from ignite_ipu.emulator import logs

STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standin")
_NAME = "poptorch"
_OTHERS = ("popart", "popdist", "horovod")


class Installation(contextlib.ExitStack):
    """The emulator installed under PopTorch's name, until `undo` or the end of a `with` block."""

    def undo(self) -> None:
        """Take the name back, unless another installation is still in force; a second call does nothing."""
        with _LOCK:
            self.close()


def install(import_effects: bool = False) -> Installation:
    """Make `import poptorch` and its sub-modules give the emulator.

    The packages that PopTorch programs import beside it are there too, each unless it is installed: `popart` with the
    enumerations whose values `Options._Popart.set` takes, `popdist`, and `horovod.torch` for host tensors.

    Args:
        import_effects: Have the side effects of importing PopTorch that have a meaning here: set
            RDMAV_FORK_SAFE=1 unless it is set, enable `faulthandler`, and log uncaught exceptions at critical level.

    Returns: An object that undoes it; usable in a `with` statement. Installations may overlap, the last one undone
        counts.

    Raises:
        RuntimeError: There is a real PopTorch, or something else of that name.
    """
    with _LOCK:
        _refuse_to_shadow()
        installation = Installation()
        installation.callback(_leave, installation)
        _ACTIVE.append(installation)
        added = [path for path in stand_ins() if path not in sys.path]
        sys.path += added
        _ADDED.extend(added)
        importlib.invalidate_caches()
        if import_effects:
            _take_effect(installation)
    return installation


def run_script(path: str, argv: Sequence[str] = ()) -> Dict[str, Any]:
    """Run a PopTorch program on the emulator, as `python path *argv` would on a machine with the SDK.

    Returns:
        The program's global variables.

    Raises:
        RuntimeError: There is a real PopTorch.
        SystemExit: The program exits so.
    """
    with install(import_effects=True):
        arguments, paths, environment = sys.argv, list(sys.path), os.environ.get("PYTHONPATH")
        sys.argv = [path, *argv]
        sys.path[0] = os.path.dirname(os.path.abspath(path))
        # Python programs that the program starts are PopTorch programs too.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [environment, *stand_ins()]))
        try:
            return runpy.run_path(path, run_name="__main__")
        finally:
            sys.argv, sys.path[:] = arguments, paths
            os.environ.pop("PYTHONPATH", None)
            if environment is not None:
                os.environ["PYTHONPATH"] = environment


def stand_ins() -> List[str]:
    """Return the directories to be put on `sys.path` so that `import poptorch` and its companions work here.

    There is one for each package that is not there, or that is a stand-in already.
    """
    places = {name: _place(name) for name in (_NAME, *_OTHERS)}
    return [_directory(name) for name, place in places.items() if not place or _lies_in_the_stand_in(place)]


def _directory(package: str) -> str:
    return os.path.join(STAND_INS, package)


def _place(package: str) -> str:
    """Return the place of a package that can be imported, "" for one that cannot."""
    present = sys.modules.get(package)
    if present is not None:
        return getattr(present, "__file__", None) or repr(present)
    spec = importlib.util.find_spec(package)
    # A directory without __init__.py that happens to have the name is no package, and is not in the way.
    return "" if spec is None or spec.origin is None else spec.origin


def _refuse_to_shadow() -> None:
    place = _place(_NAME)
    if place and not _lies_in_the_stand_in(place):
        raise RuntimeError(
            f"There is a module {_NAME} already ({place}), and the emulator does not take its place. Use "
            "`import ignite_ipu.emulator as poptorch`, or an environment without Graphcore's PopTorch."
        )


def _lies_in_the_stand_in(file: object) -> bool:
    return isinstance(file, str) and os.path.abspath(file).startswith(STAND_INS + os.sep)


def _leave(installation: Installation) -> None:
    with _LOCK:
        _ACTIVE.remove(installation)
        if _ACTIVE:
            return
        # Those of a process that PopRun has started were there before.
        packages = [os.path.basename(directory) for directory in _ADDED]
        for directory in _ADDED:
            with contextlib.suppress(ValueError):
                sys.path.remove(directory)
        _ADDED.clear()
        for name, module in sys.modules.copy().items():
            is_added = name.split(".")[0] in packages
            if is_added and _lies_in_the_stand_in(getattr(module, "__file__", None)):
                del sys.modules[name]
        importlib.invalidate_caches()


def _take_effect(restore: contextlib.ExitStack) -> None:
    if "RDMAV_FORK_SAFE" not in os.environ:
        os.environ["RDMAV_FORK_SAFE"] = "1"
        restore.callback(os.environ.pop, "RDMAV_FORK_SAFE", None)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be no file, as in a notebook
        if not faulthandler.is_enabled():
            faulthandler.enable()
            restore.callback(faulthandler.disable)
    before = sys.excepthook
    sys.excepthook = logs.log_uncaught

    @restore.callback
    def put_back() -> None:
        if sys.excepthook is logs.log_uncaught:
            sys.excepthook = before


_LOCK = threading.RLock()
_ACTIVE: List[Installation] = []
_ADDED: List[str] = []  # directories on `sys.path`
