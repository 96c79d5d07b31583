"""The classes of a file that are models: what they inherit, what they hold, and their methods."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, Optional, Tuple, Union

from ignite_ipu.migration.analysis.names import Names, argument, constant, dotted, pairs, walk

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

# Layers without weights, which a loss may be made of; and those whose names end in Loss.
_WEIGHTLESS = {
    f"torch.nn.{name}"
    for name in [
        "Module",
        "Identity",
        "Flatten",
        "Softmax",
        "LogSoftmax",
        "Sigmoid",
        "LogSigmoid",
        "Tanh",
        "ReLU",
        "GELU",
        "Softplus",
        "Dropout",
        "CosineSimilarity",
        "PairwiseDistance",
        "AvgPool1d",
        "AvgPool2d",
        "MaxPool1d",
        "MaxPool2d",
        "Upsample",
        "Unfold",
    ]
}
_CONTAINERS = {"torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.ParameterList", "torch.nn.ParameterDict"}
TENSOR_FACTORIES = {
    f"torch.{name}"
    for name in [
        "arange",
        "empty",
        "eye",
        "from_numpy",
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "tensor",
        "tril",
        "triu",
        "zeros",
        "as_tensor",
        "FloatTensor",
        "LongTensor",
        "Tensor",
    ]
}


class Holding(enum.Enum):
    """Kind of an attribute of a model."""

    MODULE = "module"
    MODULES = "container of modules"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    PLAIN_TENSOR = "unregistered tensor"
    PYTHON = "Python value"


@dataclass
class Model:
    """A class that PyTorch would run as a module.

    Attributes:
        node: Its definition.
        bases: The file's own models it inherits from, nearest first.
        holds: What its attributes are, inherited ones included.
        values: The expression each attribute is given in `__init__`.
        learns: Whether it has weights, as far as the file shows; a loss with none is no model that is trained.
    """

    node: ast.ClassDef
    bases: List[Model] = field(default_factory=list)
    holds: Dict[str, Holding] = field(default_factory=dict)
    values: Dict[str, ast.expr] = field(default_factory=dict)
    learns: bool = True

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name

    def reads(self, attribute: str) -> bool:
        """Tell whether its code, inherited one included, reads an attribute of this name, or may by `getattr`."""
        for node in ast.walk(self.node):
            if isinstance(node, ast.Attribute) and node.attr == attribute and not isinstance(node.ctx, ast.Store):
                return True
            if isinstance(node, ast.Constant) and node.value == attribute:
                return True
        return any(base.reads(attribute) for base in self.bases)

    def method(self, name: str) -> Optional[Function]:
        """Return a method by name, inherited ones included."""
        for statement in self.node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
                return statement
        for base in self.bases:
            found = base.method(name)
            if found is not None:
                return found
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
        _collect(model, names)
        model.learns = _learns(model, names)
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


def _self_name(function: Function) -> str:
    positional = [*function.args.posonlyargs, *function.args.args]
    return positional[0].arg if positional else ""


def _collect(model: Model, names: Names) -> None:
    init = next(
        (item for item in model.node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None
    )
    for statement in model.node.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    model.holds.setdefault(target.id, Holding.PYTHON)
    if init is None:
        return
    owner = _self_name(init)
    for name, value in _assignments(init, owner):
        model.values[name] = value
        kind = _kind(value, names)
        if kind is not None and model.holds.get(name) is not Holding.BUFFER:
            model.holds[name] = kind
    for call in (node for node in walk(init) if isinstance(node, ast.Call)):
        function = call.func
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            continue
        if function.value.id != owner:
            continue
        label = constant(argument(call, "name", 0))
        kinds = {
            "register_buffer": Holding.BUFFER,
            "register_parameter": Holding.PARAMETER,
            "add_module": Holding.MODULE,
            "register_module": Holding.MODULE,
        }
        if isinstance(label, str) and function.attr in kinds:
            model.holds[label] = kinds[function.attr]


def _learns(model: Model, names: Names) -> bool:
    """Tell whether a model may have weights: some of what it holds or calls is not known to have none."""
    inherited = [base for base in model.node.bases if not isinstance(base, ast.Name) or names.resolve(base) is not None]
    if any(base.learns for base in model.bases) or not all(_is_weightless(names.resolve(base)) for base in inherited):
        return True
    if any(kind in (Holding.PARAMETER, Holding.MODULES) for kind in model.holds.values()):
        return True
    if any(
        kind is Holding.MODULE and not _is_weightless(_made_by(model, name, names))
        for name, kind in model.holds.items()
    ):
        return True
    called = {name for name in map(_of_self, _calls(model.node)) if name in model.values}
    if not all(_is_weightless(_made_by(model, name, names)) for name in called):
        return True
    # What changes itself in every call is more than a loss.
    forward = model.method("forward")
    helpers = [] if forward is None else [model.method(name) for name in map(_of_self, _calls(forward))]
    return forward is None or any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for function in [forward, *helpers]
        if function is not None
        for node in walk(function)
    )


def _calls(node: ast.AST) -> Iterator[ast.expr]:
    return (part.func for part in walk(node) if isinstance(part, ast.Call))


def _of_self(function: ast.expr) -> str:
    """Return the attribute of `self` that a function is or belongs to, "" for any other function."""
    names = (dotted(function) or "").split(".")
    return names[1] if names[0] == "self" and len(names) > 1 else ""


def _made_by(model: Model, name: str, names: Names) -> Optional[str]:
    value = model.values.get(name)
    return None if value is None else names.called(value)


def _is_weightless(name: Optional[str]) -> bool:
    return name is not None and (name in _WEIGHTLESS or (name.startswith("torch.nn.") and name.endswith("Loss")))


def _assignments(init: Function, owner: str) -> Iterator[Tuple[str, ast.expr]]:
    for node in walk(init):
        targets: List[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        for name, each in (pair for target in targets for pair in pairs(target, value)):
            if name.startswith(f"{owner}.") and name.count(".") == 1:
                yield name.split(".")[1], each


def _kind(value: ast.expr, names: Names) -> Optional[Holding]:
    if isinstance(value, ast.Constant):
        return Holding.PYTHON
    called = names.called(value)
    if called is None:
        # A class of the file, or a method call: `Block(...)` is a module more often than not.
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[:1].isupper():
            return Holding.MODULE
        return None
    if called in _CONTAINERS:
        return Holding.MODULES
    if called in ("torch.nn.Parameter", "torch.nn.Buffer"):
        return Holding.PARAMETER if called.endswith("Parameter") else Holding.BUFFER
    if called in TENSOR_FACTORIES:
        return Holding.PLAIN_TENSOR
    if called.startswith("torch.nn.") and called.rsplit(".", 1)[1][:1].isupper():
        return Holding.MODULE
    return None
