"""All substitutes of a program together: started for a program that is run, or for the process that imports `auto`."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import traceback
from typing import TYPE_CHECKING, List, Optional

from ignite_ipu import backend
from ignite_ipu.capabilities.traced import NO_FUNCTION, OF_COMPILER
from ignite_ipu.errors import EarlyReadError, IPUOutOfMemoryError, RunError
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.refusal_frames import observe_refusals
from ignite_ipu.program.traced_places import function_at, kind_of, named_places, split_place
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.program import is_beside
from ignite_ipu.running.script_code import ScriptCode

if TYPE_CHECKING:
    from ignite_ipu.running.substitutes.parallel import Spawner

_ACTIVE: List[Substitutes] = []


def substitute(
    code: ScriptCode, folder: str, config: IPUConfig, late: bool = False, spawner: Optional[Spawner] = None
) -> Substitutes:
    """Substitute a program's calls of CUDA, PyTorch, Ignite and accelerate, until `undo` of the result.

    Args:
        code: The program.
        folder: Where its own modules lie.
        config: Settings of its trainers, accelerators and loops.
        late: Whether parts of the program have run: its modules may hold functions by name, and it may have optimizers.
        spawner: Starts processes that the program spawns; None where they substitute by themselves.

    Raises:
        BackendError: The PopTorch that is demanded does not import.
        RunError: The program has made an object that can no longer be substituted.
    """
    from ignite_ipu.running.substitutes.cuda import substitute_cuda
    from ignite_ipu.running.substitutes.devices import substitute_devices
    from ignite_ipu.running.substitutes.existing import existing_objects
    from ignite_ipu.running.substitutes.gradients import EngineWeights
    from ignite_ipu.running.substitutes.host_runs import substitute_averages, substitute_exports
    from ignite_ipu.running.substitutes.host_training import PlacedModels, refuse_host_training
    from ignite_ipu.running.substitutes.ignite_engines import substitute_ignite
    from ignite_ipu.running.substitutes.loops import substitute_loops
    from ignite_ipu.running.substitutes.parallel import substitute_parallel
    from ignite_ipu.running.substitutes.refusals import refuse_unmappable, substitute_precision

    # Logs which PopTorch it is, and fails now if it does not import.
    backend.poptorch()
    trained, placed = EngineWeights(), PlacedModels()
    substitutes = Substitutes(code)
    _ACTIVE.append(substitutes)
    substitutes.on_undo(observe_refusals(functools.partial(_remember, substitutes)))
    substitutes.on_undo(lambda: _ACTIVE.remove(substitutes))
    try:
        existing = existing_objects(substitutes) if late else None
        substitute_devices(substitutes, placed)
        substitute_cuda(substitutes)
        substitute_precision(substitutes)
        refuse_unmappable(substitutes)
        refuse_host_training(substitutes, placed)
        substitute_parallel(substitutes, spawner)
        substitute_exports(substitutes)
        substitute_averages(substitutes)
        substitute_ignite(substitutes, trained, config)
        # The program, or a package whose loops it runs, may import accelerate at any time.
        accelerates = not is_beside(folder, "accelerate") and importlib.util.find_spec("accelerate") is not None
        loops = substitute_loops(substitutes, trained, config, accelerates)
        if existing is not None:
            loops.adopt(existing)
            substitutes.set_held_names()
    except BaseException:
        substitutes.undo()
        raise
    return substitutes


def is_substituted() -> bool:
    """Return whether a program's calls are substituted in this process now."""
    return bool(_ACTIVE)


def active_substitutes() -> Substitutes:
    """Return the substitutes that were started last, and are at work in this process."""
    return _ACTIVE[-1]


def refusal_behind(error: BaseException, substitutes: Substitutes) -> Optional[RunError]:
    """Return the refusal that an error of a program stands for, None for an error of its own."""
    if isinstance(error, RunError) or not isinstance(error, Exception):
        return None
    if substitutes.refusals:
        return substitutes.refusals[0]
    if type(error).__module__.startswith(("ignite_ipu.", "poptorch")):
        return _with_line(error, substitutes.code)
    return None


def _remember(substitutes: Substitutes, error: Exception) -> None:
    """Remember the first error of a program's update, which then counts also if the program catches it.

    A program may go on without a value, with smaller batches, or after a fault of the device.
    """
    faults = backend.poptorch().RecoverableError, backend.poptorch().UnrecoverableError
    if not (substitutes.refusals or isinstance(error, (EarlyReadError, IPUOutOfMemoryError, *faults))):
        substitutes.remembered(error if isinstance(error, RunError) else _with_line(error, substitutes.code))


def _with_line(error: Exception, code: ScriptCode) -> RunError:
    """Return a refusal by this library or PopTorch, with the program's line.

    One of traced code by PopTorch's compiler has the sentence that `check` has for it, and PopTorch's own below.
    """
    passed = ((frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__))
    own = [place for place in passed if code.owns(place[0])]
    line = own[-1] if own else code.current_line()
    # PopTorch's begins with its own source.
    text, message = str(error), getattr(error, "message", str(error))
    restriction, named = OF_COMPILER.get(kind_of(error)), named_places(error)
    if restriction is not None:
        line = next((place for place in named if code.owns(place[0])), line)
        source = "" if line is None else linecache.getline(*line).strip()
        refusal = restriction.refusal((line and function_at(*line)) or NO_FUNCTION)
        return RunError(line, f"{refusal}\n    {source}\n    PopTorch: {message}")
    place, reason = split_place(message)
    if place is not None:
        return RunError(place, reason)
    return RunError(None if line in named else line, text)
