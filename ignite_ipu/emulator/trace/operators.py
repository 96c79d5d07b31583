"""Operators that a model may use: a table to query, and the check of a traced model against it.

An operator that is not in the table works if all the kernels that PyTorch calls for it do. The others are refused when
the model compiles. The one switch that turns this into a warning is `set_strict(False)`, or
`IGNITE_IPU_STRICT_OPERATORS=0` in the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.errors import Refusal, backend_error
from ignite_ipu.emulator.logs import backend_logger, logger
from ignite_ipu.emulator.trace import call_sites
from ignite_ipu.emulator.trace.active import IpuTensor, Trace
from ignite_ipu.emulator.trace.number_formats import narrow
from ignite_ipu.emulator.values.structures import leaves
from ignite_ipu.operators import table
from ignite_ipu.operators.words import words
from ignite_ipu.torch_names.dispatch import DispatchMode

STRICT_VARIABLE = "IGNITE_IPU_STRICT_OPERATORS"
SWITCH = "ignite_ipu.emulator.operators.set_strict(False)"
DOUBT = "Only PopTorch's sources show this, and no test of its own: the emulator computes PyTorch's result."
REMEDY = "Write it with operators that ignite_ipu.emulator.operators.listed() names."

_TURNS = words("transpose t permute movedim swapaxes swapdims expand expand_as unfold T mT")
_FLAT = 4  # entries of a padding over two dimensions
_SWITCH = {"0": False, "1": True}
_strict: Optional[bool] = None


@dataclasses.dataclass(frozen=True)
class Use:
    """An operator that does not compile, where a model uses it."""

    kind: str  # the kind without an implementation
    name: str  # the function that the model calls
    place: str
    node: Optional[fx.Node]  # None in the body of a loop or branch


def listed() -> Dict[str, Tuple[str, ...]]:
    """Return the names of the operators that compile, by group."""
    return dict(table.GROUPS)


def strict() -> bool:
    """Return whether an unsupported operator is an error (the default) rather than a warning.

    Raises:
        ValueError: `IGNITE_IPU_STRICT_OPERATORS` is neither 0 nor 1.
    """
    if _strict is not None:
        return _strict
    text = os.environ.get(STRICT_VARIABLE, "1")
    if text not in _SWITCH:
        raise ValueError(f"{STRICT_VARIABLE} is {text!r}; it must be 1 (refuse unsupported operators) or 0 (warn).")
    return _SWITCH[text]


def set_strict(enabled: Optional[bool]) -> Optional[bool]:
    """Refuse unsupported operators, or only warn of them; `None` leaves it to `IGNITE_IPU_STRICT_OPERATORS` again.

    Returns:
        The previous setting, to be restored afterwards.
    """
    global _strict
    before, _strict = _strict, enabled
    return before


def observed(kernel: Callable[..., Any], kinds: Set[str]) -> ContextManager[Any]:
    """Return a context manager that adds to `kinds` the parts of an operator that do not compile.

    The table answers for its operators. Of the others, the kernels count that PyTorch calls inside the context.
    """
    name = call_sites.name_of(kernel)
    if (getattr(kernel, "__module__", None) or "").startswith("ignite_ipu.") or table.compiles(name):
        return contextlib.nullcontext()
    kind = table.refused(name)
    if kind is not None:
        kinds.add(kind)
        return contextlib.nullcontext()
    return _Observer(kinds)


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of an operator while a model is traced."""

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

    @functools.cached_property
    def tensors(self) -> List[IpuTensor]:
        return [leaf for leaf in leaves((tuple(self.args), dict(self.kwargs))) if isinstance(leaf, IpuTensor)]

    def dtypes(self) -> Set[torch.dtype]:
        return {tensor.meta.dtype for tensor in self.tensors}

    def has_fractions(self, *names: str) -> bool:
        """Return whether a number that is passed by position, or by one of these names, is a float."""
        return any(isinstance(value, float) for value in (*self.args, *map(self.get, names)))

    def varies(self) -> bool:
        """Return whether some argument is no constant of the program."""
        return any(map(self.capture.writers.vary, self.tensors))


