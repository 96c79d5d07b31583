"""Binding of a call's arguments, refusals, and the parts that a later call may not change."""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.values.arguments import ArgsParser, fits


class Fn(nn.Module):
    """A model whose forward is given."""

    def forward(self, *args, **kwargs):
        raise NotImplementedError


def model_of(function, options=None):
    net = Fn()
    net.__class__ = type("Fn", (Fn,), {"forward": lambda self, *a, **k: None})
    type(net).forward = function
    return poptorch.inferenceModel(net, options)


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


class Holder:
    """A type with a parser."""

    def __init__(self, tensor, note):
        self.tensor, self.note = tensor, note


class HolderParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.tensor

    def reconstruct(self, original_structure, tensor_iterator):
        return Holder(next(tensor_iterator), original_structure.note)


@pytest.fixture
def holder():
    poptorch.registerCustomArgParser(Holder, HolderParser())
    yield
    poptorch.registerCustomArgParser(Holder, None)


X, Y = torch.ones(2, 3), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((X, X, 1, 2), {}, AssertionError, "Too many arguments provided"),
        ((X,), {"z": 1}, AssertionError, "z is not a valid parameter"),
        ((X,), {"x": X}, AssertionError, "x was passed more than once"),
        ((), {"y": X}, poptorch.Error, "Mandatory parameter x missing"),
    ],
)
def test_arguments_that_do_not_fit_forward(args, kwargs, error, words):
    model = model_of(lambda self, x, y=None, *, scale=1: x * scale)
    with pytest.raises(error, match=words):
        model(*args, **kwargs)
    assert not model.isCompiled()
    model(X)
    with pytest.raises(error, match=words):
        model(*args, **kwargs)


def test_a_default_counts_as_passed():
    model = model_of(lambda self, x, factor=3, *, offset=1: x * factor + offset)
    assert torch.equal(model(X), 4 * X)
    assert torch.equal(model(X, 3), 4 * X)
    assert torch.equal(model(x=X, factor=3, offset=1), 4 * X)
    with pytest.raises(poptorch.Error, match="Value mismatch for factor: expected 3 but got 4"):
        model(X, factor=4)
    with pytest.raises(poptorch.Error, match="Value mismatch for offset"):
        model(X, offset=2)


def test_none_at_the_first_call_is_none_for_good():
    model = model_of(lambda self, x, mask=None: x if mask is None else x * mask)
    model(X)
    with pytest.raises(poptorch.Error, match="Type mismatch for mask"):
        model(X, X)


def test_variadic_arguments():
    model = model_of(lambda self, *args, **kwargs: args[0] + args[1] * kwargs["k"])
    assert torch.equal(model(X, X, k=2 * X), 3 * X)
    with pytest.raises(poptorch.Error, match="Number of positional arguments mismatch"):
        model(X, X, X, k=X)
    with pytest.raises(poptorch.Error, match=r"Keys mismatch for.*Unexpected arguments:.*'m'.*"):
        model(X, X, k=X, m=1)
    with pytest.raises(poptorch.Error, match=r"Keys mismatch for.*Missing arguments:.*'k'"):
        model(X, X)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for \*args\[1\]"):
        model(X, X[:1], k=X)
    with pytest.raises(poptorch.Error, match="Data type mismatch for k"):
        model(X, X, k=X.int())


NESTED = [
    ("tuple", (X, 1), (X, 2), r"Value mismatch for x\[1\]"),
    ("longer tuple", (X, 1), (X, 1, 1), "Length mismatch for x"),
    ("list for a tuple", (X, 1), [X, 1], "Type mismatch for x"),
    ("dict", {"a": X}, {"a": X[:1]}, r"Shape mismatch for x\[a\]"),
    ("dict keys", {"a": X, "b": 1}, {"a": X, "c": 1}, r"Keys mismatch for x: Unexpected.*'c'.*Missing.*'b'"),
    ("named tuple", Pair(X, 1), Pair(X, 2), r"Value mismatch for x\[1\]"),
    ("plain tuple for a named one", Pair(X, 1), (X, 1), "Type mismatch for x"),
    ("list", [X, X], [X, X[:1]], r"Shape mismatch for x\[1\]"),
    ("longer list", [X], [X, X], "Length mismatch for x"),
    ("list without tensors", [1, 2], [1, 3], "Value mismatch for x"),
    ("number type", 1, 1.0, "Type mismatch for x"),
    ("bool for a number", 1, True, "Type mismatch for x"),
    ("string", "a", "b", "Value mismatch for x"),
    ("parameter for a tensor", X, nn.Parameter(X), "Type mismatch for x"),
    ("tensor for a parameter", nn.Parameter(X), X, "Type mismatch for x"),
]


