"""Kinds of the values in traced code, as far as they are known, and what is done with them."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass
from typing import Container, Dict, List, Optional, Union

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.names import Names, constant, dotted, index_of, owner_of, walk

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class Kind(enum.Enum):
    """Kind of a value, as far as it is known."""

    TENSOR = "tensor"
    MASK = "boolean tensor"
    TENSORS = "container of tensors"
    MODULE = "module"
    MODULES = "container of modules"
    PYTHON = "Python value"
    UNKNOWN = "unknown"

    @property
    def is_tensor(self) -> bool:
        """True if it is one tensor."""
        return self in (Kind.TENSOR, Kind.MASK)

    @property
    def has_tensors(self) -> bool:
        """True if it is one tensor or several."""
        return self in (Kind.TENSOR, Kind.MASK, Kind.TENSORS)

    @property
    def element(self) -> Kind:
        """Kind of what a subscription or an iteration gives."""
        return {Kind.TENSORS: Kind.TENSOR, Kind.MODULES: Kind.MODULE}.get(self, self)


@dataclass(frozen=True)
class Fact:
    """Something traced code does.

    Attributes:
        kind: "truth" (branches on a tensor's value), "count" (loops as often as one says), "host" (reads a value to
            the host), "print", "mutation" (of Python state), "settled" (the same, to what comes out
            alike in every call), "buffer" (a buffer is rebound), "call" (of the operator
            `name`), "mask" (selects by a boolean tensor), "repeat" (repeats rows as often as a tensor says), "random"
            (draws a Python or numpy number), "gradient" (backward and the like), "plain" (reads an unregistered
            tensor), "custom" (a custom autograd function).
        node: Where.
        name: The operator, attribute or function concerned.
        where: The method or function it happens in.
    """

    kind: str
    node: ast.expr
    name: str
    where: str


def join(first: Kind, second: Kind) -> Kind:
    """Return what is known of a value that is one or the other."""
    if first is second:
        return first
    kinds = {first, second}
    if kinds <= {Kind.TENSOR, Kind.MASK, Kind.PYTHON}:
        return Kind.TENSOR if Kind.TENSOR in kinds or Kind.MASK in kinds else Kind.PYTHON
    if kinds == {Kind.TENSORS, Kind.PYTHON}:
        return Kind.TENSORS
    return Kind.UNKNOWN


def parameters_of(function: Function) -> List[ast.arg]:
    """Return a function's parameters in order, keyword-only ones last, without variadic ones."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def declared_kind(function: Function, arg: ast.arg) -> Kind:
    """Return what a parameter's annotation or default says it is."""
    if arg.annotation is not None:
        words = {node.id for node in walk(arg.annotation) if isinstance(node, ast.Name)}
        words |= {node.attr for node in walk(arg.annotation) if isinstance(node, ast.Attribute)}
        if isinstance(arg.annotation, ast.Constant) and isinstance(arg.annotation.value, str):
            words.add(arg.annotation.value.split(".")[-1])
        if words & {"Tensor", "FloatTensor", "LongTensor"}:
            return Kind.TENSORS if words & _CONTAINER_TYPES else Kind.TENSOR
        if words and words <= {"int", "float", "bool", "str", "Optional", "None", "Union", "List", "Tuple"}:
            return Kind.PYTHON
    default = default_of(function, arg.arg)
    if isinstance(default, ast.Constant) and default.value is not None:
        return Kind.PYTHON
    return Kind.UNKNOWN


def default_of(function: Function, name: str) -> Optional[ast.expr]:
    """Return the default of a parameter; None where there is none."""
    positional = [*function.args.posonlyargs, *function.args.args]
    named = [parameter.arg for parameter in positional[len(positional) - len(function.args.defaults) :]]
    defaults: Dict[str, Optional[ast.expr]] = dict(zip(named, function.args.defaults))
    keywords = zip((parameter.arg for parameter in function.args.kwonlyargs), function.args.kw_defaults)
    return {**defaults, **dict(keywords)}.get(name)


_CONTAINER_TYPES = {"List", "Tuple", "Dict", "Sequence", "Iterable", "Mapping", "list", "tuple", "dict"}


def used_as_tensor(function: Function, name: str, names: Names, layers: Container[str]) -> bool:
    """Tell whether a parameter is handed to a layer or to torch, or has something only tensors have.

    Args:
        function: The function.
        name: The parameter.
        names: Meanings of names in its file.
        layers: Names of what the file's models hold.
    """
    if any(_is_mapping(node, name) for node in walk(function)):
        return False
    for node in walk(function):
        if isinstance(node, ast.Attribute) and dotted(node.value) == name and node.attr in tensor_methods.DISTINCTIVE:
            return True
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id == name:
            owner = dotted(node.func) or ""
            resolved = names.resolve(node.func) or ""
            held = owner.startswith("self.") and owner.split(".")[1] in layers
            if held or resolved.startswith("torch."):
                return True
    return False


def _is_mapping(node: ast.AST, name: str) -> bool:
    """Tell whether a node asks a variable for a key."""
    if isinstance(node, ast.Subscript) and dotted(node.value) == name:
        return isinstance(constant(index_of(node)), str)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return isinstance(constant(node.left), str) and dotted(node.comparators[0]) == name
    return owner_of(node, "get", "items", "keys", "values") == name