def _found(call: _Call, loss: bool = False) -> Iterator[Tuple[table.Restriction, str]]:
    """Yield the restrictions that a call meets, each with its sentence; only those about losses if it is the `loss`."""
    for restriction in table.restricted(call.name):
        if restriction.loss is not loss:
            continue
        values = [call.get(name) for name in restriction.argument]
        value = next((value for value in values if value is not None), None)
        if restriction.concerns(value) and (not restriction.rule or _RULES[restriction.rule](call)):
            shown = value is not None and not any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))
            given = next(name for name, each in zip(restriction.argument, values) if each is not None) if shown else ""
            about = f" ({given}={value!r})" if shown else ""
            # PopTorch's own sentences stand alone.
            whole = restriction.says[:1].isupper()
            subject = "" if whole else f"{table.canonical(call.name)}: "
            text = f"{subject}{restriction.says}{about}. {restriction.instead}"
            yield restriction, text.rstrip()


def _replaced(call: _Call, restriction: table.Restriction) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of a call as the device reads them."""
    (argument,) = restriction.argument
    position = table.positions(call.name).get(argument)
    if position is not None and position < len(call.args):
        args = (*call.args[:position], restriction.becomes, *call.args[position + 1 :])
        return args, dict(call.kwargs)
    return tuple(call.args), {**call.kwargs, argument: restriction.becomes}


def _views(tensor: Any) -> List[fx.Node]:
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


def check_arguments(
    capture: Trace, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of an operator as the device reads them.

    Those with which it does not compile are refused, and those with which it is likely not to are warned of.
    """
    if not table.restricted(name):
        return args, kwargs
    call = _Call(name, args, kwargs, capture)
    if not (call.varies() or capture.outer is not None):
        return args, kwargs  # operations on constants alone are folded while compiling
    for restriction, text in _found(call):
        if restriction.refused:
            _report(f"{text} It is used {call_sites.here()}.", Refusal.RESTRICTED_ARGUMENT)
        elif restriction.replaced:
            args, kwargs = _replaced(call, restriction)
            if restriction.instead:
                _warn_once(capture, name, text)
        else:
            _warn_once(capture, name, f"{text} {DOUBT}")
    return args, kwargs


def check_write(capture: Trace, tensor: Any, *values: Any) -> None:
    """Refuse a write in place through a view with a step, and warn of others, as of an assignment to all of it."""
    if _views(tensor):
        check_arguments(capture, "__setitem__", (tensor, (), values), {})


def check_loss(capture: Trace, loss: fx.Node) -> None:
    """Warn of a loss whose gradient is likely to be another than PyTorch's."""
    call = _Call(str(loss.meta.get("operator")), loss.args, loss.kwargs, capture)
    for _, text in _found(call, loss=True):
        _warn_once(capture, call.name, f"{text} {DOUBT}")


def is_refused(name: str) -> bool:
    """Return whether the table has an operator among those that do not compile."""
    return table.refused(name) is not None


def note(capture: Trace, name: str, node: fx.Node, kinds: Set[str]) -> None:
    """Remember a call of which `kinds` do not compile, unless it is computed while compiling.

    One that PyTorch 2.0 cannot even trace is refused at once.
    """
    for kind in sorted(kinds):
        if kind in table.UNTRACEABLE:
            part = "" if kind == table.canonical(name) else f", part of {name}"
            _report(
                f"Type inference failed for aten::{kind}{part}, called {call_sites.here()}: it has no implementation "
                f"for tensors without values. {table.instead(kind) or REMEDY}",
                Refusal.UNSUPPORTED_OPERATOR,
            )
        elif node.meta["varies"]:
            capture.unsupported.append(Use(kind, name, call_sites.here(), node))


def check(capture: Trace, live: Set[fx.Node]) -> None:
    """Refuse a traced model that uses operators PopTorch does not compile; `live` nodes are those that are used."""
    capture.unsupported[:] = [use for use in capture.unsupported if use.node is None or use.node in live]
    first: Dict[str, str] = {}
    for use in capture.unsupported:
        part = "" if table.canonical(use.name) == use.kind else f"part of {use.name}, "
        remedy = table.instead(use.kind) or REMEDY
        first.setdefault(use.kind, f"{use.kind} is {part}used {use.place}. {remedy}")
    if first:
        kinds = ", ".join(f"aten::{kind}" for kind in sorted(first))
        text = f"Unsupported ops found in compiled model: [{kinds}]. {' '.join(first.values())}"
        _report(text, Refusal.UNSUPPORTED_OPERATOR)


