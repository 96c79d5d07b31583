"""Findings of `ignite-ipu check` as text for people, as JSON for programs, and as SARIF 2.1.0 for code hosts."""

from __future__ import annotations

import json
import os
import re
from itertools import groupby
from typing import Any, Dict, Iterator, Mapping, Tuple
from urllib.parse import quote

import ignite_ipu
from ignite_ipu.cli.terminal import TextLine, plain
from ignite_ipu.migration.checker import CheckReport
from ignite_ipu.migration.findings import Finding, Outcome, Rule, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def report_lines(report: CheckReport) -> Iterator[TextLine]:
    """Yield the findings for a terminal: one line each, its remedy below, and a summary at the end."""
    for path, group in groupby(report.findings, key=lambda finding: finding.path):
        yield TextLine([(path, "bold")])
        for finding in group:
            where = f"{finding.line}:{finding.column}"
            if finding.cell is not None:
                where = f"cell {finding.cell}, {where}"
            severity = (finding.severity.value, _STYLES[finding.severity])
            text, rule = f": {finding.message} ", f"[{finding.rule}] run: {finding.run.value}"
            yield TextLine([(f"  {where}: ", ""), severity, (text, ""), (rule, "dim")], 6)
            yield TextLine([("      ", ""), ("remedy:", "dim"), (f" {finding.remedy}", "")], 14)
        yield TextLine([])
    for path, verdict in report.verdicts.items():
        yield TextLine([(f"{path}: `ignite-ipu run` {verdict.value}", "")])
    for path, reason in report.skipped:
        yield TextLine([(f"skipped: {path} {reason}", "")])
    if report.run is not None:
        yield TextLine([(report.run.verdict, "")])
    if report.files or report.run is None:
        yield TextLine([(summary(report), "bold")])


def text_report(report: CheckReport) -> str:
    """Return the same as plain text."""
    return plain(report_lines(report))


def summary(report: CheckReport) -> str:
    """Return one line that counts the findings."""
    counts = ((report.count(severity), severity.value) for severity in Severity)
    found = _counted(*((count, f"{name}{'' if count == 1 else 's'}") for count, name in counts))
    files = f"{report.files} file{'' if report.files == 1 else 's'}"
    aside = _counted((report.suppressed, "suppressed"), (report.left_out, "left out"))
    run = _counted(*((report.count(outcome), outcome.value) for outcome in Outcome))
    return f"{files} checked: {found or 'nothing found'}{aside and f' ({aside})'}{run and f'; run: {run}'}"


def _counted(*counts: Tuple[int, str]) -> str:
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def json_report(report: CheckReport) -> str:
    """Return the findings as one JSON object, whose `version` changes when its structure does."""
    document = {
        "version": 4,
        "tool": {"name": "ignite-ipu", "version": ignite_ipu.__version__},
        "files": report.files,
        "suppressed": report.suppressed,
        "leftOut": report.left_out,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [
            {re.sub("_(.)", lambda word: word.group(1).upper(), name): value for name, value in vars(finding).items()}
            for finding in report.findings
        ],
        "verdicts": {path: verdict.name.lower() for path, verdict in report.verdicts.items()},
        "skipped": [{"path": path, "reason": reason} for path, reason in report.skipped],
        "run": _tried(report),
    }
    return json.dumps(document, indent=2)


def sarif_report(report: CheckReport, rules: Mapping[str, Rule]) -> str:
    """Return the findings as a SARIF 2.1.0 log with the rules that were applied."""
    order = {name: index for index, name in enumerate(rules)}
    applied = [
        {
            "id": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.rationale},
            "help": {"text": rule.remedy},
            "defaultConfiguration": {"level": rule.severity.value},
        }
        for rule in rules.values()
    ]
    skipped = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    invocation = {
        "executionSuccessful": True,
        "properties": {"run": _tried(report)},
        "toolExecutionNotifications": [{"level": "note", "message": {"text": text}} for text in skipped],
    }
    run = {
        "tool": {"driver": {"name": "ignite-ipu check", "version": ignite_ipu.__version__, "rules": applied}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, order) for finding in report.findings],
        "invocations": [invocation],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _tried(report: CheckReport) -> Any:
    return None if report.run is None else {"target": report.run.target, "compiled": report.run.compiled}


def _sarif_result(finding: Finding, order: Mapping[str, int]) -> Dict[str, Any]:
    file = {"uri": quote(finding.path.replace(os.sep, "/"), safe="/:")}
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    location: Dict[str, Any] = {"physicalLocation": {"artifactLocation": file, "region": region}}
    if finding.cell is not None:
        location["logicalLocations"] = [{"name": f"cell {finding.cell}", "kind": "member"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": order.get(finding.rule, -1),
        "level": finding.severity.value,
        "message": {"text": f"{finding.message}. {finding.remedy}"},
        "locations": [location],
        "properties": {"run": finding.run.value, "docs": finding.docs},
    }
