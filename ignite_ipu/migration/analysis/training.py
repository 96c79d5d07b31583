"""Optimizers, schedules, models, loss functions and executors that a file trains with, by name."""

from __future__ import annotations

import ast
import contextlib
import re
import weakref
from functools import cached_property
from typing import Dict, List, Optional, Set, Tuple

from ignite_ipu.migration.analysis.engines import LOADER_FACTORIES, TRAINER_FACTORIES, Engines
from ignite_ipu.migration.analysis.host_functions import HostFunctions
from ignite_ipu.migration.analysis.kinds import parameters_of
from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of, unmoved, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

BACKWARD = ("backward", "manual_backward")
"""Methods that make a backward pass."""
_NAMES_OF_LOSSES = re.compile(r"(.*[._])?(criterion|loss(_(fn|func|function|module))?)")
_SCHEDULE_FACTORIES = ("torch.optim.lr_scheduler.*", "transformers.get_scheduler", "transformers.optimization.*")


def clips_on_host(optimizer: ast.Call, name: str) -> bool:
    """Return whether PopTorch cannot clip gradients by their norm in the update of an optimizer, by its construction.

    Its SGD with momentum clips the velocity, and its RMSprop has no maximal norm.
    """
    momentum = constant(argument(optimizer, "momentum", 2)) if name == "torch.optim.SGD" else None
    return name == "torch.optim.RMSprop" or (isinstance(momentum, float) and momentum > 0)


