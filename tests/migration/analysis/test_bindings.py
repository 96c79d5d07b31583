"""Names that statements read and bind."""

from __future__ import annotations

import ast

import pytest

from ignite_ipu.migration.analysis.names import names_bound, names_loaded


@pytest.mark.parametrize(
    ("text", "bound", "loaded"),
    [
        ("a = b", {"a"}, {"b"}),
        ("total = sum(loss for loss in losses)", {"total"}, {"sum", "losses"}),
        ("batch = {k: v.to(device) for k, v in batch.items()}", {"batch"}, {"device", "batch"}),
        ("x = [x for x in x]", {"x"}, {"x"}),
        ("y = [f(x) for x in xs if x] + [x]", {"y"}, {"f", "xs", "x"}),
    ],
)
def test_variables_of_comprehensions_are_left_out(text, bound, loaded):
    """They exist in their comprehension alone, except in the iterable of its first loop."""
    (statement,) = ast.parse(text).body
    assert names_bound(statement) == bound
    assert names_loaded(statement) == loaded
