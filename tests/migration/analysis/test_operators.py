"""The facts of `check` about operators: the arguments that the table names, at the positions of PyTorch's."""

from __future__ import annotations

import inspect
import pydoc
import re

import pytest
import torch
from torch import nn

from ignite_ipu.migration.analysis.operators import COMPUTED, is_handled, problem, refused_arguments
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.source.file import Source
from ignite_ipu.operators import table as operator_table
from ignite_ipu.program.forward.equivalents import EQUIVALENTS

NAMES = sorted(
    {
        operator_table.full_name(name)
        for restriction in operator_table.RESTRICTIONS
        for name in restriction.of
        if restriction.argument and name.startswith(("nn.", "F."))
    }
)


def parameters(name):
    """Return the names of the parameters of PyTorch's function or layer, in order."""
    module, _, last = name.rpartition(".")
    found = pydoc.locate(f"{module}._{last}") or pydoc.locate(name)  # the former where one of two is called
    if isinstance(found, type) and issubclass(found, nn.RNNBase):
        names = list(inspect.signature(nn.RNNBase).parameters)[1:]  # without `mode`, which the class gives
        return [*names[:3], "nonlinearity", *names[3:]] if found is nn.RNN else names
    try:
        return list(inspect.signature(found).parameters)
    except ValueError:
        pytest.skip("a built-in function, without a signature")


@pytest.mark.parametrize("name", NAMES)
def test_positions_are_those_of_pytorch(name):
    """Those of the table; omitted ones stand behind them, or have no position."""
    order = operator_table.positions(name)
    assert order, "its arguments have no order in the table"
    found = parameters(name)
    assert set(list(order)[: len(found)]) <= {*found, "proj_size", "bias"}  # that of nn.LayerNorm came with PyTorch 2.1
    for restriction in operator_table.restrictions_of(name):
        for argument in restriction.argument:
            if argument in order and argument in found:
                assert found[order[argument]] == argument


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.nn.HuberLoss", "made of huber_loss"),
        ("torch.nn.functional.huber_loss", "does not compile"),
        ("torch.quantile", "made of lerp"),
        ("Tensor.unsqueeze_", "made of as_strided"),
        ("torch.nn.AdaptiveMaxPool2d", "made of adaptive_max_pool2d"),
        ("torch.special.xlogy", "made of xlogy"),
        ("torch.no_such_operator", "does not have"),
    ],
)
def test_what_does_not_compile(name, words):
    assert words in problem(name).message


@pytest.mark.parametrize(
    "name",
    ["torch.erf", "Tensor.flip", "Tensor.unsqueeze", "torch.nn.Fold", "torch.nn.init.zeros_", "Tensor.cuda"],
)
def test_what_compiles(name):
    assert problem(name) is None


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Tensor.topk", "x.topk(4, sorted=False)", ["handed on"]),
        ("Tensor.topk", "x.topk(4, -1, True, False)", ["handed on"]),
        ("torch.topk", "torch.topk(x, 4, -1, True, False)", ["handed on"]),
        ("torch.topk", "torch.topk(x, 4)", []),
        ("torch.argsort", "torch.argsort(x, stable=True)", ["stable=True"]),
        ("Tensor.repeat_interleave", "x.repeat_interleave(2)", ["output_size"]),
        ("Tensor.repeat_interleave", "x.repeat_interleave(2, **given)", []),
        ("torch.nn.functional.max_pool2d", "F.max_pool2d(x, 2)", ["stride"]),
        ("torch.nn.functional.max_pool2d", "F.max_pool2d(x, 2, 2)", []),
        ("torch.nn.ConvTranspose2d", "nn.ConvTranspose2d(4, 2, 3, dilation=(1, 2))", ["dilation"]),
        ("torch.nn.ConvTranspose2d", "nn.ConvTranspose2d(4, 2, 3, dilation=(1, d))", []),
        ("torch.nn.GELU", "nn.GELU()", []),
        ("torch.diag_embed", "torch.diag_embed(x)", ["lost"]),
        ("torch.linalg.norm", "torch.linalg.norm(x, 'nuc')", ["nuclear"]),
    ],
)
def test_arguments_are_read_from_the_text(name, code, says):
    """Those that are no literals may be fine."""
    file = ParsedFile(Source("code.py", code))
    found = [restriction.says for _, restriction in refused_arguments(file, name, file.tree.body[0].value)]
    assert len(found) == len(says) and all(word in text for word, text in zip(says, found))


@pytest.mark.skipif(
    nn.RNN(4, 8, 1, "relu").nonlinearity == "tanh", reason="before PyTorch 2.1 it is no positional argument"
)
def test_the_nonlinearity_of_an_rnn_comes_before_its_bias():
    """Its constructor has no signature to compare with."""
    assert nn.RNN(4, 8, 1, "tanh", False).bias is False
    assert nn.RNN(4, 8, 1, "tanh", True, False, 0.0, True).bidirectional is True


def test_every_refused_name_is_an_operator_of_pytorch():
    """Or a part of one, which has no name of its own in Python."""
    names = {name for kind, made in operator_table.KINDS.items() for name in (kind, *made)}
    public = {name for name in names if not name.startswith("_")}
    unknown = {name for name in public if not hasattr(torch.ops.aten, name) and not hasattr(nn.functional, name)}
    methods = {name for name in unknown if not hasattr(torch.Tensor, name) and not hasattr(torch.Tensor, f"{name}_")}
    assert methods <= {"lshift", "rshift", "item", "lu", "pdist"} | {n for n in methods if n.endswith("_with_indices")}


def test_what_run_computes_by_others_is_listed():
    """`check` lists it, to import no torch."""
    functions = (func for func in EQUIVALENTS if func.__name__[:2] != "__")  # but Python's own
    names = {re.sub("^(special|linalg)_", "", func.__name__) for func in functions}
    assert {name.rstrip("_") for name in names} == set(COMPUTED)
    assert all(is_handled(f"torch.Tensor.{name}") for name in names if name.endswith("_"))


@pytest.mark.parametrize("owner", ["torch", "torch.Tensor", "torch.nn.functional", "torch.linalg", "torch.special"])
def test_run_computes_by_others_those_that_check_takes_as_handled(owner):
    """Of the functions that do not compile; in place they are of the same kind."""
    place = pydoc.locate(owner)
    names = [name for name in dir(place) if callable(getattr(place, name)) and name[:2] != "__"]
    refused = {name: getattr(place, name) for name in names if problem(f"{owner}.{name}") is not None}
    handled = {name for name, function in refused.items() if is_handled(f"{owner}.{name}")}
    assert handled == {name for name, function in refused.items() if _is_computed(function)}


def _is_computed(function):
    return inspect.isroutine(function) and function in EQUIVALENTS