class Training:
    """The training side of a file, which outlives this; tables map targets' sources (`self.opt`) to their values."""

    def __init__(self, file: ParsedFile) -> None:
        # The file keeps this; a circle of the two would keep every tree in memory until it is collected.
        self.file: ParsedFile = weakref.proxy(file)

    def named(self, *names: str) -> Dict[str, ast.Call]:
        """Return the variables that hold results of calls of these functions or classes."""
        calls = {id(call) for call, _ in self.file.calls(*names)}
        return {name: value for name, value in self.file.assigned if isinstance(value, ast.Call) and id(value) in calls}

    @cached_property
    def optimizer_calls(self) -> List[Tuple[ast.Call, str]]:
        """Every construction of an optimizer of torch or PopTorch, with the class's dotted name."""
        calls = self.file.calls("torch.optim.*", "poptorch.optim.*")
        return [(call, name) for call, name in calls if name.count(".") == 2 and name.rsplit(".", 1)[1][:1].isupper()]

    @cached_property
    def optimizers(self) -> Dict[str, Tuple[ast.Call, str]]:
        """Optimizer variables: the construction and the class."""
        made = {id(call): name for call, name in self.optimizer_calls}
        found: Dict[str, Tuple[ast.Call, str]] = {}
        for target, value in self.file.assigned:
            inner = self.unwrapped(value)
            if isinstance(inner, ast.Call) and id(inner) in made:
                found[target] = (inner, made[id(inner)])
        return found

    def unwrapped(self, value: ast.expr) -> ast.expr:
        """Look through `idist.auto_optim(optimizer)` and `ipu_prepare(optimizer, model)`."""
        wrappers = ("ignite.distributed.auto_optim", "ignite_ipu.ipu_prepare")
        while isinstance(value, ast.Call) and value.args and self.file.names.called(value) in wrappers:
            value = value.args[0]
        return value

    @cached_property
    def models(self) -> Set[str]:
        """Variables that hold a model: made, used or annotated as models are, and parameters that are given one."""
        own = {model.name for model in self.file.models}
        found: Set[str] = set()
        for target, value in self.file.assigned:
            made = unmoved(value)
            name = self.file.names.called(made) or ""
            local = isinstance(made, ast.Call) and dotted(made.func) in own and not self._is_loss(target)
            if local or name == "torch.nn.Sequential" or name.startswith("torchvision.models."):
                found.add(target)
        for call, owner in self.file.method_calls("parameters", "train", "eval"):
            # A loss module has modes, too; only its name and its place may distinguish it from a model.
            learns = owner_of(call, "parameters") is not None
            known = owner in ("", "self", *found)
            if not call.args and not known and (learns or not self._is_loss(owner)):
                found.add(owner)
        return found | self._parameters_of(found)

    @cached_property
    def trained(self) -> Set[str]:
        """The last names of the models that optimizers are made for, as they are called there."""
        made = [node for call, _ in self.optimizer_calls for node in walk(call)]
        owners = [owner_of(node, "parameters", "named_parameters") for node in made]
        return {owner.rpartition(".")[2] for owner in owners if owner}

    def is_trained(self, model: str) -> bool:
        """Return whether a model may be one that an optimizer trains: not one that the file makes beside it."""
        return not self.trained or model.rpartition(".")[2] in self.trained or model not in self.file.values

    def _is_loss(self, name: str) -> bool:
        """Return whether a variable is made as a loss, or named as one and always called with output and target."""
        made = [value.func for value in map(unmoved, self.file.values.get(name, ())) if isinstance(value, ast.Call)]
        if any((self.file.names.resolve(kind) or dotted(kind) or "").endswith("Loss") for kind in made):
            return True
        named = _NAMES_OF_LOSSES.fullmatch(name) is not None
        calls = [call for call in self.file.nodes(ast.Call) if dotted(call.func) == name] if named else []
        return bool(calls) and all(len(call.args) + len(call.keywords) >= 2 for call in calls)

    def _parameters_of(self, models: Set[str]) -> Set[str]:
        """Return the parameters of functions that every call gives a model, or that alone are annotated as modules."""
        found: Set[str] = set()
        for function in self.file.nodes(ast.FunctionDef):
            parameters = parameters_of(function)
            annotated = {each.arg for each in parameters if self._class_of(each) == "torch.nn.Module"}
            # Of several one may be the loss.
            modules = {name for name in annotated if re.search("loss|criteri", name) is None}
            found |= modules if len(modules) == 1 else set()
            for each in parameters if self.file.functions.get(function.name) is function else ():
                given = self.file.given(function, each.arg)
                if given and all(dotted(value) in models for value in given):
                    found.add(each.arg)
        return found

    def _class_of(self, parameter: ast.arg) -> Optional[str]:
        annotation: Optional[ast.AST] = parameter.annotation
        text = constant(annotation)
        if isinstance(text, str):
            with contextlib.suppress(SyntaxError):
                annotation = ast.parse(text, mode="eval").body
        return None if annotation is None else self.file.names.resolve(annotation)

    @cached_property
    def schedulers(self) -> Dict[str, ast.Call]:
        return self.named(*_SCHEDULE_FACTORIES)

    @cached_property
    def executors(self) -> Dict[str, ast.Call]:
        return self.named("poptorch.trainingModel", "poptorch.inferenceModel")

    @cached_property
    def trainers(self) -> List[ast.Call]:
        """Calls of Ignite's supervised trainer factory, and of ours."""
        return [call for call, _ in self.file.calls(*TRAINER_FACTORIES)]

    @cached_property
    def loss_functions(self) -> Set[str]:
        """Names of functions that are compiled as the loss of a trainer or of a batch."""
        batches = [call for call, _ in self.file.calls("ignite_ipu.ipu_train_batch")]
        names = {dotted(argument(call, "loss_fn", 2)) for call in [*self.trainers, *batches]}
        return {name for name in names if name is not None}

    @cached_property
    def backwards(self) -> List[ast.Call]:
        """The calls of `backward()` in host code, in the order of the text."""
        found = self.file.nodes(ast.Call)
        return [call for call in found if self._is_backward(call) and not self._is_traced(call)]

    @cached_property
    def engines(self) -> Engines:
        return Engines(self.file, self.trainers, self.backwards, self.named(*LOADER_FACTORIES))

    @cached_property
    def host_functions(self) -> HostFunctions:
        return HostFunctions(self.file)

    @cached_property
    def backward_calls(self) -> List[ast.Call]:
        """The calls that make a backward pass in host code, also those of a library's object that is given the loss."""
        return [*self.backwards, *(call for call, _ in self.file.method_calls(*BACKWARD))]

    def _is_backward(self, call: ast.Call) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "backward":
            return False
        # accelerator.backward(loss) and torch.autograd.backward(loss) are something else.
        owner = dotted(function.value)
        return not call.args or owner is None or self.file.names.resolve(function.value) is not None

    def _is_traced(self, call: ast.Call) -> bool:
        function = self.file.function_of(call)
        host = function is not None and function.name != "forward" and not function.name.startswith("_forward")
        return call in self.file.traced and not host

    @cached_property
    def evaluations(self) -> List[ast.Call]:
        """The calls of models under torch.no_grad() that are put in evaluation mode beside it."""
        evaluated = {(name, self.file.function_of(call)) for call, name in self.file.method_calls("eval")}
        found = []
        for call in self.file.nodes(ast.Call):
            name = dotted(call.func)
            host = name in self.models and call not in self.file.traced
            if host and self.file.without_gradients(call) and (name, self.file.function_of(call)) in evaluated:
                found.append(call)
        return found

    def is_optimizer(self, name: str) -> bool:
        """Return whether a variable holds an optimizer, by its assignment, its name, or its method calls."""
        if name in self.schedulers:
            return False
        last = name.rsplit(".", 1)[-1].lower()
        named = last.startswith("opt") or last.endswith(("optimizer", "optim", "_opt"))
        cleared = any(owner == name for _, owner in self.file.method_calls("zero_grad"))
        return name in self.optimizers or named or (cleared and name not in self.models)
