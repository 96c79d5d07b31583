"""Known kinds of the values in traced code, and the reads and writes of these."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass
from typing import Container, Dict, Iterator, List, Optional, Set, Union

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.names import Names, constant, dotted, index_of, names_bound, owner_of, walk

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Code = Union[Function, ast.Lambda]


class Kind(enum.Enum):
    """Kind of a value, or of a model's attribute, for which alone there are three kinds of tensors more."""

    TENSOR = "tensor"
    MASK = "boolean tensor"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    UNREGISTERED = "unregistered tensor"
    TENSORS = "container of tensors"
    MODULE = "module"
    MODULES = "container of modules"
    PYTHON = "Python value"
    UNKNOWN = "unknown"

    @property
    def is_tensor(self) -> bool:
        return self in (Kind.TENSOR, Kind.MASK, Kind.PARAMETER, Kind.BUFFER, Kind.UNREGISTERED)

    @property
    def has_tensors(self) -> bool:
        return self.is_tensor or self is Kind.TENSORS

    @property
    def element(self) -> Kind:
        """Kind of an element, by subscription or iteration."""
        return {Kind.TENSORS: Kind.TENSOR, Kind.MODULES: Kind.MODULE}.get(self, self)


@dataclass(frozen=True)
class Fact:
    """Something traced code does.

    Attributes:
        kind: "truth" (branches on a tensor's value), "count" (loops as often as a tensor's value), "host" (reads a
            value to the host), "print", "mutation" (of Python state), "settled" (the same, to a value that is alike in
            every call), "assigned" (a buffer is), "rebound" (a parameter is assigned, or a buffer a tensor of another
            shape), "whole" (a buffer of whole numbers is written), "written" (a weight is), "call" (of the
            operator `name`), "varies" (gives it a computed tensor where a constant has to be), "mask"
            (selects by a boolean tensor), "dynamic" (calls an operator whose result has a size that depends on
            values), "layer" (calls a layer of the class `name`, which `made` constructs), "format" (names a number
            format that an IPU lacks), "repeat" (repeats rows as often as a tensor's values), "random" (draws a Python
            or numpy number), "gradient" (backward and the like), "plain" (reads an unregistered tensor), "custom" (a
            custom autograd function), "differentiated" (a loop asks for gradients of a tensor that its step computes),
            "sampled" (a loop reads a value that it has drawn by the output of a model), "transformed", "weights" and
            "cached" (a loop calls a model within `torch.func`, with other weights than its
            own, or with a cache of those that its parametrizations compute).
        node: Where.
        name: The operator, attribute or function concerned.
        where: The method or function it happens in.
        certain: Whether it happens for sure: behind no test that may turn out either way, and, if it needs a tensor's
            value, of a tensor that is computed from inputs or weights.
        made: The construction of the layer that is called.
    """

    kind: str
    node: ast.expr
    name: str
    where: str
    certain: bool = True
    made: Optional[ast.Call] = None


def join_kinds(first: Kind, second: Kind) -> Kind:
    """Return the common kind of a value that is one or the other."""
    if first is second:
        return first
    kinds = {first, second}
    if kinds <= {Kind.TENSOR, Kind.MASK, Kind.PYTHON}:
        return Kind.TENSOR if Kind.TENSOR in kinds or Kind.MASK in kinds else Kind.PYTHON
    if kinds == {Kind.TENSORS, Kind.PYTHON}:
        return Kind.TENSORS
    return Kind.UNKNOWN


