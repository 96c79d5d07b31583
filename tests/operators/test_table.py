"""The table of operators holds together, and its page is the one in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ignite_ipu.emulator.trace import operators
from ignite_ipu.operators import table as operator_table
from tests.operators import page as operator_page

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_page_is_the_one_in_the_documentation():
    """`python -m tests.operators.page > docs/operators.md` writes it."""
    assert PAGE.read_text(encoding="utf-8") == operator_page.page()


def test_no_operator_is_on_both_sides():
    compiled = {name for names in operator_table.GROUPS.values() for name in names}
    refused = {name for kind, names in operator_table.KINDS.items() for name in (kind, *names)}
    assert not compiled & refused
    assert set(operator_table.KINDS) >= operator_table.UNTRACEABLE


def test_every_rule_of_an_argument_is_used_and_exists():
    named = {restriction.rule for restriction in operator_table.RESTRICTIONS if restriction.rule}
    assert named == set(operators._RULES)


@pytest.mark.parametrize("restriction", operator_table.RESTRICTIONS, ids=lambda each: f"{each.of[0]} {each.says[:30]}")
def test_arguments_are_of_operators_that_compile(restriction):
    """And their names are PyTorch's."""
    for name in restriction.of:
        if name.startswith("nn."):
            assert issubclass(getattr(nn, name[3:]), nn.Module)
            assert operator_table.full_name(name) not in operator_table.LAYERS
        else:
            plain = operator_table.undecorated(name)
            assert operator_table.compiles(plain) or plain.endswith("_with_indices"), plain
            assert operator_table.restricted(plain)


@pytest.mark.parametrize("name", operator_table.LAYERS)
def test_layers_that_do_not_compile_fail_for_a_kind_that_does_not(name):
    """Or for no kind alone."""
    kind = operator_table.LAYERS[name]
    assert kind in operator_table.KINDS or kind in ("", "item")
    if hasattr(nn, name.split(".")[-1]):  # PyTorch 2.0 has no circular padding
        assert issubclass(getattr(nn, name.split(".")[-1]), nn.Module)


@pytest.mark.parametrize("name", ["__iadd__", "add_", "add", "__radd__"])
def test_marks_of_python_and_of_in_place_operators_do_not_count(name):
    assert operator_table.canonical(name) == "add" and operator_table.compiles(name)


def test_a_mark_counts_where_the_table_says_so():
    """`unsqueeze_` is another kind than `unsqueeze`."""
    assert operator_table.compiles("unsqueeze") and operator_table.refused("unsqueeze_") == "as_strided"
    assert torch.ones(2).unsqueeze_(0).shape == (1, 2)
