"""Applies every rewrite to a file; a file that rewrites cannot move imports `ignite_ipu.auto`, or is left alone.

Moving half of a training program would train on the host's CPU without a word. So a file whose rewritten form still
has errors keeps its text, with the one import that captures it when it runs. A program is left alone, byte for byte,
only if `run` refuses it by the same findings, which are the remarks.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
from dataclasses import dataclass, field, replace
from typing import Iterator, List, Optional, Set, Tuple

import libcst as cst

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.analysis.executed import executed
from ignite_ipu.migration.checker import check_source, judge_source
from ignite_ipu.migration.findings import Finding, Outcome, Severity
from ignite_ipu.migration.program import AUTO, Program
from ignite_ipu.migration.rewrites import all_rewrites
from ignite_ipu.migration.rewriting.editor import Editor, Remark, RewriteRefused
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Judgement, Verdict

_BY_IMPORT = "auto"
# Part of a remedy about `migrate`, which has just declined.
_OFFER = re.compile(r" `ignite-ipu migrate` does [^.]*\.|, which `ignite-ipu migrate` does[^.]*(?=\.)")


@dataclass
class Migration:
    """A file with its new Python and the rewrites that changed it, or unchanged and `blocked` by other code.

    Remarks are for a person to know, or to act on. `judged` has the facts of the file as it was, None if it is not
    Python.
    """

    source: Source
    text: str
    applied: List[str] = field(default_factory=list)
    blocked: bool = False
    remarks: List[Remark] = field(default_factory=list)
    judged: Optional[Judgement] = None

    @property
    def changed(self) -> bool:
        return self.text != self.source.text

    @property
    def outcome(self) -> str:
        """Word for the result: "migrated", "unchanged" or "left alone"."""
        return "left alone" if self.blocked else "migrated" if self.changed else "unchanged"

    @property
    def by_import(self) -> bool:
        """True if the one import captures it, in the place of rewrites."""
        return self.applied == [_BY_IMPORT]

    @property
    def reason(self) -> str:
        """The place and the first reason for which it was left alone, without the remedy."""
        first = self.remarks[0]
        return f"{self.place(first.line)}: {first.message.split('. ')[0]}"

    def place(self, line: int) -> str:
        """Return the file, the notebook's cell and the line in it of a line of the text."""
        cell, inside = self.source.locate(line)
        return f"{self.source.path}:{inside}" if cell is None else f"{self.source.path}:cell {cell}:{inside}"

    def difference(self) -> Iterator[str]:
        # Not str.splitlines, which takes a form feed for the end of a line.
        before, after = (list(io.StringIO(text, newline="\n")) for text in (self.source.text, self.text))
        yield from difflib.unified_diff(before, after, f"a/{self.source.path}", f"b/{self.source.path}")


def left_alone(source: Source, line: int, reason: str) -> Migration:
    """Return the result for a file that has one reason to stay unchanged."""
    return Migration(source, source.text, blocked=True, remarks=[Remark(line, "migrate", reason)])


def migrate_source(source: Source) -> Migration:
    """Rewrite one file's text; where it is not Python, the line of the `SourceError` is one of the source's text."""
    program = Program(replace(source, notebook=None))
    found, _, judged = judge_source(source)
    return replace(_migrated(source, program, found, judged), judged=judged)


def _migrated(source: Source, program: Program, found: List[Finding], judged: Judgement) -> Migration:
    if program.is_automatic:
        return Migration(source, source.text)
    if judged.verdict is Verdict.REFUSED:
        refused = [each for each in found if each.run is Outcome.REFUSED and judged.counts(each)]
        errors = [each for each in refused if each.severity is Severity.ERROR]
        return Migration(source, source.text, blocked=True, remarks=_reasons(source, errors or refused))
    inner = executed(program)
    if inner:
        return _by_one_line(source, program, judged, [Remark(inner[0].line, "migrate", "code in a string is executed")])
    by_import = [finding for finding in found if finding.run.takes_import]
    if by_import:
        return _by_one_line(source, program, judged, _reasons(source, by_import))
    try:
        result = _rewritten(source, program)
        source.encode(result.text)
    except RewriteRefused as refused:
        return _by_one_line(source, program, judged, [Remark(refused.line, "migrate", refused.reason)])
    except cst.ParserSyntaxError as error:
        reason = f"the file is beyond LibCST: {error.message}"
        return _by_one_line(source, program, judged, [Remark(error.raw_line, "migrate", reason)])
    except RecursionError:
        reason = "the file is beyond LibCST: it nests too deeply"
        return _by_one_line(source, program, judged, [Remark(1, "migrate", reason)])
    except (SourceError, UnicodeEncodeError) as error:
        return _by_one_line(source, program, judged, [Remark(1, "migrate", str(error))])
    after, _ = check_source(replace(source, text=result.text, notebook=None))
    errors = [finding for finding in after if finding.severity is Severity.ERROR and not _may_stay(finding)]
    if errors:
        return _by_one_line(source, program, judged, _reasons(source, errors))
    warned = [f for f in after if f.severity is Severity.WARNING and not _may_stay(f)]
    result.remarks += [Remark(f.line, f.rule, f.message) for f in warned]
    result.remarks.sort(key=lambda remark: remark.line)
    return result


