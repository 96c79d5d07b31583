"""Applies every rule to a file and places the findings."""

from __future__ import annotations

import ast
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from ignite_ipu.cli.terminal import following
from ignite_ipu.errors import SourceError, UserError
from ignite_ipu.migration.analysis.executed import Executed, executed
from ignite_ipu.migration.analysis.uses import CHOICE
from ignite_ipu.migration.findings import Finding, Outcome, Rule, Severity, place_hit
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.discovery import discover
from ignite_ipu.migration.source.file import Source, read_source
from ignite_ipu.migration.verdict import Judgement, Latent, Programs, Verdict, judge

if TYPE_CHECKING:
    from ignite_ipu.migration.trial.trial import Trial

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 64
_TAKEN_AT_ONCE = 8


@dataclass
class CheckReport:
    """Findings by file, in the order of the text, and of how many files; so many more are suppressed by comments.

    Paths that were passed over are `skipped`, each with the reason; `left_out` counts findings that do not matter to
    who asked. Files that train, themselves or by a file that they import, have `verdicts`, if all rules were applied.
    """

    findings: List[Finding] = field(default_factory=list)
    files: int = 0
    suppressed: int = 0
    skipped: List[Tuple[str, str]] = field(default_factory=list)
    run: Optional[Trial] = None
    verdicts: Dict[str, Verdict] = field(default_factory=dict)
    left_out: int = 0

    def keep(self, wanted: Callable[[Finding], bool]) -> None:
        kept = list(filter(wanted, self.findings))
        self.left_out += len(self.findings) - len(kept)
        self.findings = kept

    def count(self, what: Union[Severity, Outcome]) -> int:
        """Return how many findings have a severity, or of how many `run` makes that."""
        return sum(what in (finding.severity, finding.run) for finding in self.findings)


def check_paths(paths: Sequence[str], rules: Optional[Iterable[Rule]] = None) -> CheckReport:
    """Check files and directories; a path that does not exist is a `UserError`."""
    chosen = [rule.name for rule in all_rules().values() if rules is None or rule in rules]
    found = discover(paths)
    report = CheckReport(skipped=found.skipped, files=len(found.files))
    files = [path for path, _ in found.files]
    with contextlib.ExitStack() as stack:
        if gc.isenabled():
            # Each tree would set off collections of garbage. Trees have no circles, and need none.
            gc.disable()
            stack.callback(gc.enable)
        checked = on_all_cores(partial(_check_file, chosen), files)
        judged = {}
        for path, (findings, suppressed, judgement) in zip(following(files, "Checking"), checked):
            report.findings.extend(findings)
            report.suppressed += suppressed
            judged[path] = judgement
        _judge_together(report, judged, len(chosen) == len(all_rules()))
    return report


def _judge_together(report: CheckReport, judged: Dict[str, Judgement], by_all_rules: bool) -> None:
    """Take the files as programs: leave out code that `ignite_ipu.auto` handles in them, and give verdicts on them."""
    real = {os.path.realpath(path): judgement for path, judgement in judged.items()}
    programs = Programs(real)
    automatic = programs.automatic()
    captured = {path for path in judged if os.path.realpath(path) in automatic}
    report.findings = [each for each in report.findings if not (each.path in captured and each.run.trains)]
    report.findings = [
        _if_chosen(each) if each.run is Outcome.REFUSED and programs.may_count(each) else each
        for each in report.findings
    ]
    started = [path for path in real if path not in programs.imported]
    of_functions = {finding for path in started for finding in programs.called(path)} if by_all_rules else set()
    if of_functions:
        order = {path: number for number, path in enumerate(judged)}
        found = [*report.findings, *of_functions]
        report.findings = sorted(found, key=lambda each: (order[each.path], each.cell or 0, each.line, each.column))
    for path in judged if by_all_rules else ():
        verdict = programs.verdict(os.path.realpath(path))
        if verdict is not Verdict.NOTHING:
            report.verdicts[path] = verdict


def _check_file(rules: Sequence[str], path: str) -> Tuple[List[Finding], int, Judgement]:
    try:
        source = read_source(path)
    except SourceError as error:
        return [_unreadable(path, str(error), error.line, None)], 0, Judgement()
    except OSError as error:
        return [_unreadable(path, f"cannot be read: {error.strerror}", 1, None)], 0, Judgement()
    return judge_source(source, [all_rules()[name] for name in rules])