@pytest.mark.parametrize(("compiled", "given", "words"), [case[1:] for case in NESTED], ids=[c[0] for c in NESTED])
def test_a_later_call_that_differs(compiled, given, words):
    model = model_of(lambda self, t, x: t * 1)
    model(Y, compiled)
    model(Y, compiled)
    with pytest.raises(poptorch.Error, match=words) as refusal:
        model(Y, given)
    assert "destroy()" in str(refusal.value)
    model(Y, compiled)


def test_lists_of_tensors_are_compared_by_their_tensors_alone():
    model = model_of(lambda self, x: x[0] * x[1])
    assert torch.equal(model([X, 2]), 2 * X)
    assert torch.equal(model([X, 5]), 2 * X), "the number is frozen, and nobody compares it"


def test_custom_types(holder):
    model = model_of(lambda self, x: Holder(x.tensor * 2, x.note))
    result = model(Holder(X, "first"))
    assert torch.equal(result.tensor, 2 * X) and result.note == "first"
    assert torch.equal(model(Holder(3 * X, "second")).tensor, 6 * X)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for x\[0\]"):
        model(Holder(X[:1], "first"))


def test_a_subclass_of_a_custom_type_is_its_parsers_too(holder):
    """Later calls are not compared with the parser's result for the trace."""

    class Narrower(Holder):
        pass

    model = model_of(lambda self, x: x.tensor * 2)
    assert torch.equal(model(Narrower(X, "first")), 2 * X)
    assert torch.equal(model(Narrower(3 * X, "second")), 6 * X)
    with pytest.raises(poptorch.Error, match=r"Type mismatch for x: expected .*Narrower but got Holder"):
        model(Holder(X, "third"))


def test_dicts_work_in_any_order_and_are_warned_of_once_each(caplog):
    model = model_of(lambda self, d, e: d["a"] - d["b"] + e["c"])
    expected = X * 2
    assert torch.equal(model({"a": 3 * X, "b": X}, {"c": Y}), expected)
    assert torch.equal(model({"b": X, "a": 3 * X}, {"c": Y}), expected)
    assert caplog.text.count("Dicts as inputs only have partial support") == 2
    with pytest.raises(poptorch.Error, match="Type mismatch for d"):
        model(OrderedDict(a=X, b=X), {"c": Y})


def test_tensors_are_found_at_any_depth():
    model = model_of(lambda self, x: x["a"][0][1].left + x["b"])
    assert torch.equal(model({"a": [(1, Pair(X, None))], "b": X}), 2 * X)
    assert torch.equal(model({"b": 2 * X, "a": [(1, Pair(X, None))]}), 3 * X)


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.float64, torch.float32),
        (torch.int64, torch.int32),
        (torch.int32, torch.int32),
        (torch.int16, torch.int16),
        (torch.int8, torch.int8),
        (torch.uint8, torch.uint8),
        (torch.bool, torch.bool),
    ],
)
def test_types_of_inputs_and_outputs(given, returned):
    x = torch.tensor([[0], [1]]).to(given)
    result = model_of(lambda self, x: x.clone())(x)
    assert result.dtype is returned and torch.equal(result, x.to(returned))


def test_float64_is_float32_on_the_device():
    net = nn.Linear(3, 2)
    x = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close(poptorch.inferenceModel(net)(x), net(x.float()).detach())
    assert poptorch.inferenceModel(nn.Linear(3, 2).double())(x).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_types_that_the_device_has_not(dtype):
    with pytest.raises(poptorch.Error, match="Unsupported input type"):
        model_of(lambda self, x: x)(X.to(dtype))