def parameters_of(function: Code) -> List[ast.arg]:
    """Return a function's parameters in order, keyword-only ones last, without variadic ones."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def declared_kind(function: Function, arg: ast.arg) -> Kind:
    """Return the kind of a parameter by its annotation or default."""
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


def default_of(function: Code, name: str) -> Optional[ast.expr]:
    """Return the default of a parameter; None where there is none."""
    positional = [*function.args.posonlyargs, *function.args.args]
    named = [parameter.arg for parameter in positional[len(positional) - len(function.args.defaults) :]]
    defaults: Dict[str, Optional[ast.expr]] = dict(zip(named, function.args.defaults))
    keywords = zip((parameter.arg for parameter in function.args.kwonlyargs), function.args.kw_defaults)
    return {**defaults, **dict(keywords)}.get(name)


# Methods that return their tensor if it has the type, the device or the layout already.
_TYPES = frozenset(["float", "double", "half", "bfloat16", "int", "long", "bool"])
_CONVERSIONS = _TYPES | {"to", "type", "type_as", "contiguous"}
_CONTAINER_TYPES = {"List", "Tuple", "Dict", "Sequence", "Iterable", "Mapping", "list", "tuple", "dict"}


def used_as_tensor(
    function: Function, name: str, names: Names, layers: Container[str], of_tensors: Container[str] = ()
) -> bool:
    """Return whether a parameter is handed to a layer or to torch, or is used by methods that only tensors have.

    Layers take one tensor first, those `of_tensors` take nothing else; a parameter with a default may be no tensor.
    """
    nodes = walk(function)
    is_given = default_of(function, name) is None
    if any(_is_mapping(node, name) for node in nodes):
        return False
    for node in nodes:
        if isinstance(node, ast.Attribute) and dotted(node.value) == name and node.attr in tensor_methods.DISTINCTIVE:
            return True
        held_of_tensors = isinstance(node, ast.Call) and (dotted(node.func) or "").partition("self.")[2] in of_tensors
        if (
            is_given
            and isinstance(node, ast.Call)
            and (held_of_tensors or names.resolve(node.func) in tensor_methods.OF_TENSORS)
        ):
            given = (*node.args, *(keyword.value for keyword in node.keywords))
            if any(isinstance(each, ast.Name) and each.id == name for each in given):
                return True
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id == name:
            owner = dotted(node.func) or ""
            resolved = names.resolve(node.func) or ""
            held = owner.startswith("self.") and owner.split(".")[1] in layers
            makes = resolved in tensor_methods.FACTORIES and not resolved.endswith(("tril", "triu"))
            computes = resolved.startswith("torch.") and not makes
            if held or computes:
                return True
    return False


def _is_mapping(node: ast.AST, name: str) -> bool:
    """Return whether a node asks a variable for a key."""
    if isinstance(node, ast.Subscript) and dotted(node.value) == name:
        return isinstance(constant(index_of(node)), str)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return isinstance(constant(node.left), str) and dotted(node.comparators[0]) == name
    return owner_of(node, "get", "items", "keys", "values") == name


def attribute_named(call: ast.Call) -> str:
    """Return the attribute that `getattr` and its like are about, as a chain of names; its owner if it is computed."""
    owner, label = dotted(call.args[0]) or "", constant(call.args[1]) if len(call.args) > 1 else ...
    return f"{owner}.{label}" if isinstance(label, str) else owner


def reads(value: ast.expr, name: str) -> bool:
    """Return whether an expression reads a chain of names, itself or by `getattr`."""
    for part in walk(value):
        if isinstance(part, ast.Call) and dotted(part.func) == "getattr" and attribute_named(part) == name:
            return True
        if dotted(part) == name:
            return True
    return False


def converts(value: ast.expr, name: str) -> bool:
    """Return whether an expression is a tensor of this name converted, which is the same once it is converted.

    Arguments that read it, too, change nothing, as in `self.table.to(self.table.device)`.
    """
    methods: List[str] = []
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _CONVERSIONS:
        methods.append(value.func.attr)
        value = value.func.value
    return bool(methods) and len(_TYPES.intersection(methods)) <= 1 and dotted(value) == name


def settled_by(node: ast.If) -> Set[str]:
    """Return the names that a statement creates if its test finds them missing, and those assigned with them."""
    asked = set(_asked_to_exist(node.test))
    made = {name for statement in node.body for name in names_bound(statement)}
    return asked | made if asked & made else asked


def _asked_to_exist(test: ast.expr) -> Iterator[str]:
    """Yield the names that a test checks for being there, or fitting: None, empty, of another shape."""
    for part in walk(test):
        asked: List[ast.AST] = []
        if isinstance(part, ast.Compare) and not isinstance(part.ops[0], ast.Eq):
            asked = [each for value in (part.left, *part.comparators) for each in walk(value)]
        elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            asked = walk(part.operand)
        for each in asked:
            if isinstance(each, ast.Call) and dotted(each.func) in ("getattr", "hasattr"):
                yield attribute_named(each)
            yield dotted(each) or ""


def device_test(test: ast.expr, names: Names) -> Optional[bool]:
    """Return the result in a trace of a test for running on an IPU; None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = device_test(test.operand, names)
        return None if inner is None else not inner
    return True if names.called(test) == "poptorch.isRunningOnIpu" else None
