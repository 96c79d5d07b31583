"""What is public is listed, found and explained."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

import ignite_ipu.handlers

PACKAGES = (
    "ignite_ipu.handlers",
    "ignite_ipu.checkpoints",
    "ignite_ipu.pipeline",
    "ignite_ipu.handlers.recovery.decisions",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_listed_is_there_and_explained(name):
    """Every public name can be imported; classes and functions say what they give."""
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), public


def test_handlers_export_what_their_modules_make_public():
    """A handler that a module lists is one that users find in the package."""
    found = set()
    for info in pkgutil.iter_modules(ignite_ipu.handlers.__path__):
        found |= set(import_module(f"ignite_ipu.handlers.{info.name}").__all__)
    assert found == set(ignite_ipu.handlers.__all__)
