"""Findings of `check`: a place in the user's code, the rule it breaks, why that matters and the way out."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Optional

from ignite_ipu.capabilities import Capability, Treatment
from ignite_ipu.capabilities.traced import OPERATOR, Restriction
from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.analysis.operators import Problem
from ignite_ipu.migration.docstrings import one_side
from ignite_ipu.migration.program import Program as Program  # rules declare their input and their findings with these


class Severity(str, enum.Enum):
    """Severity of a finding; ordered from worst to mildest by `rank`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for an error, 1 for a warning, 2 for a note."""
        return list(Severity).index(self)


class Outcome(str, enum.Enum):
    """Outcome of `ignite-ipu run` for code that breaks a rule."""

    HANDLED = "handled"
    """It trains the code, with the native result."""
    ON_HOST = "on the host"
    """It trains the code with the native result, by weight updates that PyTorch makes on the host: each costs copies of
    the gradients and of the weights."""
    BY_FUNCTION = "function by function"
    """It trains the code with the native result. The model's Python code runs in every call, and each function of it is
    recorded by itself: another sequence of functions is another program."""
    REFUSED = "refused"
    """It stops at that code, or what it calls does."""
    UNCHANGED = "unchanged"
    """It leaves the code as it is, so that the finding holds."""
    OPEN = "open"
    """No text shows it: the code may not run, or its values may be constants. A trace does (`check --run`)."""

    @property
    def trains(self) -> bool:
        """True if `run` trains the code with the native result."""
        return self is Outcome.HANDLED or self.takes_import

    @property
    def takes_import(self) -> bool:
        """True if the import of `ignite_ipu.auto` trains the code, and rewritten code would refuse it."""
        return self in (Outcome.ON_HOST, Outcome.BY_FUNCTION)

    @classmethod
    def of(cls, capability: Capability) -> Outcome:
        """Return the outcome for code that uses a name of the table of capabilities."""
        known = {Treatment.REFUSED: cls.REFUSED, Treatment.UPDATES_ON_HOST: cls.ON_HOST}
        return known.get(capability.treatment, cls.HANDLED)


@dataclass(frozen=True)
class Hit:
    """A node that breaks a rule, before it is placed in a file; fields that are None have the rule's values.

    The `entry` of the table of capabilities that it is about, if any, has the outcome unless `run` is given.
    """

    node: ast.AST
    message: str
    remedy: Optional[str] = None
    severity: Optional[Severity] = None
    run: Optional[Outcome] = None
    entry: Optional[Capability] = None


Hits = Iterator[Hit]
FactsCheck = Callable[[Program, Iterable[Fact]], Hits]


def hit_of(fact: Fact, message: str, remedy: Optional[str] = None, run: Optional[Outcome] = None) -> Hit:
    """Return the hit for a fact of traced code: a note with an open outcome if the fact is not certain."""
    if fact.certain or run is Outcome.HANDLED:
        return Hit(fact.node, message, remedy, run=run)
    return Hit(fact.node, message, remedy, Severity.NOTE, Outcome.OPEN)


def not_compiled(fact: Fact, problem: Problem) -> Hit:
    """Return the hit for a fact whose operator or layer does not compile; a refusal of a run has the same sentence."""
    handled = Outcome.HANDLED if problem.is_handled else None
    message = OPERATOR.reason(fact.where, fact.name + problem.detail)
    return hit_of(fact, message, problem.remedy or OPERATOR.remedy, handled)


@dataclass(frozen=True)
class Rule:
    """One thing that does not work, or works differently, on an IPU.

    Attributes:
        name: The name users write in suppressions; also the module's, the test's and the docs page's.
        severity: `error` fails or trains wrongly, `warning` differs silently, `note` is worth knowing.
        run: Outcome of `ignite-ipu run` for the example, and mostly for such code.
        summary, rationale, remedy: The finding, the reason why it matters on an IPU, and the way out.
        example: A smallest program that breaks the rule and the same program mended, as their difference.
        check: Yields the places that break the rule. None when only a trace shows them (`check --run`).
        latent: Yields those facts of functions that break it if traced code of another file calls them; None for none.
        rewritten: True if `run` handles such code by substitutes for PyTorch's own names, so that `migrate` has to
            rewrite it. Code that captured loops and engines handle may stay.
    """

    name: str
    severity: Severity
    run: Outcome
    summary: str
    rationale: str
    remedy: str
    example: str
    check: Optional[Callable[[Program], Hits]]
    latent: Optional[FactsCheck]
    rewritten: bool

    @property
    def traced(self) -> bool:
        return self.check is None

    @property
    def docs(self) -> str:
        """Its page in the documentation."""
        return f"docs/migration/rules/{self.name}.md"

    @property
    def bad(self) -> str:
        return one_side(self.example, "+")

    @property
    def good(self) -> str:
        return one_side(self.example, "-")


def each_fact(kind: str, message: str) -> Callable[[Program], Hits]:
    """Return a check that reports every fact of a kind in traced code; the message names its `{where}` and `{name}`."""

    def check(program: Program) -> Hits:
        for fact in program.facts_of(kind):
            yield hit_of(fact, message.format(where=fact.where, name=fact.name))

    return check


def each_breach(restriction: Restriction, *kinds: str) -> Callable[[Program], Hits]:
    """Return a check that reports every fact of some kinds in traced code as a breach of a restriction."""
    return of_traced_code(breaches_of(restriction, *kinds))


def of_traced_code(check: FactsCheck) -> Callable[[Program], Hits]:
    """Return a check of the facts of a program's traced code, by one of given facts."""
    return lambda program: check(program, program.facts)


