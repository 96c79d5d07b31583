"""Findings of a trace: placed in files as the user names them, and told once."""

from __future__ import annotations

import ast
import os
import re
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.findings import Finding, Hit, Outcome, Rule, Severity, place_hit
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source, read_source
from ignite_ipu.migration.trial.trial import Trial

_ATTRIBUTE = re.compile(r"self\.\w+")


def with_traced(found: Sequence[Finding], trial: Trial, rules: Mapping[str, Rule]) -> Tuple[List[Finding], int]:
    """Add findings of a trace to those of the static rules, for the selected rules.

    If both report the same on a line, the more severe one is kept. Returned are all findings by file
    and line, and how many of the trace's a comment silenced.
    """
    named = [*(finding.path for finding in found), trial.target.rpartition(":")[0]]
    names = {os.path.realpath(path): path for path in named if os.path.isfile(path)}
    programs: Dict[str, Program] = {}
    findings, suppressed = list(found), 0
    for note in trial.notes:
        rule = rules.get(note.rule)
        if rule is None:
            continue
        severity, place = note.severity or rule.severity, note.place or trial.factory
        path, line = ("", 1) if place is None else (place.path, place.line)
        if path not in programs:
            programs[path] = _read(path, names) if path else Program(Source(trial.target, ""))
        program = programs[path]
        if program.is_suppressed(rule.name, _ends(program.tree, line)):
            suppressed += 1
            continue
        # Reasons that stop this trace stop that of `run`, if it needs one of the whole model.
        stops = severity is Severity.ERROR and rule.run is not Outcome.BY_FUNCTION
        run = Outcome.REFUSED if stops else rule.run
        new = place_hit(program, rule, Hit(_whole(program, line), note.message, None, severity, run))
        same = next((finding for finding in findings if _say_the_same(finding, new)), None)
        if same is None:
            findings.append(new)
        elif new.severity.rank < same.severity.rank:
            findings[findings.index(same)] = new
    order = {path: position for position, path in enumerate(dict.fromkeys(finding.path for finding in findings))}
    findings.sort(key=lambda f: (order[f.path], f.cell or 0, f.line, f.column, f.rule, f.message))
    return findings, suppressed


def _say_the_same(known: Finding, new: Finding) -> bool:
    if known.rule != new.rule or known.path != new.path:
        return False
    about, other = _ATTRIBUTE.findall(new.message), _ATTRIBUTE.findall(known.message)
    if known.line <= new.line <= known.end_line:
        return not about or not other or about == other
    # Findings of a trace that concern a whole forward.
    return bool(about) and about == other


def _whole(program: Program, line: int) -> ast.stmt:
    """Return something in the place of a whole line, because a trace knows no columns."""
    text = program.line(line).rstrip()
    indent = len(text) - len(text.lstrip())
    return ast.Pass(lineno=line, col_offset=indent, end_lineno=line, end_col_offset=len(text))


def _ends(tree: ast.AST, line: int) -> Iterator[int]:
    """Yield a line and both ends of the statement that it belongs to, where a comment silences a rule."""
    yield line
    for node in ast.walk(tree):
        last = getattr(node, "end_lineno", None)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and last and node.lineno <= line <= last:
            yield node.lineno
            yield last


def _read(path: str, names: Mapping[str, str]) -> Program:
    """Return a file under the name that the user has for it; one without text if it cannot be read."""
    relative = os.path.relpath(path)
    shown = names.get(os.path.realpath(path), path if relative.startswith(os.pardir) else relative)
    try:
        return Program(read_source(shown))
    except (OSError, SourceError):
        return Program(Source(shown, ""))
