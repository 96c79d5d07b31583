"""The classes of a file that are models: their bases, attributes and methods."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.kinds import Function, Kind, parameters_of
from ignite_ipu.migration.analysis.names import (
    Names,
    argument,
    assignments,
    constant,
    dotted,
    is_layer,
    method_calls,
    walk,
)
from ignite_ipu.migration.analysis.tensor_methods import FACTORIES
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.reached import reached

_CONTAINERS = word_set("torch.nn.ModuleList torch.nn.ModuleDict torch.nn.ParameterList torch.nn.ParameterDict")
_REGISTERED = {
    "register_buffer": Kind.BUFFER,
    "register_parameter": Kind.PARAMETER,
    "add_module": Kind.MODULE,
    "register_module": Kind.MODULE,
}


_Constants = Optional[Tuple[Any, ...]]


@dataclass
class Model:
    """A class that PyTorch would run as a module, with the file's own models that it inherits from, nearest first.

    `holds` has the kinds of its attributes, inherited ones included, and `values` their values in `__init__`. `buffers`
    has the values of registered buffers.
    """

    node: ast.ClassDef
    bases: List[Model] = field(default_factory=list)
    holds: Dict[str, Kind] = field(default_factory=dict)
    values: Dict[str, ast.expr] = field(default_factory=dict)
    buffers: Dict[str, ast.expr] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    def reads(self, attribute: str) -> bool:
        """Return whether its code, inherited one included, reads an attribute of this name, or may by `getattr`."""
        for node in walk(self.node):
            if isinstance(node, ast.Attribute) and node.attr == attribute and not isinstance(node.ctx, ast.Store):
                return True
            if isinstance(node, ast.Constant) and node.value == attribute:
                return True
        return any(base.reads(attribute) for base in self.bases)

    def constructed_in(self, attribute: str) -> Set[str]:
        """Return the names of classes that are called in the value of an attribute."""
        value = self.values.get(attribute)
        calls = (node for node in (() if value is None else walk(value)) if isinstance(node, ast.Call))
        return {name for name in (dotted(call.func) for call in calls) if name is not None}

    @cached_property
    def entered(self) -> List[Function]:
        """Forward, and the methods that it calls, and these call."""

        def called(name: str) -> Iterator[str]:
            method = self.method(name)
            calls = (node for node in walk(method) if isinstance(node, ast.Call)) if method is not None else ()
            yield from (name[5:] for name in (dotted(call.func) or "" for call in calls) if name.startswith("self."))

        methods = (self.method(name) for name in reached(["forward"], called))
        return [method for method in methods if method is not None]

    @cached_property
    def written(self) -> Set[str]:
        """Attributes that forward, and the methods it calls, write in place, or set; not those of `set_once`."""
        return self._writes.keys() - self.set_once

    @cached_property
    def set_once(self) -> Set[str]:
        """Buffers in which forward puts the same constant wherever it writes: flags that only a first call changes."""
        same = {name for name, written in self._writes.items() if len(written) == 1 and None not in written}
        return same & self.buffers.keys()

    @cached_property
    def _writes(self) -> Dict[str, Set[_Constants]]:
        """Constants that traced code puts in attributes, None for each other value."""
        found: Dict[str, Set[_Constants]] = {}
        for method in self.entered:
            nodes = list(walk(method))
            stores = [node for node in nodes if isinstance(node, ast.Assign)]
            values = {id(part): node.value for node in stores for each in node.targets for part in ast.walk(each)}
            for node in nodes:
                for target, constants in _written_by(node, values):
                    attribute = _own_attribute(target)
                    if attribute is not None:
                        found.setdefault(attribute, set()).add(constants)
        return found

    def owner_of(self, method: Function) -> str:
        """Return the name of the class that defines a method, inherited ones included."""
        inherited = [base for base in self.bases if base.method(method.name) is method]
        return self.name if method in self.node.body or not inherited else inherited[0].owner_of(method)

    def method(self, name: str) -> Optional[Function]:
        """Return a method by name, inherited ones included."""
        for statement in self.node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
                return statement
        inherited = [base.method(name) for base in self.bases]
        return next((method for method in inherited if method is not None), None)


def _written_by(node: ast.AST, values: Mapping[int, ast.expr]) -> Iterator[Tuple[ast.AST, _Constants]]:
    """Yield the expressions that a node stores into, or writes in place, with the constants that it puts there.

    `values` are those of assignments, by the identity of the target.
    """
    if isinstance(getattr(node, "ctx", None), ast.Store):
        yield node, _constants([values[id(node)]]) if id(node) in values else None
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and re.fullmatch(r"[a-z]\w*[^_]_", node.func.attr):
            puts = node.func.attr in ("copy_", "fill_", "zero_")
            yield node.func.value, _constants(node.args) if puts else None
        yield from ((keyword.value, None) for keyword in node.keywords if keyword.arg == "out")


def _constants(values: Sequence[ast.expr]) -> _Constants:
    """Return the constants that expressions consist of, as in `torch.tensor([True])`; None if there is more in them."""
    found: List[Any] = []
    for value in values:
        constants: _Constants = None
        if isinstance(value, ast.Constant):
            constants = (value.value,)
        elif isinstance(value, (ast.List, ast.Tuple)):
            constants = _constants(value.elts)
        elif isinstance(value, ast.Call) and (dotted(value.func) or "").startswith("torch."):
            constants = _constants(value.args)
        if constants is None:
            return None
        found += constants
    return tuple(found)


def _own_attribute(node: ast.AST) -> Optional[str]:
    """Return the attribute of `self` that an expression is, or is a part of: `mean` of `self.mean[0].data`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and dotted(node.value) == "self":
            return node.attr
        node = node.value
    return None


