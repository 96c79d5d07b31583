"""Findings of a trace: placed in files as the user names them, and told once."""

from __future__ import annotations

import ast
import os
import re
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.findings import Finding, Outcome, Rule, Severity
from ignite_ipu.migration.source.comments import EVERY_RULE, find_suppressions
from ignite_ipu.migration.source.file import read_source, split_lines
from ignite_ipu.migration.trial.places import Place
from ignite_ipu.migration.trial.trial import Trial

_ATTRIBUTE = re.compile(r"self\.\w+")


def with_traced(
    found: Sequence[Finding], trial: Trial, target: str, rules: Mapping[str, Rule]
) -> Tuple[List[Finding], int]:
    """Add to the findings of the static rules what a trace showed.

    Where both say the same of a line it is said once, by whichever says it is worse.

    Args:
        found: What the static rules found.
        trial: What the trace showed.
        target: `MODULE:FACTORY`, as the user named it.
        rules: The rules that are wanted.

    Returns:
        All findings by file and line, and how many of the trace's a comment silenced.
    """
    files = _Files([*(finding.path for finding in found), target.rpartition(":")[0]])
    findings, suppressed = list(found), 0
    for note in trial.notes:
        rule = rules.get(note.rule)
        if rule is None:
            continue
        place = note.place or trial.factory
        if place is not None and files.is_suppressed(place, rule.name):
            suppressed += 1
            continue
        new = files.finding(place, target, rule, note.message, note.severity or rule.severity)
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
    if known.line <= new.line <= known.end_line:
        attributes = _ATTRIBUTE.findall(known.message), _ATTRIBUTE.findall(new.message)
        return not all(attributes) or attributes[0] == attributes[1]
    # What a trace can only say of a whole forward.
    about = _ATTRIBUTE.findall(new.message)
    return bool(about) and about == _ATTRIBUTE.findall(known.message)


class _Files:
    """The files that findings are placed in."""

    def __init__(self, named: Sequence[str]) -> None:
        self._names: Dict[str, str] = {os.path.realpath(path): path for path in named if os.path.isfile(path)}
        self._read: Dict[str, Tuple[List[str], Dict[int, Set[str]], Optional[ast.Module]]] = {}

    def finding(self, place: Optional[Place], target: str, rule: Rule, message: str, severity: Severity) -> Finding:
        """Return the finding at a place: the whole line, because a trace knows no columns."""
        # What stops this trace stops that of `run`.
        run = Outcome.REFUSED if severity is Severity.ERROR else rule.run
        if place is None:
            return Finding(target, 1, 1, 1, 1, None, rule.name, severity, run, message, rule.remedy)
        lines, _, _ = self._file(place.path)
        text = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
        column = len(text) - len(text.lstrip()) + 1
        end = len(text.rstrip()) + 1
        return Finding(
            path=self._shown(place.path),
            line=place.line,
            column=column,
            end_line=place.line,
            end_column=max(end, column),
            cell=None,
            rule=rule.name,
            severity=severity,
            run=run,
            message=message,
            remedy=rule.remedy,
        )

    def is_suppressed(self, place: Place, rule: str) -> bool:
        """Tell whether a comment in the line, or at either end of the statement it belongs to, silences a rule."""
        _, suppressions, tree = self._file(place.path)
        return any({rule, EVERY_RULE} & suppressions.get(line, set()) for line in _ends(tree, place.line))

    def _shown(self, path: str) -> str:
        named = self._names.get(os.path.realpath(path))
        if named is not None:
            return named
        relative = os.path.relpath(path)
        return path if relative.startswith(os.pardir) else relative

    def _file(self, path: str) -> Tuple[List[str], Dict[int, Set[str]], Optional[ast.Module]]:
        if path not in self._read:
            try:
                text = read_source(path).text
                self._read[path] = split_lines(text), find_suppressions(text), ast.parse(text)
            except (OSError, SourceError, SyntaxError, ValueError):
                self._read[path] = [], {}, None
        return self._read[path]


def _ends(tree: Optional[ast.Module], line: int) -> Iterator[int]:
    yield line
    for node in ast.walk(tree) if tree is not None else ():
        last = getattr(node, "end_lineno", None)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and last and node.lineno <= line <= last:
            yield node.lineno
            yield last
