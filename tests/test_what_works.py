"""The page of working features names existing tests, names and commands."""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import inspect
import re

import pytest
import torch
from torch import nn

import ignite_ipu
import ignite_ipu.emulator as poptorch
from ignite_ipu.cli.command import COMMANDS
from tests.what_works import HERE, PAGE, page, rows

ROWS = list(rows())
MODULES = {
    name: f"ignite_ipu.{name}" for name in ("checkpoints", "deferred", "emulator", "handlers", "pipeline", "running")
}
OBJECTS = {
    "accelerator": ignite_ipu.IPUAccelerator,
    "executor": poptorch.PoplarExecutor,
    "model": nn.Module,
    "optimizer": torch.optim.Optimizer,
    "options": poptorch.Options(),
    "parameter": nn.Parameter,
    "poptorch": poptorch,
    "trainer": ignite_ipu.IPUTrainer,
}


def test_the_page_is_up_to_date():
    """`python -m tests.what_works` writes it."""
    assert PAGE.read_text() == page()


def test_there_are_such_tests():
    named = {test for row in ROWS for test in row.tests}
    texts = {file: (HERE / file).read_text() for file in {test.partition("::")[0] for test in named}}
    defined = {
        f"{file}::{name}" for file, text in texts.items() for name in re.findall(r"^ *def (test_\w+)", text, re.M)
    }
    assert named - defined == set()


@pytest.mark.skipif(not hasattr(OBJECTS["accelerator"], "check_trigger"), reason="accelerate 0.20 has fewer")
def test_there_are_such_names():
    """Functions with their arguments, commands with their options, and variables, in every row that works."""
    wrong = [
        (row.what, code)
        for row in ROWS
        if row.sign != "-"
        for code in re.findall("`([^`]+)`", row.how)
        if not known(code)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "code", ["poptorch.nope", "create_ipu_trainer(nope=1)", "ignite-ipu nope", "ignite-ipu run --nope"]
)
def test_a_name_that_there_is_not_is_noticed(code):
    assert not known(code)


def known(code):
    """Return whether the object that a piece of code names exists."""
    if code.startswith("ignite-ipu "):
        return is_command(*code.split()[1:])
    if re.fullmatch("[A-Z_]+(=[a-z0-9]+)?", code):
        return f"`{code.partition('=')[0]}`" in (PAGE.parent / "environment.md").read_text()
    node = ast.parse(code, mode="eval").body
    if not isinstance(node, ast.Call):
        return resolved(node) is not None
    function = resolved(node.func)
    return function is not None and (
        function is print or {each.arg for each in node.keywords} <= set(inspect.signature(function).parameters)
    )


def resolved(node):
    """Return the object of a chain of names, None where there is none."""
    if isinstance(node, ast.Attribute):
        return getattr(resolved(node.value), node.attr, None)
    if node.id in MODULES:
        return importlib.import_module(MODULES[node.id])
    return OBJECTS.get(node.id) or getattr(ignite_ipu, node.id, None) or getattr(builtins, node.id, None)


def is_command(name, *options):
    if name not in COMMANDS:
        return False
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name].module).add_arguments(parser)
    return {each for each in options if each.startswith("-")} <= set(parser._option_string_actions)