def find_models(nodes: Iterable[ast.ClassDef], names: Names) -> List[Model]:
    """Return the models among the classes of a file, in the order of the text, through inheritance within the file."""
    classes = {node.name: node for node in nodes}
    models: Dict[str, Optional[Model]] = {}
    for name in classes:
        _visit(name, classes, models, names)
    return sorted(filter(None, models.values()), key=lambda model: model.node.lineno)


def _visit(
    name: str, classes: Dict[str, ast.ClassDef], models: Dict[str, Optional[Model]], names: Names
) -> Optional[Model]:
    if name in models or name not in classes:
        return models.get(name)
    models[name] = None  # as long as it is only known to inherit from itself
    node = classes[name]
    own = (base.id for base in node.bases if isinstance(base, ast.Name))
    bases = [base for base in (_visit(each, classes, models, names) for each in own) if base is not None]
    if bases or any(_is_module_class(names.resolve(base), node) for base in node.bases):
        model = models[name] = Model(node, bases)
        for base in reversed(bases):
            model.holds.update(base.holds)
            model.values.update(base.values)
            model.buffers.update(base.buffers)
        _collect(model, names)
    return models[name]


def _is_module_class(base: Optional[str], node: ast.ClassDef) -> bool:
    if base is None:
        return False
    if base.startswith("torch.nn.") and base.count(".") == 2:
        return True
    if base.startswith("torchvision.models.") or (base.startswith("transformers.") and base.endswith("Model")):
        return True
    # A base from another file of the user's: believe the shape of the class.
    methods = {statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)}
    return {"__init__", "forward"} <= methods and not base.startswith(("torch.autograd.", "torch.optim."))


def _collect(model: Model, names: Names) -> None:
    for statement in model.node.body:
        for name, _ in assignments(statement):
            model.holds.setdefault(name, Kind.PYTHON)
    init = model.method("__init__")
    if init is None or init not in model.node.body:
        return
    owner = next((parameter.arg for parameter in parameters_of(init)), "self")
    nodes = walk(init)
    for name, value in (pair for node in nodes for pair in assignments(node)):
        of, _, attribute = name.rpartition(".")
        if of == owner:
            model.values[attribute] = value
            kind = _kind(value, names)
            if kind is not None and model.holds.get(attribute) is not Kind.BUFFER:
                model.holds[attribute] = kind
    for call, of in method_calls(nodes, *_REGISTERED):
        label = constant(argument(call, "name", 0))
        if of == owner and isinstance(label, str):
            model.holds[label] = _REGISTERED[getattr(call.func, "attr", "")]
            tensor = argument(call, "tensor", 1)
            if model.holds[label] is Kind.BUFFER and tensor is not None:
                model.buffers[label] = tensor


def _kind(value: ast.expr, names: Names) -> Optional[Kind]:
    called = names.called(value)
    if isinstance(value, ast.Constant):
        return Kind.PYTHON
    if called is None:
        # A class of the file, or a method call: `Block(...)` is a module more often than not.
        capital = isinstance(value, ast.Call) and (getattr(value.func, "id", "")[:1]).isupper()
        return Kind.MODULE if capital else None
    if called in _CONTAINERS:
        return Kind.MODULES
    if called in ("torch.nn.Parameter", "torch.nn.Buffer"):
        return Kind.PARAMETER if called.endswith("Parameter") else Kind.BUFFER
    if called in FACTORIES:
        return Kind.UNREGISTERED
    return Kind.MODULE if is_layer(called) else None
