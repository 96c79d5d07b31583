"""Findings are placed exactly, and a file that cannot be read does not stop the others."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from ignite_ipu.migration.checker import check_paths, check_source
from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source, read_source
from ignite_ipu.migration.verdict import Verdict


def test_columns_count_characters_not_bytes():
    (finding,), _ = check_source(Source("code.py", "größe = 'äöü'; x = größe.cuda()\n"))
    assert (finding.line, finding.column, finding.end_column) == (1, 20, 32)


def test_lines_end_where_python_says():
    """A form feed is white space to Python, though not to str.splitlines."""
    (finding,), _ = check_source(Source("code.py", "\fx = 1\n\x0c\ny.cuda()\n"))
    assert finding.line == 3


def test_unreadable_files_are_findings(tmp_path):
    (tmp_path / "bad.py").write_bytes(b"\x00\x01")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "good.py").write_text("x.cuda()\n")
    report = check_paths([str(tmp_path)])
    assert [finding.rule for finding in report.findings] == ["unreadable-source", "unreadable-source", "cuda-device"]
    assert report.files == 3
    assert report.count(Severity.ERROR) == 3


def test_deep_nesting_is_unreadable_not_a_crash():
    (finding,), _ = check_source(Source("code.py", "x = " + "(" * 5000 + ")" * 5000 + "\n"))
    assert finding.rule == "unreadable-source"


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "ran"
    code = tmp_path / "code.py"
    code.write_text(f"open({str(marker)!r}, 'w')\nimport this_module_does_not_exist\n")
    check_paths([str(code)])
    assert not marker.exists()


def test_a_file_is_freed_without_the_garbage_collector():
    """Which is off while files are checked, as it would walk every tree again and again."""
    program = Program(read_source(Path(__file__).parent / "corpus" / "gan.py"))
    freed = weakref.ref(program)
    gc.disable()
    try:
        for rule in all_rules().values():
            list(rule.check(program) if rule.check is not None else ())
        del program
        assert freed() is None
    finally:
        gc.enable()


def test_a_folder_of_many_files_reads_as_its_files_do_one_by_one(tmp_path):
    """Which are shared among the cores."""
    for place in range(70):
        (tmp_path / f"file{place:02}.py").write_text("def f(:\n" if place == 40 else "x.cuda()\n" * (place % 3))
    together = check_paths([str(tmp_path)])
    alone = [check_paths([str(path)]) for path in sorted(tmp_path.iterdir())]
    assert together.findings == [finding for report in alone for finding in report.findings]
    assert together.files == sum(report.files for report in alone) == 70


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1\n", Verdict.NOTHING),
        ("optimizer.step(); loss.backward()\n", Verdict.TRAINS),
        ("import torch\noptimizer = torch.optim.Adagrad(model.parameters())\n", Verdict.TRAINS_ON_HOST),
        ("import torch\noptimizer = torch.optim.SGD(model.parameters())\nmodel.share_memory()\n", Verdict.REFUSED),
        ("from accelerate import Accelerator\naccelerator = Accelerator()\n", Verdict.TRAINS),
        ("import monai\nmonai.Trainer(model=net)\n", Verdict.TRAINS),
    ],
)
def test_the_verdict_on_a_file_is_that_of_its_worst_finding(code, expected, tmp_path):
    path = tmp_path / "code.py"
    path.write_text(code)
    assert check_paths([str(path)]).verdicts.get(str(path), Verdict.NOTHING) is expected
