"""`RecompileWatch`: logs the change, its time and its line, whenever a program is compiled once more."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ignite.engine import Engine

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_states import Wrapped
from ignite_ipu.session.session import IPUSession, session_of
from ignite_ipu.torch_names.modules import PARAMETERS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

__all__ = ["Recompilation", "RecompileWatch"]

_PLAIN = (bool, int, float, str, list, tuple, dict)


class Recompilation(NamedTuple):
    """One compilation after the first.

    Attributes:
        program: `training`, `evaluation`, or the name given to a watched executor.
        iteration: Calls of the program, or iterations of the watched engine, before it.
        before: The same count at the compilation before.
        changes: The differences, one sentence each; empty if only the program had been released.
        line: Where in the user's code the call was made, as `file:number`.
    """

    program: str
    iteration: int
    before: int
    changes: List[str]
    line: str

    def __str__(self) -> str:
        why = "; ".join(self.changes) or "nothing has changed, but its program had been given back"
        return (
            f"The {self.program} program is compiled again at iteration {self.iteration}, since its compilation at "
            f"iteration {self.before}: {why}. Called from {self.line}."
        )


_Seen = Tuple[int, Dict[str, str]]  # the iteration of a compilation, and its facts


class RecompileWatch:
    """Explains compilations, which can take minutes each, by comparing with the one before.

    It logs a warning for every compilation of a program after its first, and keeps them in `found`. It compares the
    shapes and types of the batch, the values that were frozen into the program, and the options. It also compares the
    trained parameters, the modes of modules, and the constants of the optimizer. Python values and buffers that the
    program has as constants are named as in the log.

    For engines of this library::

        RecompileWatch().attach(trainer)

    For a PopTorch executor of your own, call the wrapper that `watch` returns in its place::

        training_model = RecompileWatch().watch(poptorch.trainingModel(model, options, optimizer))

    Attributes:
        found: The compilations after the first of each program.
    """

    def __init__(self) -> None:
        self.found: List[Recompilation] = []
        self._seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()

    def attach(self, engine: Engine) -> None:
        """Watch all programs of this engine's session.

        Raises:
            SessionError: The engine is none of this library.
        """
        session = session_of(engine)
        if session is None:
            raise SessionError(
                "RecompileWatch.attach needs an engine of this library; use watch() for an executor of your own."
            )
        engine.add_event_handler(IPUEvents.COMPILE_STARTED, self._compiling, session)

    def watch(self, executor: Any, name: str = "watched") -> WatchedExecutor:
        """Return a stand-in for an executor that compares its calls before it makes them."""
        return WatchedExecutor(executor, name, self)

    def note(self, key: Any, name: str, iteration: int, facts: Dict[str, str], changed: Sequence[str] = ()) -> None:
        """Compare a compilation with the one before of the same program, for which `key` stands as long as it lives.

        `changed` has further known differences.
        """
        last = self._seen.get(key)
        self._seen[key] = iteration, facts
        if last is not None:
            changes = [*changed, *_changes(last[1], facts)]
            found = Recompilation(name, iteration, last[0], changes, str(current_line()))
            self.found.append(found)
            logger.warning("%s", found)

    def _compiling(self, engine: Engine, session: IPUSession) -> None:
        for program in (session.training, *session.evaluations):
            if program is not None and isinstance(program.state, Wrapped):
                # One training program follows another.
                key, name = (session, "training") if program.kind.training else (program, "evaluation")
                self.note(key, name, engine.state.iteration, _facts_of(program, session), program.changed)


class WatchedExecutor:
    """A PopTorch executor whose calls are compared before they are made; everything else is the executor's."""

    def __init__(self, executor: Any, name: str, watch: RecompileWatch) -> None:
        self._executor = executor
        self._name = name
        self._watch = watch
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the executor.

        A call cannot change the compiled shapes: PopTorch refuses it, after this has logged the difference.
        """
        facts = _batch_facts([*args, *kwargs.values()])
        seen = self._watch._seen.get(self)
        if seen is None or not self._executor.isCompiled() or _changes(seen[1], facts):
            self._watch.note(self, self._name, self._calls, facts)
        self._calls += 1
        return self._executor(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def _facts_of(program: ModelProgram, session: IPUSession) -> Dict[str, str]:
    options = program.options.toDict()
    facts = {f"option {name}": repr(value) for name, value in options.items() if isinstance(value, _PLAIN)}
    facts.update(program.step.layout.describe())
    with DisableTorchFunctionSubclass():
        for name, parameter in named_tensors(program.step, PARAMETERS).items():
            facts[f"parameter {name}"] = "trained" if requires_grad(parameter) else "frozen"
    for name, module in program.step.named_modules():
        facts[f"module {name or 'itself'}"] = f"in {'training' if module.training else 'evaluation'} mode"
    conversion = None if session.link is None else session.link.conversion
    if program.kind.training and isinstance(conversion, Conversion):
        for number, group in enumerate(conversion.optimizer.param_groups):
            for name in conversion.constant & group.keys():
                facts[f"optimizer constant {name} of group {number}"] = repr(group[name])
    return facts


def _batch_facts(values: List[Any]) -> Dict[str, str]:
    facts = {}
    for number, value in enumerate(values):
        tensors = tensors_in(value)
        for place, tensor in enumerate(tensors):
            name = f"argument {number}" if len(tensors) == 1 else f"argument {number}, tensor {place}"
            facts[name] = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        if not tensors:
            facts[f"argument {number}"] = repr(value)
    return facts


def _changes(before: Dict[str, str], now: Dict[str, str]) -> List[str]:
    return [
        f"{name} was {before.get(name, 'absent')} and is {now.get(name, 'absent')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
