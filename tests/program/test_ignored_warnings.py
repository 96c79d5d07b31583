"""Warnings are ignored for a while, and those that were shown are not shown again."""

from __future__ import annotations

import warnings

from ignite_ipu.program.ignored_warnings import ignored_warnings


def old_name(text: str) -> None:
    warnings.warn(text, FutureWarning, stacklevel=2)


def test_shown_warnings_are_not_shown_again():
    """As they are after `warnings.catch_warnings`."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(3):
            with ignored_warnings("ignored"):
                old_name("ignored here")
            old_name("use the new name")
    assert [str(each.message) for each in shown] == ["use the new name"]


def test_filters_are_put_back():
    before = list(warnings.filters)
    with ignored_warnings():
        old_name("ignored")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
    assert list(warnings.filters) == before
