"""Marks of constant and variable hyper-parameters."""

from __future__ import annotations

import copy

import pytest

from ignite_ipu.emulator.optim import VariableAttributes


def test_only_marked_names_are_variable() -> None:
    marks = VariableAttributes(["lr"], ["lr", "betas"])
    assert not marks.isConstant("lr")
    assert marks.isConstant("betas")
    assert marks.isConstant("nobody knows this name")


def test_marks_can_be_set_and_taken_back_any_number_of_times() -> None:
    marks = VariableAttributes(["lr"], ["lr", "betas"])
    marks.markAsVariable("betas")
    marks.markAsVariable("betas")
    marks.markAsConstant("betas")
    marks.markAsConstant("lr")
    assert marks.isConstant("betas") and marks.isConstant("lr")


@pytest.mark.parametrize("method", ["markAsConstant", "markAsVariable"])
def test_unknown_names_cannot_be_marked(method: str) -> None:
    with pytest.raises(AssertionError, match=r"Unknown attribute 'momentum'.*only betas, lr"):
        getattr(VariableAttributes([], ["lr", "betas"]), method)("momentum")


def test_a_copy_has_marks_of_its_own() -> None:
    marks = VariableAttributes([], ["lr"])
    other = copy.copy(marks)
    assert other == marks
    other.markAsVariable("lr")
    assert other != marks
    assert marks.isConstant("lr")
    assert "variable=['lr']" in repr(other)
