"""What a file trains with: its optimizers, schedules, loaders, models, loss functions and executors, by name."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Set, Tuple

from ignite_ipu.migration.analysis.engine_functions import process_function
from ignite_ipu.migration.analysis.evaluations import find_evaluations
from ignite_ipu.migration.analysis.model_names import find_model_names
from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of, unmoved
from ignite_ipu.migration.steps.plan import Step
from ignite_ipu.migration.steps.reader import find_steps

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program

TRAINER_FACTORIES = ("ignite.engine.create_supervised_trainer", "ignite_ipu.create_ipu_trainer")
EVALUATOR_FACTORIES = ("ignite.engine.create_supervised_evaluator", "ignite_ipu.create_ipu_evaluator")
_LOADER_FACTORIES = ("torch.utils.data.DataLoader", "ignite.distributed.auto_dataloader")
_LIBRARIES = ("torch.", "ignite.", "ignite_ipu.", "poptorch.", "accelerate.", "transformers.")
_SCHEDULE_FACTORIES = ("torch.optim.lr_scheduler.*", "transformers.get_scheduler", "transformers.optimization.*")


class Training:
    """The training side of a file; every table maps the source of a target (`optimizer`, `self.opt`) to its value."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.assigned: List[Tuple[str, ast.expr]] = list(_assignments(program.tree))

    def _named(self, *names: str) -> Dict[str, ast.Call]:
        calls = {id(call) for call, _ in self.program.calls(*names)}
        return {name: value for name, value in self.assigned if isinstance(value, ast.Call) and id(value) in calls}

    @cached_property
    def optimizer_calls(self) -> List[Tuple[ast.Call, str]]:
        """Every construction of an optimizer of torch or PopTorch, with the class's dotted name."""
        calls = self.program.calls("torch.optim.*", "poptorch.optim.*")
        return [(call, name) for call, name in calls if name.count(".") == 2 and name.rsplit(".", 1)[1][:1].isupper()]

    @cached_property
    def optimizers(self) -> Dict[str, Tuple[ast.Call, str]]:
        """Optimizer variables: the construction and the class."""
        made = {id(call): name for call, name in self.optimizer_calls}
        found: Dict[str, Tuple[ast.Call, str]] = {}
        for target, value in self.assigned:
            inner = self._unwrapped(value)
            if isinstance(inner, ast.Call) and id(inner) in made:
                found[target] = (inner, made[id(inner)])
        return found

    def _unwrapped(self, value: ast.expr) -> ast.expr:
        """Look through `idist.auto_optim(optimizer)`."""
        while self.program.names.called(value) == "ignite.distributed.auto_optim":
            assert isinstance(value, ast.Call)
            inner = argument(value, "optimizer", 0)
            if inner is None:
                break
            value = inner
        return value

    @cached_property
    def models(self) -> Set[str]:
        """Variables that hold a model: made from one of the file's models, used as only models are, or annotated."""
        return find_model_names(self.program)

    @cached_property
    def losses(self) -> Dict[str, ast.Call]:
        """Loss module variables."""
        calls = {id(call): call for call, name in self.program.calls("torch.nn.*") if name.endswith("Loss")}
        made = ((target, id(unmoved(value))) for target, value in self.assigned)
        return {target: calls[value] for target, value in made if value in calls}

    @cached_property
    def own_losses(self) -> Dict[str, ast.Call]:
        """Variables that hold a module of the file's without weights, such as a loss, moved to a device or not."""
        weightless = {model.name for model in self.program.models if not model.learns}
        found: Dict[str, ast.Call] = {}
        for target, value in self.assigned:
            made = unmoved(value)
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id in weightless:
                found[target] = made
        return found

    @cached_property
    def schedulers(self) -> Dict[str, ast.Call]:
        """Learning-rate schedule variables."""
        return self._named(*_SCHEDULE_FACTORIES)

    @cached_property
    def loaders(self) -> Dict[str, ast.Call]:
        """Variables that hold torch's DataLoader."""
        return self._named(*_LOADER_FACTORIES)

    @cached_property
    def executors(self) -> Dict[str, Tuple[ast.Call, str]]:
        """PopTorch executor variables: the construction, and which wrapper."""
        found: Dict[str, Tuple[ast.Call, str]] = {}
        for wrapper in ("poptorch.trainingModel", "poptorch.inferenceModel"):
            found.update({name: (call, wrapper) for name, call in self._named(wrapper).items()})
        return found

    @cached_property
    def trainers(self) -> List[ast.Call]:
        """Calls of Ignite's supervised trainer factory, and of ours."""
        return [call for call, _ in self.program.calls(*TRAINER_FACTORIES)]

    @cached_property
    def loss_functions(self) -> Set[str]:
        """Names of functions used as the loss of a trainer or of an understood training step."""
        names = {dotted(value) for value in (argument(call, "loss_fn", 2) for call in self.trainers) if value}
        for call, _ in self.program.calls("ignite_ipu.ipu_train_batch"):
            value = argument(call, "loss_fn", 2)
            names.add(dotted(value) if value is not None else None)
        for step in self.steps:
            if step.plan is not None and step.plan.loss_function is not None:
                names.add(dotted(step.plan.loss_function))
        return {name for name in names if name is not None}

    @cached_property
    def steps(self) -> List[Step]:
        """The training steps written out by hand, in the order of the text."""
        return find_steps(self.program)

    @cached_property
    def evaluations(self) -> List[ast.Call]:
        """The model calls of evaluation loops and evaluation steps."""
        return find_evaluations(self.program)

    @cached_property
    def training_loaders(self) -> Dict[str, Tuple[ast.Call, bool]]:
        """Loaders that feed training: their construction, and whether an engine of ours replaces them."""
        found: Dict[str, Tuple[ast.Call, bool]] = {}
        for data, replaced in self._training_data:
            self._note_loaders(data, replaced, found)
        return found

    @cached_property
    def unseen_loaders(self) -> List[ast.Call]:
        """Calls that make loaders for training which may keep an incomplete batch, where it cannot be dropped safely.

        They are those of the program's own functions, and loaders without a name or with arguments out of sight.
        """
        found: List[ast.Call] = []
        for data, replaced in self._training_data:
            for call in () if replaced else self._made_by_functions(data):
                if call not in found and constant(argument(call, "drop_last")) is not True:
                    found.append(call)
        return found

    @cached_property
    def _training_data(self) -> List[Tuple[ast.expr, bool]]:
        """What training goes through, and whether an engine of ours replaces the loaders in it."""
        trainers = {target for target, value in self.assigned if any(value is call for call in self.trainers)}
        found = [(data, True) for data in self._run_over(trainers)]
        engines = {target for target, value in self.assigned if self._is_training_engine(value)}
        found += [(data, False) for data in self._run_over(engines)]
        for call in self._trained_elsewhere():
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            found += [(value, False) for value in values if dotted(value) in self.loaders]
        for call in self._step_calls:
            for loop in self.program.loops_around(call):
                if isinstance(loop, ast.For):
                    found += [(data, False) for data in (loop.iter, *self._arguments_for(loop.iter))]
        return found

    @cached_property
    def _step_calls(self) -> List[ast.Call]:
        """The calls that train: backward() in hand-written steps, and what takes its place."""
        ours = [call for call, _ in self.program.calls("ignite_ipu.ipu_train_batch")]
        return [*(step.backward for step in self.steps), *ours]

    def _trained_elsewhere(self) -> Iterator[ast.Call]:
        """Yield the calls that give an optimizer to a function of another file of the program."""
        for call in self.program.nodes(ast.Call):
            if not self._is_of_another_file(call):
                continue
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(dotted(value) in self.optimizers for value in values):
                yield call

    def _run_over(self, engines: Set[str]) -> Iterator[ast.expr]:
        """Yield what is given to the `run` of these engines."""
        for call in self.program.nodes(ast.Call):
            data = argument(call, "data", 0)
            if owner_of(call, "run") in engines and data is not None:
                yield data

    def _is_training_engine(self, value: ast.expr) -> bool:
        if self.program.names.called(value) != "ignite.engine.Engine" or not isinstance(value, ast.Call):
            return False
        process, _ = process_function(self.program, value)
        trained = {getattr(self.program.function_of(call), "name", None) for call in self._step_calls}
        return process is not None and (dotted(process) or "").rsplit(".", 1)[-1] in trained

    def _arguments_for(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield what callers within the file give for the parameters that an expression mentions."""
        function = self.program.function_of(node)
        if function is None:
            return
        parameters = [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]
        bound = parameters[1:] if parameters[:1] == ["self"] else parameters
        for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & set(bound)):
            for call in self.program.nodes(ast.Call):
                if (dotted(call.func) or "").split(".")[-1] == function.name:
                    given = argument(call, name, bound.index(name))
                    if given is not None:
                        yield given

    def _made_by_functions(self, node: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls behind an expression that make loaders: of the class, or of a function here or elsewhere."""
        if isinstance(node, ast.Call) and self._makes_loaders(node):
            yield node
            return
        name = dotted(node)
        for targets, value in self._assigned_calls if name is not None else ():
            if name in targets and self._makes_loaders(value):
                yield value
        for part in ast.iter_child_nodes(node):
            yield from self._made_by_functions(part)

    def _makes_loaders(self, call: ast.Call) -> bool:
        if self.program.names.resolve(call.func) in _LOADER_FACTORIES:
            named = any(call is loader for loader in self.loaders.values())
            in_sight = named and all(keyword.arg is not None for keyword in call.keywords)
            return may_keep_incomplete(call) and not in_sight
        last = (dotted(call.func) or "").rsplit(".", 1)[-1]
        made = [
            loader
            for function in self.program.nodes(ast.FunctionDef)
            if function.name == last
            for loader, _ in self.program.calls(*_LOADER_FACTORIES)
            if self.program.function_of(loader) is function
        ]
        if made:
            return any(may_keep_incomplete(loader) for loader in made)
        return "loader" in last.lower() and self._is_of_another_file(call)

    def _is_of_another_file(self, call: ast.Call) -> bool:
        name = self.program.names.resolve(call.func)
        return name is not None and "." in name and not name.startswith(_LIBRARIES)

    @cached_property
    def _assigned_calls(self) -> List[Tuple[Set[Optional[str]], ast.Call]]:
        """Every call that is assigned, with the sources of all that is bound to it or to a part of it."""
        return [
            ({dotted(part) for target in node.targets for part in ast.walk(target)}, node.value)
            for node in self.program.nodes(ast.Assign)
            if isinstance(node.value, ast.Call)
        ]

    def _note_loaders(self, node: ast.AST, replaced: bool, found: Dict[str, Tuple[ast.Call, bool]]) -> None:
        for part in ast.walk(node):
            name = dotted(part)
            if name is not None and name in self.loaders:
                found[name] = (self.loaders[name], replaced)

    def optimizer_class(self, name: str) -> Optional[str]:
        """Return the dotted class of an optimizer variable, where the file shows it."""
        known = self.optimizers.get(name)
        return known[1] if known else None


def may_keep_incomplete(loader: ast.Call) -> bool:
    """Tell whether a loader's construction leaves open that its last batch is smaller."""
    keywords = [keyword.arg for keyword in loader.keywords]
    if "batch_sampler" in keywords:
        return False
    value = argument(loader, "drop_last")
    return constant(value) is False if value is not None else True


def _assignments(tree: ast.Module) -> Iterator[Tuple[str, ast.expr]]:
    """Yield (source of the target, value) for every assignment, tuples element by element."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _pairs(node.target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[Tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for one, part in zip(target.elts, value.elts):
                yield from _pairs(one, part)
        return
    name = dotted(target)
    if name is not None:
        yield name, value
