"""The PopTorch that is in use: the Poplar SDK's, or the emulator that ships with this package.

Everything else asks `poptorch()` for the module and uses only names that PopTorch 3.3 has. The choice is made at the
first use, never at import, and one log line reports it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, ContextManager, List, Optional, cast

from ignite_ipu.errors import BackendError, logger

if TYPE_CHECKING:
    from ignite_ipu.poptorch_types import PopTorch

VARIABLE = "IGNITE_IPU_BACKEND"
_CHOICES = ("emulator", "sdk", "native")

_EMULATOR = "ignite_ipu.emulator"


def choice() -> Optional[str]:
    """Return the backend of `IGNITE_IPU_BACKEND`; None chooses by the installed packages.

    `native` means that a program runs as it was written, without any IPU; it concerns the tools that move programs.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if not value:
        return None
    if value not in _CHOICES:
        raise ValueError(
            f"{VARIABLE}={value!r} names no backend: set it to one of {', '.join(_CHOICES)}, or unset it to use the "
            "Poplar SDK where it is installed and the emulator elsewhere."
        )
    return value


def poptorch() -> PopTorch:
    """Return the PopTorch module in use.

    Raises:
        BackendError: The SDK is demanded or installed and does not import, or the native backend is chosen, which has
            no PopTorch.
        ValueError: `IGNITE_IPU_BACKEND` holds an unknown value.
    """
    return cast("PopTorch", _load(choice()))


def name() -> str:
    """Return `"sdk"` or `"emulator"`."""
    return "emulator" if is_emulator() else "sdk"


def is_emulator() -> bool:
    """Return whether `poptorch()` is the emulator."""
    return _is_emulator(_load(choice()))


def installed() -> ContextManager[Any]:
    """Return a context in which `import poptorch` gives `poptorch()`, in this process and those it starts."""
    if not is_emulator():
        return contextlib.nullcontext()
    context: ContextManager[Any] = importlib.import_module(f"{_EMULATOR}.installation").install(import_effects=True)
    return context


def import_paths() -> List[str]:
    """Return directories for `sys.path` with which programs for the SDK import the emulator; none with an SDK."""
    if choice() not in (None, "emulator"):
        return []
    return list(importlib.import_module(f"{_EMULATOR}.installation").stand_ins())


def instance_options(alone: bool = False) -> Any:
    """Return options for a process that PopRun has started.

    Args:
        alone: Whether they are for a program of this process alone, and not for one that all processes train together.
    """
    module = "popdist" if not is_emulator() else f"{_EMULATOR}.popdist"
    if not alone:
        if not is_emulator():
            importlib.import_module("popdist").init()
        where = "poptorch" if not is_emulator() else "options"
        return importlib.import_module(f"{module}.{where}").Options()
    instances = importlib.import_module(module if not is_emulator() else f"{module}.instances")
    options = poptorch().Options()
    options.Distributed.disable()
    options.replicationFactor(instances.getNumLocalReplicas())
    if not is_emulator():
        options.useIpuId(instances.getDeviceId())
    return options


def compile_steps() -> None:
    """Have the emulator compile programs by torch.compile's back end; on IPUs they always are compiled.

    Raises:
        Error: There is no C++ compiler.
    """
    if is_emulator():
        importlib.import_module(_EMULATOR).compile_steps()


@functools.lru_cache(maxsize=None)
def _load(chosen: Optional[str]) -> ModuleType:
    if chosen == "native":
        raise BackendError(
            f"{VARIABLE}=native runs a program as it was written, without an IPU, so there is no PopTorch to create an "
            "IPU trainer or evaluator with. Unset the variable, or set it to emulator or sdk."
        )
    if chosen == "emulator":
        logger.info("Running on the emulator of PopTorch, as %s=emulator demands; its timings say nothing.", VARIABLE)
        return importlib.import_module(_EMULATOR)
    module = _sdk(demanded=chosen == "sdk")
    if module is not None:
        logger.info("Running on IPUs through PopTorch %s.", getattr(module, "__version__", "(unknown version)"))
        return module
    # A warning, so that it is visible without any set-up of logging.
    logger.warning("No Poplar SDK is installed: running on the emulator of PopTorch, on this machine's CPU.")
    return importlib.import_module(_EMULATOR)


def _sdk(demanded: bool) -> Optional[ModuleType]:
    """Import the SDK's PopTorch; None when there is none and none is demanded."""
    present = sys.modules.get("poptorch")
    if present is not None and _is_emulator(present):
        if demanded:
            raise BackendError(
                f"{VARIABLE}=sdk demands the Poplar SDK's PopTorch, but the emulator has been installed under the name "
                "poptorch in this process. Remove the call of ignite_ipu.emulator.install(), or unset the variable."
            )
        return None
    try:
        module = importlib.import_module("poptorch")
        # A launcher may have put the emulator on the path under that name.
        return None if not demanded and _is_emulator(module) else module
    except ModuleNotFoundError as error:
        if error.name == "poptorch":
            if not demanded:
                return None
            raise BackendError(
                f"{VARIABLE}=sdk demands the Poplar SDK's PopTorch, and no module named poptorch is installed. Enable "
                "the SDK and install its poptorch wheel into this environment, or unset the variable to run on the "
                "emulator."
            ) from error
        raise _broken(error) from error
    except Exception as error:
        raise _broken(error) from error


def _broken(error: Exception) -> BackendError:
    # Going on with the emulator here would turn a broken IPU installation into a silent run on the CPU.
    return BackendError(
        f"PopTorch is installed but does not import: {type(error).__name__}: {error} "
        "Repair the installation (is the SDK's enable.sh sourced, and is torch the version this PopTorch was built "
        f"for?), or set {VARIABLE}=emulator to run without IPUs."
    )


def _is_emulator(module: ModuleType) -> bool:
    # Under the name poptorch, where ignite_ipu.emulator.install() has put it, it says whose it is.
    return module.__name__ == _EMULATOR or getattr(module, "_implemented_by", None) == _EMULATOR
