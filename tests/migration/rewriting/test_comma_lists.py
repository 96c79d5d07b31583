"""Arguments come and go without the layout and the comments of the others."""

from __future__ import annotations

import libcst as cst
import pytest

from ignite_ipu.migration.rewriting.comma_lists import with_argument, without_arguments


def named(call, name):
    return [arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, d=1)", "f(a)"),
        ("f(d=1)", "f()"),
        ("f(d=1, b=2)", "f(b=2)"),
        ("f(a, d=1, b=2,)", "f(a, b=2,)"),
        ("f(\n    a,\n    d=1,\n    # what comes out\n    b=2,\n)", "f(\n    a,\n    # what comes out\n    b=2,\n)"),
        ("f(\n    m={},  # both\n    d=1,\n)", "f(\n    m={},  # both\n)"),
        ("f(\n    c,  # c\n    d=1  # d\n)", "f(\n    c  # c\n)"),
        ("f(\n    c,\n    d=1,  # d\n    # the end\n)", "f(\n    c,\n    # the end\n)"),
        ("f(\n    # first\n    d=1,\n    b=2\n)", "f(\n    # first\n    b=2\n)"),
        ("f(  # call\n    d=1,  # d\n    b=2)", "f(  # call\n    b=2)"),
        ("f(a,\n  d=1)", "f(a)"),
        ("f(a,  # a\n  d=1)", "f(a  # a\n  )"),
        ("f(a,\n  d=1, b=2)", "f(a,\n  b=2)"),
        ("f(a, d=1,\n  b=2)", "f(a,\n  b=2)"),
    ],
)
def test_an_argument_less(before, after):
    call = cst.parse_expression(before)
    assert cst.Module([]).code_for_node(without_arguments(call, named(call, "d"))) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(d=1)"),
        ("f(a)", "f(a, d=1)"),
        ("f(a, b,)", "f(a, b, d=1,)"),
        ("f(\n    a,\n    b,  # b\n)", "f(\n    a,\n    b,  # b\n    d=1,\n)"),
        ("f(\n    a,  # a\n    b  # b\n    # the end\n)", "f(\n    a,  # a\n    b,  # b\n    d=1\n    # the end\n)"),
        ("f(\n    a, b  # b\n)", "f(\n    a, b, d=1  # b\n)"),
        ("f(a,\n  b)", "f(a,\n  b,\n  d=1)"),
    ],
)
def test_an_argument_more(before, after):
    new = cst.parse_expression("g(d=1)").args[0].with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    assert cst.Module([]).code_for_node(with_argument(cst.parse_expression(before), new)) == after
