"""Arguments of operators that PopTorch does not compile or reads otherwise, found in the calls of a trace."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.operators import table
from ignite_ipu.emulator.trace.operators.table import Restriction
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor
from ignite_ipu.emulator.values.nested import leaves

_TURNS = table.words("transpose t permute movedim swapaxes swapdims expand expand_as unfold T mT")
_FLAT = 4  # entries of a padding over two dimensions


class Call(NamedTuple):
    """One call of an operator while a model is traced.

    Attributes:
        name: The operator's name.
        capture: The trace.
    """

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    capture: Trace

    def get(self, argument: str) -> Any:
        """Return an argument by its name; None when it is not given."""
        if argument in self.kwargs:
            return self.kwargs[argument]
        position = table.positions(self.name).get(argument)
        return self.args[position] if position is not None and position < len(self.args) else None

    def tensors(self) -> Tuple[IpuTensor, ...]:
        return tuple(leaf for leaf in leaves((tuple(self.args), dict(self.kwargs))) if isinstance(leaf, IpuTensor))

    def dtypes(self) -> Set[torch.dtype]:
        return {tensor.meta.dtype for tensor in self.tensors()}

    def has_fractions(self, *names: str) -> bool:
        """Tell whether a number that is passed by position, or by one of these names, is a float."""
        return any(isinstance(value, float) for value in (*self.args, *map(self.get, names)))

    def varies(self) -> bool:
        """Tell whether some argument is no constant of the program."""
        return any(map(self.capture.varies, self.tensors()))


def found(call: Call, loss: bool = False) -> Iterator[Tuple[Restriction, str]]:
    """Yield the restrictions that a call meets, each with the sentence about it.

    Args:
        loss: Whether the call is the loss that is differentiated; other restrictions are left out then.
    """
    for restriction in table.restricted(call.name):
        if restriction.loss is not loss:
            continue
        values = [call.get(name) for name in restriction.argument]
        value = next((value for value in values if value is not None), None)
        if restriction.concerns(value) and (not restriction.rule or _RULES[restriction.rule](call)):
            shown = value is not None and not any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))
            given = next(name for name, each in zip(restriction.argument, values) if each is not None) if shown else ""
            about = f" ({given}={value!r})" if shown else ""
            text = f"{table.canonical(call.name)}: {restriction.says}{about}. {restriction.instead}"
            yield restriction, text.rstrip()


def replaced(call: Call, restriction: Restriction) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of a call as the device reads them."""
    (argument,) = restriction.argument
    position = table.positions(call.name).get(argument)
    if position is not None and position < len(call.args):
        args = (*call.args[:position], restriction.becomes, *call.args[position + 1 :])
        return args, dict(call.kwargs)
    return tuple(call.args), {**call.kwargs, argument: restriction.becomes}


def _meta(value: Any) -> torch.Tensor:
    return value.meta if isinstance(value, IpuTensor) else value


def _frozen(call: Call) -> bool:
    weight = call.get("weight")
    return call.capture.training and isinstance(weight, IpuTensor) and not weight.meta.requires_grad


def _integers(call: Call) -> bool:
    integers = all(not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool) for dtype in call.dtypes())
    return integers and not call.has_fractions()


def _varies(call: Call) -> bool:
    decisive = (call.get("offsets"), call.get("repeats"))
    return any(isinstance(value, IpuTensor) and call.capture.varies(value) for value in decisive)


def _divisible(call: Call, sizes: Any) -> bool:
    shape = _meta(call.get("input")).shape
    count = len(shape) - 2 if table.canonical(call.name) == "interpolate" else int(call.name[-2])
    wanted = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes] * count
    return all(size is None or have % size == 0 for have, size in zip(shape[-count:], wanted))


def _area_divides(call: Call) -> bool:
    if call.get("mode") != "area":
        return False
    if call.get("size") is not None:
        return not _divisible(call, call.get("size"))
    spatial = _meta(call.get("input")).shape[2:]
    factors = call.get("scale_factor")
    factors = factors if isinstance(factors, (tuple, list)) else [factors] * len(spatial)
    return not _divisible(call, [int(size * factor) for size, factor in zip(spatial, factors)])