def _meta(value: Any) -> torch.Tensor:
    return value.meta if isinstance(value, IpuTensor) else value


def _frozen(call: _Call) -> bool:
    weight = call.get("weight")
    return call.capture.training and isinstance(weight, IpuTensor) and not weight.meta.requires_grad


def _integers(call: _Call) -> bool:
    if call.name.startswith("__r"):
        return False  # a number divided by a tensor: PyTorch multiplies with the reciprocal, a float
    integers = all(not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool) for dtype in call.dtypes())
    return integers and not call.has_fractions()


def _converts(call: _Call) -> bool:
    dtype, given = call.get("dtype"), call.tensors[0].meta.dtype
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or given.is_floating_point):
        return False
    return narrow(dtype) is not narrow(given)


def _broadcasts(call: _Call) -> bool:
    """Return whether the shapes of the tensors differ elsewhere than in the dimension that is named."""
    shapes = [list(tensor.meta.shape) for tensor in call.tensors]
    for shape in shapes:
        del shape[call.get("dim")]
    return any(shape != shapes[0] for shape in shapes)


def _unlike_paddings(call: _Call) -> bool:
    padding = call.get("padding")
    return isinstance(padding, (tuple, list)) and len(set(padding)) > 1 and call.get("count_include_pad") is not False


def _masks(call: _Call) -> Tuple[List[torch.Tensor], bool]:
    """Return the masks among the indices of a write, and whether one is all there is, in the shape of the tensor."""
    given = call.get("index" if call.get("indices") is None else "indices")
    parts: List[Any] = [_meta(part) for part in (given if isinstance(given, (tuple, list)) else [given])]
    masks = [part for part in parts if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)]
    return masks, len(masks) == len(parts) == 1 and masks[0].shape == _meta(call.get("input")).shape


def _selected_values(call: _Call) -> bool:
    value: Any = _meta(call.get("value" if call.get("values") is None else "values"))
    return _masks(call)[1] and isinstance(value, torch.Tensor) and value.numel() > 1


def _partial_mask(call: _Call) -> bool:
    masks, whole = _masks(call)
    return bool(masks) and not whole


def _varies(call: _Call) -> bool:
    decisive = (call.get("offsets"), call.get("repeats"))
    return any(isinstance(value, IpuTensor) and call.capture.writers.vary(value) for value in decisive)


def _divisible(call: _Call, sizes: Any) -> bool:
    shape = _meta(call.get("input")).shape
    count = len(shape) - 2 if table.canonical(call.name) == "interpolate" else int(call.name[-2])
    wanted = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes] * count
    return all(size is None or have % size == 0 for have, size in zip(shape[-count:], wanted))


def _area_divides(call: _Call) -> bool:
    if call.get("mode") != "area":
        return False
    if call.get("size") is not None:
        return not _divisible(call, call.get("size"))
    spatial = _meta(call.get("input")).shape[2:]
    factors = call.get("scale_factor")
    factors = factors if isinstance(factors, (tuple, list)) else [factors] * len(spatial)
    return not _divisible(call, [int(size * factor) for size, factor in zip(spatial, factors)])


def _bilinear_factors(call: _Call) -> bool:
    factors = call.get("scale_factor")
    return call.get("mode") == "bilinear" and isinstance(factors, (tuple, list)) and len(set(factors)) > 1


def _bilinear_sizes(call: _Call) -> bool:
    size, input = call.get("size"), _meta(call.get("input"))
    if call.get("mode") != "bilinear" or size is None:
        return False
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return bool(height * input.shape[-1] != width * input.shape[-2])


def _stepped(call: _Call) -> bool:
    taken = [node.args[1] for node in _views(call.get("input")) if node.meta.get("operator") == "__getitem__"]
    indices = [index if isinstance(index, tuple) else (index,) for index in (call.get("index"), *taken)]
    return any(isinstance(part, slice) and part.step not in (None, 1) for index in indices for part in index)


def _turned(call: _Call) -> bool:
    taken = [(node.meta.get("operator"), node) for node in _views(call.get("input"))]
    return any((node.args[1] if name == "getattr" else name) in _TURNS for name, node in taken)


def _from_the_end(call: _Call) -> bool:
    index = call.get("index")
    lists = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, list)]
    return any(isinstance(place, int) and place < 0 for place in leaves(lists))


