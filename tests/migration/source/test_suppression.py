"""A comment silences the rules it names, on its own line only."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.source.file import Source


def found(code):
    findings, suppressed = check_source(Source("code.py", code))
    return [(finding.line, finding.rule) for finding in findings], suppressed


@pytest.mark.parametrize(
    "comment",
    [
        "# ignite-ipu: ignore",
        "# ignite-ipu: ignore[cuda-device]",
        "#ignite-ipu:ignore[ small-batch-norm , cuda-device ]",
        "# noqa  # ignite-ipu: ignore[cuda-device] because of the other GPU",
    ],
)
def test_line_is_silenced(comment):
    assert found(f"x.cuda()  {comment}\ny.cuda()\n") == ([(2, "cuda-device")], 1)


@pytest.mark.parametrize("comment", ["# ignite-ipu: ignore[small-batch-norm]", "# ignite-ipu ignore", "# ignore"])
def test_other_comments_do_nothing(comment):
    assert found(f"x.cuda()  {comment}\n") == ([(1, "cuda-device")], 0)


def test_text_in_a_string_is_no_comment():
    assert found('x.cuda("# ignite-ipu: ignore")\n')[0] == [(1, "cuda-device")]


def test_calls_over_several_lines_are_silenced_at_either_end():
    code = "from ignite.engine import create_supervised_trainer as c\nc(\n    m,\n){}\n"
    assert found(code.format("")) == ([(2, "native-ignite-engine")], 0)
    assert found(code.format("  # ignite-ipu: ignore[native-ignite-engine]")) == ([], 1)