def breaches_of(restriction: Restriction, *kinds: str) -> FactsCheck:
    """Return a check that reports those of given facts that are of some kinds as breaches of a restriction."""

    def check(program: Program, facts: Iterable[Fact]) -> Hits:
        for fact in facts:
            if fact.kind in kinds:
                yield breach_of(fact, restriction, program.detail_of(fact))

    return check


def breach_of(fact: Fact, restriction: Restriction, detail: str, run: Optional[Outcome] = None) -> Hit:
    """Return the hit for a fact that breaks a restriction of traced code; a refusal of a run has the same sentence."""
    return hit_of(fact, restriction.reason(fact.where, detail), restriction.remedy, run)


@dataclass(frozen=True)
class Finding:
    """A rule broken at a place of a file, which is named as the user did.

    Lines, columns in characters, and code cells count from 1; a notebook's lines are those of the cell, and a plain
    file has no cell. `end_column` is the one behind the last character. `docs` is the place in the documentation.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    cell: Optional[int]
    rule: str
    severity: Severity
    run: Outcome
    message: str
    remedy: str
    docs: str

    @property
    def place(self) -> str:
        """`path:line:column`, with the cell in between for a notebook."""
        where = self.path if self.cell is None else f"{self.path}:cell {self.cell}"
        return f"{where}:{self.line}:{self.column}"


def place_hit(program: Program, rule: Rule, hit: Hit) -> Finding:
    """Return the finding that a hit of a rule is in a file."""
    node = hit.node
    first = getattr(node, "lineno", 1)
    whole = not hasattr(node, "body") or isinstance(node, ast.expr)  # and not the first line of a block
    last = (whole and getattr(node, "end_lineno", None)) or first
    end = getattr(node, "end_col_offset", None) if last == getattr(node, "end_lineno", None) else None
    cell, line = program.source.locate(first)
    outcome = rule.run if hit.entry is None else Outcome.of(hit.entry)
    return Finding(
        path=program.source.path,
        line=line,
        column=program.column(first, getattr(node, "col_offset", 0)) + 1,
        end_line=line + last - first,
        end_column=program.column(last, end) + 1,
        cell=cell,
        rule=rule.name,
        severity=hit.severity or rule.severity,
        run=hit.run or outcome,
        message=hit.message,
        remedy=hit.remedy or rule.remedy,
        docs=rule.docs if hit.entry is None else hit.entry.docs,
    )