def _slices_constant(call: _Call) -> bool:
    base, index = call.get("input"), call.get("index")
    index = index if isinstance(index, tuple) else (index,)
    plain = all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in index)
    sliced = bool(index) or bool(_views(base))
    return plain and sliced and isinstance(base, IpuTensor) and not call.capture.writers.vary(base)


def _repeated_subscript(call: _Call) -> bool:
    operands = str(call.get("equation")).replace(" ", "").split("->")[0].replace(".", "").split(",")
    return isinstance(call.get("equation"), str) and any(len(set(operand)) < len(operand) for operand in operands)


def _of_a_matrix(call: _Call) -> bool:
    dim = call.get("dim")
    return len(dim) == 2 if isinstance(dim, (list, tuple)) else dim is None and _meta(call.get("A")).dim() == 2


_RULES: Dict[str, Callable[[_Call], bool]] = {
    "area_divides": _area_divides,
    "bicubic_corners": lambda call: call.get("mode") == "bicubic" and bool(call.get("align_corners")),
    "bilinear_factors": _bilinear_factors,
    "bilinear_sizes": _bilinear_sizes,
    "bool_with_integer": lambda call: torch.bool in (types := call.dtypes()) and len(types) > 1,
    "broadcasts": _broadcasts,
    "converts": _converts,
    "differentiated": lambda call: call.capture.training and bool(_meta(call.get("input")).requires_grad),
    "divides": lambda call: not _divisible(call, call.get("output_size")),
    "dtype": lambda call: (
        isinstance(dtype := call.get("dtype"), torch.dtype) and dtype is not _meta(call.get("input")).dtype
    ),
    "eight_bits": lambda call: call.dtypes() in ({torch.int8}, {torch.uint8}) and not call.has_fractions(),
    "flat": lambda call: _meta(call.get("input")).dim() == 2,
    "fractions_in_body": lambda call: call.capture.outer is not None and call.has_fractions("start", "end", "step"),
    "from_the_end": _from_the_end,
    "frozen": _frozen,
    "integers": _integers,
    "joined_targets": lambda call: _meta(call.get("targets")).dim() == 1,
    "of_a_matrix": _of_a_matrix,
    "one_dimensional": lambda call: _meta(call.get("input")).dim() == 1,
    "partial_mask": _partial_mask,
    # A packed sequence has its batch sizes in the place of the hidden state.
    "packed": lambda call: isinstance(hx := call.get("hx"), torch.Tensor) and not _meta(hx).is_floating_point(),
    "projected": lambda call: bool(call.get("has_biases")) and len(call.get("params")) % 4 != 0,
    "reflects_three": lambda call: call.get("mode") == "reflect" and len(call.get("pad")) > _FLAT,
    "repeated_subscript": _repeated_subscript,
    "selected_values": _selected_values,
    "shapes_differ": lambda call: len({tuple(tensor.meta.shape) for tensor in call.tensors}) > 1,
    "slices_constant": _slices_constant,
    "steps": _stepped,
    "turned": _turned,
    "two_dimensional": lambda call: _meta(call.get("input")).dim() != 1,
    "two_tensors": lambda call: isinstance(call.get("other"), torch.Tensor),
    "unbatched": lambda call: _meta(call.get("input")).dim() == 3,
    "unlike_paddings": _unlike_paddings,
    "varies": _varies,
    "weight_without_bias": lambda call: (call.get("weight") is None) is not (call.get("bias") is None),
}


class _Observer(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the kernels that PyTorch calls and that do not compile."""

    def __init__(self, kinds: Set[str]) -> None:
        super().__init__()
        self._kinds = kinds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kernel = str(func.overloadpacket.__name__)
        if not table.compiles(kernel):
            self._kinds.add(table.refused(kernel) or table.canonical(kernel))
        return func(*args, **(kwargs or {}))


def _report(problem: str, kind: Refusal) -> None:
    if strict():
        raise backend_error(f"{problem} ({SWITCH} or {STRICT_VARIABLE}=0 turns this into a warning.)", kind=kind)
    logger.warning("%s", problem)


def _warn_once(capture: Trace, name: str, text: str) -> None:
    if text not in capture.warned:
        capture.warned[text] = name
        backend_logger.warning("%s (%s)", text, call_sites.here())