def _bilinear_factors(call: Call) -> bool:
    factors = call.get("scale_factor")
    return call.get("mode") == "bilinear" and isinstance(factors, (tuple, list)) and len(set(factors)) > 1


def _bilinear_sizes(call: Call) -> bool:
    size, input = call.get("size"), _meta(call.get("input"))
    if call.get("mode") != "bilinear" or size is None:
        return False
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return bool(height * input.shape[-1] != width * input.shape[-2])


def views(tensor: Any) -> List[fx.Node]:
    """Return the operators by which a traced tensor is a view of another, the last one first."""
    found: List[fx.Node] = []
    node = tensor.origin if isinstance(tensor, IpuTensor) else None
    while node is not None:
        memory = node.meta.get("memory")
        source = next((each for each in node.all_input_nodes if each.meta.get("memory") == memory), None)
        if source is not None and not node.meta.get("writes"):
            found.append(node)
        node = source
    return found


def _stepped(call: Call) -> bool:
    taken = [node.args[1] for node in views(call.get("input")) if node.meta.get("operator") == "__getitem__"]
    indices = [index if isinstance(index, tuple) else (index,) for index in (call.get("index"), *taken)]
    return any(isinstance(part, slice) and part.step not in (None, 1) for index in indices for part in index)


def _turned(call: Call) -> bool:
    taken = [(node.meta.get("operator"), node) for node in views(call.get("input"))]
    return any((node.args[1] if name == "getattr" else name) in _TURNS for name, node in taken)


def _slices_constant(call: Call) -> bool:
    base, index = call.get("input"), call.get("index")
    index = index if isinstance(index, tuple) else (index,)
    plain = all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in index)
    sliced = bool(index) or bool(views(base))
    return plain and sliced and isinstance(base, IpuTensor) and not call.capture.varies(base)


def _repeated_subscript(call: Call) -> bool:
    operands = str(call.get("equation")).replace(" ", "").split("->")[0].replace(".", "").split(",")
    return isinstance(call.get("equation"), str) and any(len(set(operand)) < len(operand) for operand in operands)


def _of_a_matrix(call: Call) -> bool:
    dim = call.get("dim")
    return len(dim) == 2 if isinstance(dim, (list, tuple)) else dim is None and _meta(call.get("A")).dim() == 2


_RULES: Dict[str, Callable[[Call], bool]] = {
    "area_divides": _area_divides,
    "bicubic_corners": lambda call: call.get("mode") == "bicubic" and bool(call.get("align_corners")),
    "bilinear_factors": _bilinear_factors,
    "bilinear_sizes": _bilinear_sizes,
    "bool_with_integer": lambda call: torch.bool in (types := call.dtypes()) and len(types) > 1,
    "divides": lambda call: not _divisible(call, call.get("output_size")),
    "dtype": lambda call: (
        isinstance(dtype := call.get("dtype"), torch.dtype) and dtype is not _meta(call.get("input")).dtype
    ),
    "eight_bits": lambda call: call.dtypes() in ({torch.int8}, {torch.uint8}),
    "fractions_in_body": lambda call: call.capture.outer is not None and call.has_fractions("start", "end", "step"),
    "frozen": _frozen,
    "integers": _integers,
    "of_a_matrix": _of_a_matrix,
    "one_dimensional": lambda call: _meta(call.get("input")).dim() == 1,
    # A packed sequence has its batch sizes in the place of the hidden state.
    "packed": lambda call: isinstance(hx := call.get("hx"), torch.Tensor) and not _meta(hx).is_floating_point(),
    "projected": lambda call: bool(call.get("has_biases")) and len(call.get("params")) % 4 != 0,
    "reflects_three": lambda call: call.get("mode") == "reflect" and len(call.get("pad")) > _FLAT,
    "repeated_subscript": _repeated_subscript,
    "shapes_differ": lambda call: len({tuple(tensor.meta.shape) for tensor in call.tensors()}) > 1,
    "slices_constant": _slices_constant,
    "steps": _stepped,
    "turned": _turned,
    "two_dimensional": lambda call: _meta(call.get("input")).dim() != 1,
    "two_tensors": lambda call: isinstance(call.get("other"), torch.Tensor),
    "varies": _varies,
    "weight_without_bias": lambda call: (call.get("weight") is None) is not (call.get("bias") is None),
}
