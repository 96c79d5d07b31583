"""Changes of a model's tensors or of an optimizer's update that compiled programs of engines do not take over."""

from __future__ import annotations

import ast
from typing import Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.engines import EVALUATOR_FACTORIES
from ignite_ipu.migration.analysis.kinds import Kind, parameters_of
from ignite_ipu.migration.analysis.names import (
    argument,
    attributes_in,
    chain_of,
    children,
    constant,
    dotted,
    has_hidden_arguments,
    has_weights,
    index_of,
    last_of,
    names_bound,
    owner_of,
    targets_of,
    unmoved,
    walk,
)
from ignite_ipu.migration.analysis.training import Training
from ignite_ipu.migration.analysis.training_regions import TrainingRegions

_STRUCTURAL = ("nesterov", "centered", "maximize", "amsgrad", "decoupled_weight_decay")
_NUMBERS = ("momentum", "dampening", "weight_decay")
_NOT_ZERO = {"torch.optim.AdamW": ("weight_decay",)}  # by default
_LISTS = ("append", "extend", "insert", "pop", "remove", "clear")
_PARTS = (*_LISTS, "add_module", "register_module", "__setitem__", "update")
_REGISTERING = ("register_parameter", "register_buffer")
_OF_PARTS = (
    "torch.nn.utils.prune.*",
    "torch.nn.utils.parametrizations.*",
    "torch.nn.utils.parametrize.register_parametrization",
    "torch.nn.utils.parametrize.remove_parametrizations",
    *[f"torch.nn.utils.{name}" for name in ("weight_norm", "remove_weight_norm", "spectral_norm")],
)
_OF_LOSSES = ("weight", "pos_weight")
_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.Identity")


class EngineChange(NamedTuple):
    """A node that makes a change, and the change as a clause."""

    node: ast.AST
    change: str


def engine_changes(training: Training) -> Iterator[EngineChange]:
    """Yield the changes after the construction of Ignite's engines, and the trainers of a part, or of a model again."""
    trainers, file = training.trainers, training.file
    made = [*trainers, *(call for call, _ in file.calls(*EVALUATOR_FACTORIES))]
    if not made:
        return
    # Trainers of ours may name hyper-parameters that change.
    told = any(argument(call, name) is not None for call in trainers for name in ("variable", "config"))
    given = [argument(call, "optimizer", 1) for call in trainers]
    found = _Changes(
        training,
        models=_last_names(argument(call, "model", 0) for call in made),
        optimizers=_last_names(None if each is None else training.unwrapped(each) for each in given),
        losses=_last_names(argument(call, "loss_fn", 2) for call in trainers),
        constants=() if told else _NUMBERS,
    )
    yield from found.of_optimizers()
    yield from found.of_trainers()
    runs = (call for call, _ in file.method_calls("run") if file.names.resolve(call.func) is None)
    for node, begun in TrainingRegions(training, made, runs).nodes():
        change = found.of_step(node, begun) or found.of_update(node, begun) or found.of_model(node)
        if change is not None:
            yield EngineChange(node, change)


def changes_fused_updates(training: Training) -> bool:
    """Return whether a file changes its models or the updates of its optimizers so that only the host updates them."""
    file, functions = training.file, training.host_functions
    found = _Changes(
        training,
        models=frozenset(map(_last_of, training.models)),
        optimizers=frozenset(map(_last_of, training.optimizers)),
        losses=frozenset(),
        constants=_NUMBERS,
    )
    if any(True for _ in found.of_parts()):
        return True
    trains = functions.above(training.backwards)
    calls = (call for call in file.nodes(ast.Call) if functions.callee(call) in trains - {None})
    runs = [*training.backwards, *calls, *(call for call, _ in file.method_calls("run"))]
    regions = TrainingRegions(training, [call for call, _ in training.optimizer_calls], runs, repeated=True)
    return any(found.of_update(node, begun) or found.of_model(node) for node, begun in regions.nodes())