def test_sparse_tensors_are_refused():
    with pytest.raises(poptorch.Error, match=r"Unsupported input type torch.sparse_coo of torch.float32 for x"):
        model_of(lambda self, x: x)(torch.eye(2).to_sparse())


def test_integers_beyond_32_bits_are_refused_on_every_call():
    """PopTorch would cut them silently."""
    model = model_of(lambda self, x: x + 0)
    good = torch.tensor([2**31 - 1, -(2**31)])
    assert model(good).tolist() == good.tolist()
    with pytest.raises(poptorch.Error, match=r"Input x of torch\.int64 holds values from 0 to 2147483648"):
        model(torch.tensor([2**31, 0]))


def test_zero_sized_inputs_are_refused():
    with pytest.raises(poptorch.Error, match="Zero-sized tensors are unsupported"):
        model_of(lambda self, x: x)(torch.zeros(0, 3))


def test_inputs_that_require_gradients_are_detached_with_one_warning(caplog):
    model = model_of(lambda self, x: x * 2)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert not model(x).requires_grad
    assert caplog.text.count("Input tensor has requires_grad=True set") == 1


def test_inputs_that_are_not_contiguous_are_copied_with_one_warning_an_executor(caplog):
    model = model_of(lambda self, x, y: x + y)
    x = torch.arange(6.0).reshape(2, 3).t()
    for _ in range(2):
        assert torch.equal(model(x, x), 2 * x)
    assert caplog.text.count("input tensor is not contiguous") == 1


@pytest.mark.parametrize("kind", ["plain", "not contiguous", "float64", "int64", "requires grad"])
@pytest.mark.parametrize("training", [False, True])
def test_inputs_that_forward_changes_come_back(kind, training):
    x = torch.arange(6.0).reshape(2, 3)
    x = {"not contiguous": x.t(), "float64": x.double(), "int64": x.long()}.get(kind, x).clone(
        memory_format=torch.preserve_format
    )
    expected = x + 1
    x.requires_grad_(kind == "requires grad")

    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            x.add_(1)
            return poptorch.identity_loss(x * self.weight, "mean")

    net = Adds()
    model = poptorch.trainingModel(net) if training else poptorch.inferenceModel(net)
    model(x)
    assert torch.equal(x.detach(), expected)


def test_a_0_dimensional_input_counts_as_one_row():
    scalar = torch.tensor(3.0)
    assert model_of(lambda self, x: x * 2)(scalar) == 6
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        model_of(lambda self, x: x * 2, poptorch.Options().deviceIterations(2))(scalar)


def test_every_tensor_is_cut_alike_wherever_it_is():
    model = model_of(lambda self, x, *, more: (x.sum(), more["k"][0].sum()), poptorch.Options().deviceIterations(2))
    first, second = model(torch.tensor([1.0, 2.0]), more={"k": [torch.arange(4.0)]})
    assert first.tolist() == [1.0, 2.0] and second.tolist() == [1.0, 5.0]
    with pytest.raises(AssertionError, match=r"In the input more\[k\]\[0\]"):
        model_of(lambda self, x, *, more: x, poptorch.Options().deviceIterations(2))(
            torch.zeros(2), more={"k": [torch.zeros(3)]}
        )


def test_frozen_objects_are_compared_by_value():
    model = model_of(lambda self, x, kind: x * (2 if kind == numpy.float32(1.5) else 1))
    model(X, numpy.float32(1.5))
    model(X, numpy.float32(1.5))
    with pytest.raises(poptorch.Error, match="Value mismatch for kind"):
        model(X, numpy.float32(2.5))


ARRAY = numpy.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("compiled", "same", "other"),
    [
        (ARRAY, ARRAY.copy(), ARRAY + 1),
        (ARRAY, ARRAY.copy(), ARRAY[:1]),
        (ARRAY, ARRAY.copy(), ARRAY.astype(numpy.float32)),
        ([ARRAY, ARRAY], [ARRAY.copy(), ARRAY.copy()], [ARRAY, ARRAY + 1]),
        (math.nan, math.nan, 1.0),
    ],
)
def test_frozen_values_that_do_not_compare_as_one(compiled, same, other):
    """Arrays are equal if all their elements are; a default that is not a number is still the same default."""
    model = model_of(lambda self, x, value: x * 1)
    model(X, compiled)
    model(X, same)
    with pytest.raises(poptorch.Error, match="Value mismatch for value"):
        model(X, other)