def on_all_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the results of a function for each item, in order; raises `UserError` when a process dies.

    Many items are shared among forks of this process, one a core, if it has no other threads; functions and results are
    pickled then. Few are worked on here, and all of them where processes are not made by forks.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if cores == 1 or len(items) < _FEW or threading.active_count() > 1:
        yield from map(function, items)
        return
    forks = multiprocessing.get_context("fork")
    # Ctrl-C is for the parent process, which lets the others finish their items.
    with ProcessPoolExecutor(cores, forks, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield from pool.map(function, items, chunksize=_TAKEN_AT_ONCE)
        except BrokenProcessPool:
            raise UserError(
                f"one of {cores} processes died while they worked on {len(items)} files, as it does when memory "
                "runs out: name fewer files or folders at a time"
            ) from None


def check_source(source: Source, rules: Optional[Iterable[Rule]] = None) -> Tuple[List[Finding], int]:
    """Check one file's text; returns the findings, and how many a comment silenced."""
    findings, suppressed, _ = judge_source(source, rules)
    return findings, suppressed


def judge_source(source: Source, rules: Optional[Iterable[Rule]] = None) -> Tuple[List[Finding], int, Judgement]:
    """Check one file's text; returns the findings of `check_source`, and the file's facts for verdicts."""
    try:
        program = Program(source)
    except SourceError as error:
        cell, line = source.locate(error.line)
        return [_unreadable(source.path, str(error), line, cell)], 0, Judgement()
    inner = executed(program) if source.notebook is None else []
    if inner:
        # It has the variables of the file around it.
        whole = "\n".join([source.text, *(each.text for each in inner)])
        program = Program(replace(source, text=whole))
    findings: List[Finding] = []
    suppressed = 0
    for rule in all_rules().values() if rules is None else rules:
        for hit in () if rule.check is None else rule.check(program):
            first = getattr(hit.node, "lineno", 1)
            # A comment counts at the first line of its statement and at the last, where long calls have room.
            last = getattr(hit.node, "end_lineno", None) if isinstance(hit.node, ast.expr) else None
            if program.is_suppressed(rule.name, (first, last or first)):
                suppressed += 1
            else:
                findings.append(place_hit(program, rule, hit))
    if inner:
        findings = [_placed(each, source, inner) for each in findings]
    findings = [_if_chosen(each) if _is_chosen(program, each) else each for each in findings]
    judged = judge(program, findings, _latent(program))
    if program.is_automatic or program.is_ported:
        findings = [each for each in findings if not _is_handled(program, each)]
    return sorted(set(findings), key=lambda f: (f.cell or 0, f.line, f.column, f.rule, f.message)), suppressed, judged


def _if_chosen(finding: Finding) -> Finding:
    """Return a finding in code that runs only if a setting chooses it as one that may not hold."""
    return replace(finding, severity=Severity.NOTE, run=Outcome.OPEN)


def _is_chosen(program: Program, finding: Finding) -> bool:
    refused = finding.run is Outcome.REFUSED and finding.cell is None
    return refused and program.uses.scope_of(finding.line) == CHOICE


def _placed(finding: Finding, source: Source, inner: Sequence[Executed]) -> Finding:
    """Return a finding in code of a string, which is behind the text of the file, at the line that executes it."""
    end = source.text.count("\n") + 1
    if finding.line <= end:
        return finding
    for each in inner:
        end += each.text.count("\n") + 1
        if finding.line <= end:
            return replace(finding, line=each.line, end_line=each.line, column=1, end_column=1)
    return finding


def _latent(program: Program) -> Iterator[Latent]:
    """Yield the findings in functions that count if traced code of another file calls them."""
    for rule in all_rules().values():
        for function, takes, facts, of_loss in () if rule.latent is None else program.latent:
            for hit in () if rule.latent is None else rule.latent(program, facts):
                yield Latent(function, takes, place_hit(program, rule, hit), of_loss)


def _is_handled(program: Program, finding: Finding) -> bool:
    """Return whether the program's engines, captured loops or substitutes support code that breaks a rule."""
    rewritten = all_rules()[finding.rule].rewritten
    if finding.run.takes_import:
        return program.is_automatic
    return finding.run is Outcome.HANDLED and (program.is_automatic or not rewritten)


def _unreadable(path: str, message: str, line: int, cell: Optional[int]) -> Finding:
    rule = all_rules()["unreadable-source"]
    message = f"the file {message}"
    return Finding(path, line, 1, line, 1, cell, rule.name, rule.severity, rule.run, message, rule.remedy, rule.docs)