class _Changes:
    """Changes of models, optimizers and losses, which are given by the last parts of their names."""

    def __init__(
        self,
        training: Training,
        models: FrozenSet[str],
        optimizers: FrozenSet[str],
        losses: FrozenSet[str],
        constants: Sequence[str],
    ) -> None:
        self._training, self._file = training, training.file
        self._models, self._optimizers, self._losses, self._constants = models, optimizers, losses, constants
        self._rewriting = {id(call): name for call, name in self._file.calls(*_OF_PARTS)}
        own = self._file.models
        self._holds: Dict[str, Kind] = {name: kind for model in own for name, kind in model.holds.items()}
        self._values: Dict[str, List[ast.expr]] = {}
        for model in own:
            for name, value in model.values.items():
                self._values.setdefault(name, []).append(value)
        self._classes = {model.name for model in own}
        loops = [(each.target, each.iter) for each in self._file.nodes(ast.For)]
        loops += [(each.target, each.iter) for each in self._file.nodes(ast.comprehension)]
        over = [target for target, each in loops if "param_groups" in attributes_in(each)]
        self._groups = {part.id for target in over for part in walk(target) if isinstance(part, ast.Name)}

    # The optimizer

    def of_step(self, node: ast.AST, begun: bool) -> Optional[str]:
        """Return the change that a trainer refuses, and a loop does not, when it was made, and perhaps has `begun`."""
        owner = owner_of(node, "add_param_group", "step")
        if owner is None or _last_of(owner) not in self._optimizers:
            return None
        if owner_of(node, "step") is None:
            return f"{owner} gets another parameter group"
        return f"{owner}.step() is called on the host" if begun else None

    def of_update(self, node: ast.AST, begun: bool) -> Optional[str]:
        """Return the change of an update that a node makes, if the training has `begun`."""
        if not begun or not self._optimizers:
            return None
        owner = owner_of(node, *_LISTS)
        if owner is not None:
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            return "parameter groups are added or removed" if self._is_listed(node.func.value) else None
        for target, deletes in _targets(node):
            change = self._of_group(target, deletes)
            if change is not None:
                return change
        return None

    def _of_group(self, target: ast.expr, deletes: bool) -> Optional[str]:
        base = target.value if isinstance(target, ast.Subscript) else target
        if getattr(base, "attr", "") == "param_groups" or self._is_listed(base):
            return "parameter groups are added or removed"
        name = constant(index_of(target)) if isinstance(target, ast.Subscript) and self._is_group(base) else None
        if name == "params":
            return "a parameter group gets other parameters"
        if name in _STRUCTURAL:
            return f"{name} of a parameter group changes, by which the update is selected"
        if name in self._constants and not deletes and self._is_zero(str(name)):
            return f"{name} of a parameter group changes, which is a constant of the update because it was 0"
        return None

    def _is_listed(self, node: ast.expr) -> bool:
        """Return whether an expression is the list of an optimizer's groups, or that of a group's parameters."""
        if isinstance(node, ast.Subscript):
            return self._is_group(node.value) and constant(index_of(node)) == "params"
        return getattr(node, "attr", "") == "param_groups"

    def _is_group(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            value = self._file.single_value(node.id)
            return node.id in self._groups or (
                value is not None and not isinstance(value, ast.Name) and self._is_group(value)
            )
        return isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "param_groups"

    def _is_zero(self, name: str) -> bool:
        """Return whether a hyper-parameter is zero for all groups, by the constructions of the optimizers."""
        named = self._training.optimizers.items()
        made = [given for target, given in named if _last_of(target) in self._optimizers]
        return bool(made) and all(_is_made_zero(call, kind, name) for call, kind in made)

    # The model

    def of_model(self, node: ast.AST) -> Optional[str]:
        """Return the change of a model's parts that a node makes."""
        name = self._rewriting.get(id(node))
        if name is not None and name.rpartition(".")[2].islower():
            return f"{name.rpartition('.')[2]} gives a layer other tensors"
        if owner_of(node, *_PARTS, *_REGISTERING) is not None:
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            inside = [part for each in (*node.args, *(item.value for item in node.keywords)) for part in walk(each)]
            if not self._is_part(node.func.value):
                return None
            registers = node.func.attr in _REGISTERING
            return "a model gets other tensors" if registers or any(map(self._has_tensors, inside)) else None
        named = isinstance(node, ast.Call) and self._file.names.resolve(node.func) == "setattr"
        if named and isinstance(node, ast.Call) and len(node.args) == 3 and self._is_part(node.args[0]):
            replaces = self._replaces(str(constant(node.args[1])), node.args[2])
            return "a model gets other tensors" if replaces else None
        for target, deletes in _targets(node):
            inner = target.value if isinstance(target, (ast.Attribute, ast.Subscript)) else None
            if inner is None or not self._is_part(inner):
                continue
            value = getattr(node, "value", None)
            attribute = target.attr if isinstance(target, ast.Attribute) else ""
            if attribute in _OF_LOSSES and not self._losses.isdisjoint(chain_of(inner)):
                return "a loss gets other tensors"
            if (deletes and attribute in self._holds) or (value is not None and self._replaces(attribute, value)):
                return "a model gets other tensors"
        return None

    def _is_part(self, node: ast.AST) -> bool:
        """Return whether a chain of attributes, elements and calls leads from a trainer's model or loss."""
        return not (self._models | self._losses).isdisjoint(chain_of(node))

    def _replaces(self, attribute: str, value: ast.expr) -> bool:
        """Return whether an attribute of a model, or an element of a part of it, gets other tensors by a value."""
        kind = self._holds.get(attribute)
        if kind in (Kind.PARAMETER, Kind.BUFFER) or self._has_tensors(value):
            known = self._values.get(attribute, []) if self._file.names.called(value) == "torch.nn.Identity" else []
            return not known or any(self._has_tensors(each) for each in known)
        return kind is Kind.MODULE and any(self._has_tensors(each) for each in self._values.get(attribute, []))

    def _has_tensors(self, value: ast.AST) -> bool:
        """Return whether a value is a construction of parameters or of layers with some; Identity takes their place."""
        made = unmoved(value) if isinstance(value, ast.expr) else value
        if isinstance(made, ast.Name):
            assigned = self._file.single_value(made.id)
            return isinstance(assigned, ast.Call) and self._has_tensors(assigned)
        name = self._file.names.called(made) or ""
        own = isinstance(made, ast.Call) and dotted(made.func) in self._classes
        return own or name in _PARAMETERS or has_weights(name) or name.startswith("torchvision.models.")

    # Trainers

    def of_optimizers(self) -> Iterator[EngineChange]:
        """Yield the trainers of models of which their optimizers hold one part alone."""
        parts = dict(self.of_parts())
        for trainer in self._training.trainers:
            optimizer = dotted(argument(trainer, "optimizer", 1)) or ""
            if optimizer in parts:
                yield EngineChange(trainer, f"{optimizer} holds the parameters of {parts[optimizer]} alone")

    def of_parts(self) -> Iterator[Tuple[str, str]]:
        """Yield the optimizers that hold the parameters of one part of a model alone, with it, if nothing is frozen."""
        if any(node.attr in ("requires_grad", "requires_grad_") for node in self._file.nodes(ast.Attribute)):
            return
        for name, (made, _) in self._training.optimizers.items():
            owners = {owner_of(node, "parameters") for node in walk(made)} - {None}
            part = min(map(str, owners)) if len(owners) == 1 else ""
            if _last_of(part.rpartition(".")[0]) in self._models:
                yield name, part

    def of_trainers(self) -> Iterator[EngineChange]:
        """Yield the constructions of trainers for a model that has one already, unless one is closed."""
        closed = [owner for _, owner in self._file.method_calls("close")]
        if "ipu" in {*map(_last_of, closed), *(last_of(self._file.single_value(owner)) for owner in closed)}:
            return
        known: Set[Tuple[Optional[ast.AST], str]] = set()
        for trainer in self._training.trainers:
            function, model = self._file.function_of(trainer), dotted(argument(trainer, "model", 0))
            if model is None:
                continue
            made = [value for value in self._file.values.get(model, ()) if self._file.function_of(value) is function]
            again = (function, model) in known and len(made) <= 1
            known.add((function, model))
            if again or self._is_made_again(trainer, made) or self._is_given_again(function, model):
                yield EngineChange(trainer, f"{model} has a trainer already")
            elif self._is_looped_over(function, model):
                yield EngineChange(trainer, f"a loop, or another engine's function, trains {model}, too")

    def _is_made_again(self, trainer: ast.Call, made: List[ast.expr]) -> bool:
        """Return whether a trainer is made in a loop, and its model is not."""
        for loop in self._file.loops_around(trainer):
            return not any(loop.lineno <= value.lineno <= (loop.end_lineno or 0) for value in made)
        return False

    def _is_given_again(self, function: Optional[ast.AST], model: str) -> bool:
        """Return whether calls of a function that makes a trainer give it one model several times."""
        if not isinstance(function, ast.FunctionDef) or model not in {each.arg for each in parameters_of(function)}:
            return False
        given = [dotted(value) for value in self._file.given(function, model)]
        return any(
            name is not None and given.count(name) > 1 and len(self._file.values.get(name, ())) <= 1 for name in given
        )

    def _is_looped_over(self, function: Optional[ast.AST], model: str) -> bool:
        """Return whether code that goes backward calls the variable that a trainer of a function is given."""
        file, own = self._file, self._variable(function, model)
        scopes = {file.function_of(backward) for backward in self._training.backwards}
        for call in (each for each in file.nodes(ast.Call) if file.function_of(each) in scopes):
            name = dotted(call.func)
            if name is None:
                continue
            called = self._variable(file.function_of(call), name)
            given = file.given(called[0], name) if isinstance(called[0], ast.FunctionDef) else []
            sources = [self._variable(file.function_of(each), dotted(each) or "") for each in given if each is not None]
            if own in (called, *sources):
                return True
        return False

    def _variable(self, function: Optional[ast.AST], name: str) -> Tuple[Optional[ast.AST], str]:
        """Return what a name in a function is: the variable of a function, a class's attribute, or a global one."""
        first = name.partition(".")[0]
        if first == "self" and function is not None:
            return next((each for each in self._file.ancestors(function) if isinstance(each, ast.ClassDef)), None), name
        while isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if first in names_bound(function) | {each.arg for each in parameters_of(function)}:
                return function, name
            function = self._file.function_of(function)
        return None, name


def _is_made_zero(call: ast.Call, kind: str, name: str) -> bool:
    """Return whether a hyper-parameter is zero for all groups of an optimizer of a class, by its construction."""
    keys = {constant(key) for node in walk(call) if isinstance(node, ast.Dict) for key in node.keys}
    if has_hidden_arguments(call) or name in keys or call.args[2:]:
        return False
    value = argument(call, name)
    return constant(value) == 0 if value is not None else name not in _NOT_ZERO.get(kind, ())


def _targets(node: ast.AST) -> Iterator[Tuple[ast.expr, bool]]:
    """Yield the targets that a statement assigns, or deletes."""
    if isinstance(node, ast.Delete):
        yield from ((target, True) for target in node.targets)
    for target in targets_of(node):
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from ((each, False) for each in children(target) if isinstance(each, ast.expr))
        else:
            yield target, False


def _last_names(nodes: Iterable[Optional[ast.AST]]) -> FrozenSet[str]:
    return frozenset(map(last_of, nodes)) - {""}


def _last_of(name: str) -> str:
    return name.rpartition(".")[2]
