"""Reports for people, programs and code hosts."""

from __future__ import annotations

import json
from pathlib import Path

from ignite_ipu.cli.terminal import write_lines
from ignite_ipu.migration.checker import CheckReport, check_source
from ignite_ipu.migration.commands.check_reports import json_report, report_lines, sarif_report, text_report
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source

ROOT = Path(__file__).parents[3]


def report(code="x.cuda()\n", path="dir with space/code.py"):
    findings, suppressed = check_source(Source(path, code))
    return CheckReport(findings, files=1, suppressed=suppressed, skipped=[("link.py", "is a broken link")])


def test_text_gives_place_severity_rule_and_remedy():
    text = text_report(report())
    assert (
        "dir with space/code.py\n  1:1: error: .cuda() moves to a GPU [cuda-device] run: handled\n      remedy: Use"
        in text
    )
    assert "skipped: link.py is a broken link" in text
    assert text.endswith("1 file checked: 1 error; run: 1 handled")
    assert "\033" not in text


def test_colour_only_adds_escapes(monkeypatch):
    """Without a terminal nothing is folded, so that a log keeps its lines."""
    import io
    import re

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    write_lines(report_lines(report()), stream)
    assert "\033[1;31merror" in stream.getvalue()
    assert re.sub(r"\033\[[0-9;]*m", "", stream.getvalue()) == text_report(report()) + "\n"


def test_clean_files_say_so():
    assert text_report(report("x = 1\n")).endswith("1 file checked: nothing found")


def test_json_holds_everything():
    document = json.loads(json_report(report()))
    assert document["version"] == 4
    assert document["counts"] == {"error": 1, "warning": 0, "note": 0}
    (finding,) = document["findings"]
    assert (finding["path"], finding["line"], finding["column"]) == ("dir with space/code.py", 1, 1)
    assert (finding["rule"], finding["severity"], finding["cell"]) == ("cuda-device", "error", None)
    assert (finding["run"], finding["docs"]) == ("handled", "docs/migration/rules/cuda-device.md")


def test_findings_name_the_row_of_the_documentation_about_their_call():
    """By the table of capabilities; the row is there."""
    code = "import torch\ntorch.nn.utils.clip_grad_value_(model.parameters(), 1.0)\ntorch.cuda.synchronize()\n"
    places = [finding["docs"] for finding in json.loads(json_report(report(code)))["findings"]]
    assert places == [
        "docs/training-calls.md#torch-nn-utils-clip_grad_value_",
        "docs/gpu-calls.md#torch-cuda-synchronize",
    ]
    for page, _, anchor in (place.partition("#") for place in places):
        assert f'"{anchor}"' in (ROOT / page).read_text(encoding="utf-8")


def test_sarif_has_what_the_standard_requires():
    """SARIF 2.1.0: sections 3.13 (log), 3.14 (run), 3.19 (tool component), 3.27 (result), 3.30 (region)."""
    document = json.loads(sarif_report(report(), all_rules()))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    identifiers = [rule["id"] for rule in driver["rules"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(rule["defaultConfiguration"]["level"] in ("error", "warning", "note") for rule in driver["rules"])
    (result,) = run["results"]
    assert identifiers[result["ruleIndex"]] == result["ruleId"] == "cuda-device"
    assert result["message"]["text"]
    assert result["properties"] == {"run": "handled", "docs": "docs/migration/rules/cuda-device.md"}
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "dir%20with%20space/code.py"
    assert place["region"] == {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 9}