def _may_stay(finding: Finding) -> bool:
    """Return whether a captured loop or an engine supports code that breaks a rule, as `run` does."""
    return finding.run is Outcome.HANDLED and not all_rules()[finding.rule].rewritten


def rewritten_rules(source: Source) -> Set[str]:
    """Return the rules that a file breaks and, once it is rewritten, does not."""
    before, _ = check_source(source)
    try:
        text = _rewritten(source, Program(replace(source, notebook=None))).text
    except (RewriteRefused, cst.ParserSyntaxError, RecursionError):
        return set()
    after, _ = check_source(replace(source, text=text, notebook=None))
    return {finding.rule for finding in before} - {finding.rule for finding in after}


def _rewritten(source: Source, program: Program) -> Migration:
    result = Migration(source, source.text)
    for rewrite in all_rewrites().values():
        editor = Editor(program, rewrite.name)
        rewrite.apply(editor)
        result.remarks += editor.remarks
        text = editor.finish()
        if text != program.source.text:
            result.text = text
            result.applied.append(rewrite.name)
            program = Program(replace(source, text=result.text, notebook=None))
    if source.text.endswith("\r") and not result.text.endswith("\r"):
        # LibCST knows a last line end by its "\n".
        result.text += "\r"
    return result


def _by_one_line(source: Source, program: Program, judged: Judgement, reasons: List[Remark]) -> Migration:
    """Import `ignite_ipu.auto` in a program that is not rewritten for some reasons; leave a module alone."""
    if not (judged.trains or judged.uses.is_script):
        return Migration(source, source.text, blocked=True, remarks=reasons)
    result = _importing(source, program.tree, [captured_remark(each) for each in reasons])
    try:
        source.encode(result.text)
    except (SourceError, UnicodeEncodeError) as error:
        return left_alone(source, 1, str(error))
    return result


def captured_remark(reason: Remark) -> Remark:
    """Return the remark on a line that is not rewritten in a captured program."""
    return Remark(reason.line, "auto", f"{reason.message.split('. ')[0]}. {AUTO} captures it")


def captured_by_import(migration: Migration, reason: str) -> Migration:
    """Return the file with the import of `ignite_ipu.auto` and no rewrites, for a reason in a file that it imports."""
    source, judged = migration.source, migration.judged
    assert judged is not None
    if judged.automatic or migration.by_import:
        return migration
    tree = Program(replace(source, notebook=None)).tree
    return replace(_importing(source, tree, [Remark(1, "auto", reason)]), judged=judged)


def _importing(source: Source, tree: ast.Module, remarks: List[Remark]) -> Migration:
    # In a notebook, the markers of cells are texts, too.
    first = next((node for node in tree.body if not (_is_text(node) or _is_future(node))), None)
    if first is None:
        return Migration(source, source.text)
    place = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))]) - 1
    lines = list(io.StringIO(source.text, newline=""))
    ending = "\r\n" if lines[place].endswith("\r\n") else "\n"
    lines.insert(place, f"import {AUTO}  # captures the models and optimizers of this program for IPUs{ending}")
    return Migration(source, "".join(lines), applied=[_BY_IMPORT], remarks=remarks)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _reasons(source: Source, errors: List[Finding]) -> List[Remark]:
    """Return the errors that stand in the way, at their lines in the file as it is."""
    original, _ = check_source(source)
    reasons: List[Finding] = []
    for error in errors:
        same = [finding for finding in original if _signature(finding) == _signature(error)]
        # A rewrite may have changed the message; the rule still finds the place.
        reasons += same or [finding for finding in original if finding.rule == error.rule] or [error]
    remarks = {Remark(_line(source, f), f.rule, f"{f.message}. {_OFFER.sub('', f.remedy)}") for f in reasons}
    return sorted(remarks, key=lambda remark: (remark.line, remark.subject))


def _line(source: Source, finding: Finding) -> int:
    """Return the line of a finding in the whole text of a notebook."""
    if source.notebook is None or finding.cell is None:
        return finding.line
    return source.notebook.line_of(finding.cell, finding.line)


def _signature(finding: Finding) -> Tuple[str, str]:
    return finding.rule, re.sub(r"\(line \d+\)", "", finding.message)