def test_inputs_on_another_device_are_refused_on_every_call():
    model = model_of(lambda self, x, more: x * 1)
    with pytest.raises(
        poptorch.Error, match="Unsupported input device 'meta' for x: an executor takes tensors on the CPU"
    ):
        model(X.to("meta"), [X])
    model(X, [X])
    for x, more in ((X.to("meta"), [X]), (X, [X.to("meta")])):
        with pytest.raises(poptorch.Error, match="Unsupported input device 'meta'"):
            model(x, more)


def test_calls_with_plain_tensors_alone_are_told_by_their_shapes():
    """Fitting arguments need no binding; all others are left to it, and to its errors."""

    def forward(x, y, scale=None):
        raise NotImplementedError

    signature = ArgsParser(forward)
    x, y = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    shapes = signature.shapes_of_tensors(signature.bind((x, y), {}).frozen())
    assert shapes == [((2, 3), torch.float32), ((2,), torch.int64)]
    assert fits(shapes, (x + 1, y))
    for args in ((x,), (x, y, None), (x, y.int()), (x[:1], y), (nn.Parameter(x), y), (x, [y])):
        assert not fits(shapes, args)
    assert signature.shapes_of_tensors(signature.bind((x, y), {"scale": 2.0}).frozen()) is None
    assert signature.shapes_of_tensors(signature.bind((x, [y]), {}).frozen()) is None


def test_variadic_tensors_need_no_binding_either():
    """As many as were compiled, of the same shapes and types; otherwise binding raises its errors."""

    def forward(first, *rest):
        """Take any number of tensors."""

    signature = ArgsParser(forward)
    given = (X, Y[0], X.int())
    shapes = signature.shapes_of_tensors(signature.bind(given, {}).frozen())
    assert shapes == [(value.shape, value.dtype) for value in given]
    assert fits(shapes, given)
    assert signature.shapes_of_tensors(signature.bind((X, 2, Y), {}).frozen()) is None

    model = model_of(lambda self, *values: sum(values))
    assert torch.equal(model(X, Y, X), X + Y + X)
    assert torch.equal(model(Y, X, Y), Y + X + Y)
    for values, words in (((X, Y), "Number of positional"), ((X, Y[:1], X), "Shape mismatch"), ((X, Y, 1), "Type")):
        with pytest.raises(poptorch.Error, match=words):
            model(*values)


def test_a_parser_takes_modules_and_functions_only():
    with pytest.raises(TypeError, match=r"Expected a .*Module or a callable"):
        ArgsParser(3)
    bound = ArgsParser(lambda x, y=2: x)((1,), {})
    assert (bound.args, bound.kwargs, bound.arg_names) == ((1, 2), {}, ["x", "y"])


def test_programs_write_parameters_of_their_own_into_an_executors_parser():
    """Drivers that pack a batch into a flat list of tensors name these before each step."""

    class Packed(torch.nn.Module):
        def forward(self, *tensors):
            return tensors[0] + tensors[1]

    executor = poptorch.inferenceModel(Packed())
    assert not executor._is_attached
    for _ in range(2):
        executor._args_parser._varnames = ["first", "second"]
        executor._args_parser._var_kinds = [inspect.Parameter.VAR_POSITIONAL] * 2
        assert executor(torch.ones(1), torch.ones(1)).tolist() == [2]
    assert executor._is_attached


def test_subclasses_may_leave_kinds_and_defaults_out():
    """As a runner for detection models does, which was written for an older PopTorch."""

    class Flat(ArgsParser):
        def __init__(self, inputs):
            self._has_variadic_arguments = True
            self._varnames = list(inputs)
            self._defaults = [inspect.Parameter.empty for _ in inputs]
            self._warned_not_contiguous_input = False

    executor = poptorch.inferenceModel(torch.nn.Linear(2, 1))
    executor._args_parser = Flat({"args": ()})
    assert executor(torch.ones(3, 2)).shape == (3, 1)
    with pytest.raises(AssertionError, match="Too many arguments"):
        executor(torch.ones(3, 2), 1)
