"""Verdict on a program: its outcome under `ignite-ipu run`, by its text and by that of the files that it imports."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, Mapping, NamedTuple, Set, Tuple

from ignite_ipu.migration.analysis.library_loops import library_loops
from ignite_ipu.migration.analysis.reach import IMPORTS, CodeBase, Import, imports_of
from ignite_ipu.migration.analysis.scope import OutsideCall
from ignite_ipu.migration.analysis.training import clips_on_host
from ignite_ipu.migration.analysis.uses import CHOICE, MODULE, Uses, used_scopes
from ignite_ipu.migration.findings import Finding, Outcome, Program, Severity

_ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator", "ignite_ipu.IPUAccelerator")


class Verdict(str, enum.Enum):
    """Verdict on a file as a program of its own."""

    TRAINS = "trains it"
    TRAINS_BY_FUNCTION = "trains it, function by function"
    TRAINS_ON_HOST = "trains it, with weight updates on the host"
    REFUSED = "refuses it"
    NOTHING = "has nothing to do"


class Latent(NamedTuple):
    """A finding in a function, which counts if traced code of another file calls it.

    Attributes:
        function: Its name.
        takes: Whether the finding holds only if the function is given a tensor that is computed.
        finding: The finding.
        of_loss: Whether a loop has to compute a loss by the function, not traced code to call it.
    """

    function: str
    takes: bool
    finding: Finding
    of_loss: bool = False


@dataclass(frozen=True)
class Judgement:
    """Facts of a file that decide about the programs that it is a part of.

    Attributes:
        trains: Whether it makes optimizers, trainers or training steps.
        automatic: Whether it imports `ignite_ipu.auto`.
        outcomes: Scopes with the outcomes of the findings in them, but for notes, which refuse nothing.
        clips: Scopes that clip gradients.
        optimizers: Scopes that make optimizers, each with whether gradients for it are clipped on the host.
        imports: The modules that it imports.
        uses: The names that its scopes use.
        outside: Calls of functions of other modules by traced code.
        latent: Findings in functions that count if traced code of another file calls these.
    """

    trains: bool = False
    automatic: bool = False
    outcomes: FrozenSet[Tuple[str, Outcome]] = frozenset()
    clips: FrozenSet[str] = frozenset()
    optimizers: FrozenSet[Tuple[str, bool]] = frozenset()
    imports: FrozenSet[Import] = frozenset()
    uses: Uses = field(default_factory=lambda: Uses({MODULE: frozenset()}, ()))
    outside: FrozenSet[OutsideCall] = frozenset()
    latent: FrozenSet[Latent] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """Verdict on the file alone."""
        return _verdict(self.trains, (outcome for scope, outcome in self.outcomes if scope in self._used))

    def counts(self, finding: Finding) -> bool:
        """Return whether a finding is in code that the file, started as a program, uses for sure."""
        return _scope_of(self.uses, finding) in self._used

    @property
    def _used(self) -> Set[str]:
        return used_scopes({"": self.uses}, "")[""] - {CHOICE}


def trains(program: Program) -> bool:
    """Return whether a file makes optimizers, trainers or training steps."""
    training = program.training
    if training.backwards or training.trainers or training.optimizer_calls or list(program.calls(*_ACCELERATORS)):
        return True
    return any(True for _ in library_loops(program, training))


def judge(program: Program, findings: Iterable[Finding], latent: Iterable[Latent] = ()) -> Judgement:
    """Return the facts of a file, by all that rules find in it, and in functions that traced code may call."""
    uses = program.uses
    outcomes = frozenset((_scope_of(uses, each), each.run) for each in findings if each.severity is not Severity.NOTE)
    calls = program.training.optimizer_calls
    return Judgement(
        trains(program),
        program.is_automatic,
        outcomes,
        clips=frozenset(
            _scope_of(uses, each)
            for each in findings
            if each.rule == "gradient-clipping" and each.severity is not Severity.NOTE
        ),
        optimizers=frozenset((uses.scope_of(call.lineno), clips_on_host(call, name)) for call, name in calls),
        imports=imports_of(node for kind in IMPORTS for node in program.nodes(kind)),
        uses=uses,
        outside=frozenset(program.outside),
        latent=frozenset(latent),
    )


def _scope_of(uses: Uses, finding: Finding) -> str:
    return uses.scope_of(finding.line) if finding.cell is None else MODULE


def _verdict(training: bool, outcomes: Iterable[Outcome]) -> Verdict:
    if not training:
        return Verdict.NOTHING
    found = set(outcomes)
    if Outcome.REFUSED in found:
        return Verdict.REFUSED
    if Outcome.ON_HOST in found:
        return Verdict.TRAINS_ON_HOST
    return Verdict.TRAINS_BY_FUNCTION if Outcome.BY_FUNCTION in found else Verdict.TRAINS


class Programs:
    """The files of a code base as programs, each with the files that it imports.

    Attributes:
        reached: The files that each file imports, itself or by way of others.
        imported: The files that others import.
    """

    def __init__(self, files: Mapping[str, Judgement]) -> None:
        self._files = files
        imports = {path: judged.imports for path, judged in files.items()}
        self.reached: Dict[str, Set[str]] = CodeBase(files).reached(imports)
        # Files that import one another are parts of each other, and started by none.
        self.imported: Set[str] = {part for path, parts in self.reached.items() for part in parts if part != path}

    def parts(self, path: str) -> Set[str]:
        """Return the files that a program consists of."""
        return {path} | self.reached[path]

    def trains(self, path: str) -> bool:
        """Return whether a program trains, itself or by a file that it imports."""
        return any(self._files[each].trains for each in self.parts(path))

    def verdict(self, path: str) -> Verdict:
        """Return the verdict on a program: findings in files that it imports count where they are used for sure."""
        parts, used = self._used(path)
        outcomes = [outcome for each in parts for scope, outcome in parts[each].outcomes if scope in used[each]]
        outcomes += [finding.run for finding in self.called(path)]
        if any(scope in used[each] for each in parts for scope in parts[each].clips):
            made = [on_host for each in parts for scope, on_host in parts[each].optimizers if scope in used[each]]
            outcomes += [Outcome.ON_HOST] if made and all(made) else []
        return _verdict(self.trains(path), outcomes)

    def called(self, path: str) -> Set[Finding]:
        """Return the findings in functions that traced code of other files of a program calls for sure."""
        parts, used = self._used(path)
        calls = {call for each in parts for call in parts[each].outside if call.scope in used[each]}
        return {
            latent.finding
            for each in parts
            for latent in parts[each].latent
            if any(
                _is_function(call.name, latent.function, each)
                for call in calls
                if call.in_loop is latent.of_loss and (call.computed or not latent.takes)
            )
        }

    def may_count(self, finding: Finding) -> bool:
        """Return whether a finding is in code that no program of the code base uses for sure."""
        path = os.path.realpath(finding.path)
        scope = _scope_of(self._files[path].uses, finding)
        around = [each for each in self._files if path in self.parts(each) and each not in self.imported]
        return bool(around) and all(scope not in self._used(each)[1][path] for each in around)

    def _used(self, path: str) -> Tuple[Dict[str, Judgement], Dict[str, Set[str]]]:
        parts = {each: self._files[each] for each in self.parts(path)}
        return parts, used_scopes({each: judged.uses for each, judged in parts.items()}, path)

    def automatic(self) -> Set[str]:
        """Return the files that `ignite_ipu.auto` captures in each program that they are a part of."""
        captured: Set[str] = set()
        others: Set[str] = set()
        for path in self._files.keys() - self.imported:
            automatic = any(self._files[each].automatic for each in self.parts(path))
            (captured if automatic else others).update(self.reached[path])
        return captured - others


def _is_function(name: str, function: str, path: str) -> bool:
    """Return whether a dotted name may be that of a function of a file: by its last part, and the module's first."""
    module, _, last = name.rpartition(".")
    first = module.lstrip(".").split(".")[0]
    return last == function and (module.startswith(".") or first in (*Path(path).parts, Path(path).stem))
