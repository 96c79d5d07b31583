"""The arguments of a call: bound to forward's signature, taken apart, and compared with the compiled ones."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.values.structures import find_parser, flatten_tensors, map_tensors
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_DEFAULT = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FLOATS = (torch.float32, torch.float16, torch.float64)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_ADVICE = (
    " The compiled graph is for the arguments of the first call: create a new wrapper, or call destroy() on this one "
    "before calling it with other arguments."
)

Shapes = List[Tuple[torch.Size, torch.dtype]]


class _Parameter(NamedTuple):
    name: str
    kind: inspect._ParameterKind
    default: Any


@dataclasses.dataclass(frozen=True)
class Arguments:
    """One call's arguments, bound to forward's parameters: those of `*args` and `**kwargs`, too.

    Frameworks read `args` and `kwargs`, which PopTorch has as well.
    """

    args: Tuple[Any, ...]  # passed by position
    kwargs: Dict[str, Any]
    names: Tuple[str, ...]  # name of each positional value in error messages
    # Types of values whose parser made something else of them when they were frozen, by name.
    types: Mapping[str, type] = dataclasses.field(default_factory=dict)

    @property
    def arg_names(self) -> List[str]:
        """PopTorch's name for `names`."""
        return list(self.names)

    def named(self) -> Iterator[Tuple[str, Any]]:
        """Yield every argument with the name that messages use for it."""
        yield from zip(self.names, self.args)
        yield from self.kwargs.items()

    def tensors_like(self, compiled: Arguments) -> List[torch.Tensor]:
        """Return the tensors of all arguments in the order in which the graph of `compiled` takes them."""
        positional = [_in_order_of(expected, value) for expected, value in zip(compiled.args, self.args)]
        keyword = [_in_order_of(expected, self.kwargs[name]) for name, expected in compiled.kwargs.items()]
        return flatten_tensors((positional, keyword))

    def frozen(self) -> Arguments:
        """Return these arguments with their tensors' shapes and types only, so that no batch is kept alive."""
        positional, keyword = map_tensors((self.args, self.kwargs), _without_values)
        types = {
            name: type(value)
            for argument, given in self.named()
            for name, value in _named_parts(argument, given)
            if find_parser(value) is not None
        }
        return Arguments(positional, keyword, self.names, {**types, **self.types})

    def named_tensors(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield the tensors of all arguments, named `x`, `x[0]`, `d[key]` ..., in the same order."""
        for argument, given in self.named():
            for name, part in _named_parts(argument, given):
                if isinstance(part, torch.Tensor):
                    yield name, part
                else:
                    for index, tensor in enumerate(flatten_tensors(part)):
                        yield f"{name}[{index}]", tensor


class ArgsParser:
    """Binds calls to the parameters of a model's forward, or of a function.

    The class and its private attributes are PopTorch's. Programs make subclasses with parameters of their own, or write
    other names into an executor's parser before they call it.

    Args:
        model: A module or another callable.

    Raises:
        TypeError: It is neither.
    """

    def __init__(self, model: Any) -> None:
        if not callable(model):
            raise TypeError(f"Expected a torch.nn.Module or a callable, got {type(model).__qualname__}: {model!r}.")
        forward = model.forward if isinstance(model, nn.Module) else model
        parameters = list(inspect.signature(forward).parameters.values())
        self._varnames = [parameter.name for parameter in parameters]
        self._var_kinds = [parameter.kind for parameter in parameters]
        self._has_variadic_arguments = bool({*_VARIADIC} & {*self._var_kinds})
        self._defaults: Any = {parameter.name: parameter.default for parameter in parameters}
        self._warned_not_contiguous_input = False

    # PopTorch's name for bound arguments.
    Args = Arguments

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], fast_path: bool = False) -> Arguments:
        """Return the result of `bind`; `fast_path` makes no difference."""
        return self.bind(args, kwargs)

    def shapes_of_tensors(self, compiled: Arguments) -> Optional[Shapes]:
        """Return shape and type of each argument where all are tensors passed by position, the rest left to defaults.

        A call whose arguments are just such tensors needs no `bind` and no `check_call`. None otherwise.
        """
        count = 0
        while count < len(compiled.args) and type(compiled.args[count]) is torch.Tensor:
            count += 1
        positional = [parameter for parameter in self._parameters() if parameter.kind in _POSITIONAL]
        rest = list(zip(compiled.args[count:], positional[count:]))
        if compiled.kwargs or len(compiled.args) != max(count, len(positional)):
            return None
        if any(value is not parameter.default or isinstance(value, torch.Tensor) for value, parameter in rest):
            return None
        return [(value.shape, value.dtype) for value in compiled.args[:count]]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Bind a call's arguments as Python would, with defaults inserted as if they had been passed.

        Raises:
            AssertionError: Too many arguments, an unknown keyword, or a parameter given twice.
            Error: A parameter without default is missing.
        """
        parameters = self._parameters()
        kinds = {parameter.kind for parameter in parameters}
        positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
        known = [parameter.name for parameter in parameters]
        if len(args) > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise AssertionError(
                f"Too many arguments provided: forward takes {len(positional)} positional, got {len(args)} "
                f"(parameters: {known})."
            )
        left = dict(kwargs)
        for parameter in positional[: len(args)]:
            if parameter.name in left and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                raise AssertionError(f"Parameter {parameter.name} was passed more than once.")
        values = [*args, *(_take(parameter, left) for parameter in positional[len(args) :])]
        names = [parameter.name for parameter in positional]
        names += [f"*args[{index}]" for index in range(len(values) - len(names))]
        by_keyword = (parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
        keyword = {parameter.name: _take(parameter, left) for parameter in by_keyword}
        if left and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise AssertionError(f"{next(iter(left))} is not a valid parameter: forward takes {known}.")
        keyword.update(left)
        return Arguments(tuple(values), keyword, tuple(names))

    def _parameters(self) -> List[_Parameter]:
        """Return the parameters as the attributes have them now; subclasses may leave kinds and defaults out."""
        names: List[str] = self._varnames
        kinds = getattr(self, "_var_kinds", [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(names))
        given = getattr(self, "_defaults", {})
        defaults = given if isinstance(given, dict) else dict(zip(names[len(names) - len(given) :], given))
        return [_Parameter(name, kind, defaults.get(name, _NO_DEFAULT)) for name, kind in zip(names, kinds)]


def fits(shapes: Shapes, args: Sequence[Any]) -> bool:
    """Return whether a call's positional arguments are plain tensors of these shapes and types."""
    if len(args) != len(shapes):
        return False
    for value, (shape, dtype) in zip(args, shapes):
        if type(value) is not torch.Tensor or value.dtype is not dtype or value.shape != shape or not value.is_cpu:
            return False
    return True


def check_for_compile(arguments: Arguments) -> None:
    """Refuse tensors that cannot be compiled for, and warn of those with partial support."""
    for name, value in arguments.named():
        if isinstance(value, dict):
            logger.warning("Dicts as inputs only have partial support (argument %s); prefer a tuple.", name)
    for name, tensor in arguments.named_tensors():
        _check_device(name, tensor)
        if tensor.dtype not in _FLOATS + _INTEGERS or tensor.layout is not torch.strided:
            kind = tensor.dtype if tensor.layout is torch.strided else f"{tensor.layout} of {tensor.dtype}"
            raise backend_error(
                f"Unsupported input type {kind} for {name}: the device takes float32, float16, int32, int16, int8, "
                "uint8 and bool; int64 and float64 are narrowed. Convert it on the host."
            )
        if tensor.numel() == 0:
            raise backend_error(f"Zero-sized tensors are unsupported: {name} has shape {tuple(tensor.shape)}.")
        if tensor.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set (%s): it is detached, no gradient is returned for it.", name
            )


def check_call(compiled: Arguments, given: Arguments) -> None:
    """Compare a call's arguments with those that the model was compiled for."""
    if len(given.args) != len(compiled.args):
        raise python_error(
            f"Number of positional arguments mismatch: expected {len(compiled.args)} but got "
            f"{len(given.args)}.{_ADVICE}"
        )
    for name, expected, value in zip(compiled.names, compiled.args, given.args):
        _compare(name, expected, value, compiled.types)
    _compare_keys("keyword arguments", compiled.kwargs, given.kwargs)
    for name, expected in compiled.kwargs.items():
        _compare(name, expected, given.kwargs[name], compiled.types)


def _compare(name: str, expected: Any, value: Any, types: Mapping[str, type]) -> None:
    expected_type: Any = types.get(name, type(expected))
    if type(value) is not expected_type:
        found = type(value).__qualname__
        raise python_error(f"Type mismatch for {name}: expected {expected_type.__qualname__} but got {found}.{_ADVICE}")
    if isinstance(expected, torch.Tensor) and isinstance(value, torch.Tensor):
        _check_device(name, value)
        if value.dtype is not expected.dtype:
            raise python_error(
                f"Data type mismatch for {name}: expected {expected.dtype} but got {value.dtype}.{_ADVICE}"
            )
        if value.shape != expected.shape:
            raise python_error(
                f"Shape mismatch for {name}: expected {tuple(expected.shape)} but got {tuple(value.shape)}.{_ADVICE}"
            )
        return
    parts = None if isinstance(expected, list) else _parts(expected)
    if parts is not None:
        if isinstance(expected, dict):
            _compare_keys(name, expected, value)
        elif len(value) != len(expected):
            raise python_error(f"Length mismatch for {name}: expected {len(expected)} but got {len(value)}.{_ADVICE}")
        for key, item in parts.items():
            _compare(f"{name}[{key}]", item, value[key], types)
    elif flatten_tensors(expected):
        # Lists and custom types are compared as the tuple of their tensors.
        _compare(name, tuple(flatten_tensors(expected)), tuple(flatten_tensors(value)), {})
    elif not _same(expected, value):
        raise python_error(f"Value mismatch for {name}: expected {expected!r} but got {value!r}.{_ADVICE}")


def _same(expected: Any, value: Any) -> bool:
    """Return whether a frozen value is unchanged; arrays are compared element by element."""
    if value is expected:
        return True
    if not hasattr(expected, "__array__"):
        with contextlib.suppress(ValueError):  # a list of arrays, for example
            return bool(expected == value)
    import numpy

    first, second = numpy.asarray(expected), numpy.asarray(value)
    return first.dtype == second.dtype and bool(numpy.array_equal(first, second))


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        shape: torch.Tensor = torch.empty_like(tensor, device="meta", requires_grad=False)
        return shape if type(tensor) is torch.Tensor else shape.as_subclass(type(tensor))


def _check_device(name: str, tensor: torch.Tensor) -> None:
    # One on the IPU belongs to another trace, which raises its own error.
    if not tensor.is_cpu and tensor.device.type != "ipu":
        raise backend_error(
            f"Unsupported input device {str(tensor.device)!r} for {name}: an executor takes tensors on the CPU and "
            "moves them to the IPU itself. Remove the call that moved it, or call .cpu() on it."
        )


def _compare_keys(name: str, expected: Mapping[Any, Any], value: Mapping[Any, Any]) -> None:
    unexpected = [key for key in value if key not in expected]
    missing = [key for key in expected if key not in value]
    keys = (("Unexpected", unexpected), ("Missing", missing))
    found = " ".join(f"{what} arguments: {which}." for what, which in keys if which)
    if found:
        raise python_error(f"Keys mismatch for {name}: {found}{_ADVICE}")


def _parts(value: Any) -> Optional[Dict[Any, Any]]:
    """Return the items of a list, tuple or dict, by index or key; None for other values and those with a parser."""
    if find_parser(value) is not None or not isinstance(value, (dict, list, tuple)):
        return None
    return value if isinstance(value, dict) else dict(enumerate(value))


def _in_order_of(expected: Any, value: Any) -> Any:
    """Return `value` with the keys of its dicts in the order of those in `expected`."""
    parts = _parts(expected)
    return value if parts is None else [_in_order_of(item, value[key]) for key, item in parts.items()]


def _take(parameter: _Parameter, left: Dict[str, Any]) -> Any:
    by_keyword = parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    if by_keyword and parameter.name in left:
        return left.pop(parameter.name)
    if parameter.default is _NO_DEFAULT:
        raise python_error(f"Mandatory parameter {parameter.name} missing.")
    return parameter.default


def _named_parts(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """Yield the items of lists, tuples and dicts, named `x[0]`, `d[key]` ...; values with a parser stay whole."""
    parts = _parts(value)
    if parts is None:
        yield name, value
    else:
        for key, item in parts.items():
            yield from _named_parts(f"{name}[{key}]", item)


class CallableModel(nn.Module):
    """A callable as a module without parameters."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.train(function.training)
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)
