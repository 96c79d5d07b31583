"""Imports are followed as Python would, without running anything."""

from __future__ import annotations

import ast
import os

import pytest

from ignite_ipu.migration.analysis.reach import CodeBase, imports_of


def reached(start, **files):
    """Return the files that `start` reaches in a code base below /p; `a__b` stands for a/b.py."""
    texts = {
        f"/p/{name.replace('__', '/')}.py".replace("/init.py", "/__init__.py"): text for name, text in files.items()
    }
    found = CodeBase(texts).reached({path: imports_of(ast.walk(ast.parse(text))) for path, text in texts.items()})
    return sorted(os.path.relpath(path, "/p") for path in found[f"/p/{start}"])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import a.b", ["a/__init__.py", "a/b.py"]),
        ("import a", ["a/__init__.py"]),
        ("from a import b, c", ["a/__init__.py", "a/b.py"]),
        ("from a.b import *", ["a/__init__.py", "a/b.py"]),
        ("def f():\n    from a.b import model", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module('a.b')", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module(f'a.{name}')", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module('a.' + name)", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module('a.' + name + '_model')", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module('a.{}'.format(name))", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module('a.%s' % name)", ["a/__init__.py", "a/b.py"]),
        ("importlib.import_module(f'{name}.b')", []),
        ("importlib.import_module(f'a_{name}')", []),
        ("import torch, b", []),
    ],
)
def test_statements(statement, expected):
    assert reached("train.py", train=statement, a__init="", a__b="") == expected


def test_relative_imports_and_what_they_lead_to():
    files = {"p__init": "from .a import f", "p__a": "from . import b", "p__b": "from ..q.c import x", "q__c": ""}
    assert reached("p/__init__.py", **files) == ["p/__init__.py", "p/a.py", "p/b.py", "q/c.py"]


def test_roots_that_scripts_put_on_the_path():
    """A script's own folder, those above it, and folders beside these that are no packages, such as src."""
    assert reached("tools/train.py", tools__train="import lib.x", src__lib__x="", lib2__x="") == ["src/lib/x.py"]
    assert reached("tools/train.py", tools__train="import x", x="") == ["x.py"]
    assert reached("train.py", train="import x", package__init="", package__x="") == []


def test_packages_without_an_init():
    assert reached("a.py", a="from models.net import Net", models__net="") == ["models/net.py"]
    assert reached("a.py", a="importlib.import_module(f'models.{n}')", models__net="") == ["models/net.py"]


def test_the_nearest_of_several():
    files = {"one__train": "import utils", "one__utils": "", "two__utils": "", "utils": ""}
    assert reached("one/train.py", **files) == ["one/utils.py"]


def test_circles_end():
    assert reached("a.py", a="import b", b="import a") == ["a.py", "b.py"]
