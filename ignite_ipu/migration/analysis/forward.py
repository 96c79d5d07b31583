"""Analysis of the code that an IPU traces: which values are tensors there, and their uses."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Dict, FrozenSet, Mapping, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.conditions import Conditions
from ignite_ipu.migration.analysis.expressions import Expressions, declared
from ignite_ipu.migration.analysis.kinds import (
    Fact,
    Function,
    Kind,
    declared_kind,
    parameters_of,
    settled_by,
    used_as_tensor,
)
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import assignments, dotted, targets_of, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.scope import Environment, OutsideCall, Scope
from ignite_ipu.migration.analysis.values import PYTHON, UNKNOWN, Origin, Value, join, result
from ignite_ipu.program.argument_checks import is_check, operands

# Parts in parts that a parameter is followed through.
_DEEPEST = 4


class ForwardAnalysis:
    """Follows tensors through the models and functions of one file; `facts` grows with each run.

    PopTorch runs `forward` once, on tensors without values. So the analysis looks for reads of a tensor's value, and
    for reads and writes of Python state. It follows values through a model's methods and the file's functions, and
    classifies each expression as a tensor, a Python value, or unknown. Unknown is never reported. A tensor of constants
    has its value in the trace, and code may read it.
    """

    def __init__(self, file: ParsedFile) -> None:
        self.file, self.names = file, file.names
        self.models = {model.name: model for model in file.models}
        self.functions = file.functions
        self.conditions = Conditions(file)
        self.layers = {name for model in file.models for name in (*model.values, *model.holds)}
        self.of_tensors = {
            name
            for model in file.models
            for name, value in model.values.items()
            if file.names.called(value) in tensor_methods.OF_TENSORS
        }
        # Models that others are made of: their inputs are what those give them.
        self.parts = {
            name for model in file.models for each in model.values for name in model.constructed_in(each)
        } & self.models.keys()
        self.facts: Set[Fact] = set()
        # Calls of functions of other modules that code makes for sure.
        self.outside: Set[OutsideCall] = set()
        self.lambdas: Dict[ast.Lambda, Function] = {}
        # The variables of the module.
        self.shared = dict(pair for statement in file.tree.body for pair in assignments(statement))
        self.visited: Dict[Tuple[object, ...], Tuple[Value, FrozenSet[Tuple[str, object]]]] = {}
        # The constructors of the module's other classes, in which objects of a call are made.
        plain = [each for each in file.tree.body if isinstance(each, ast.ClassDef) and each.name not in self.models]
        self.shared.update((each.name, ast.Name(each.name, ast.Load())) for each in plain)
        self.constructors: Dict[str, Function] = {
            each.name: method
            for each in plain
            for method in each.body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        }
        self.titles = {method: f"{name}.{method.name}" for name, method in self.constructors.items()}
        # Whether gradients are recorded, as far as the text shows it.
        self.with_gradients = True
        # The ways in which code around the walked one transforms the models that are called: kinds of facts.
        self.transforms: FrozenSet[str] = frozenset()
        # What the walked code has done so far, by name: the kinds of the values that a call of forward has set
        # attributes of models to; in a loop, the modes that it has put models in.
        self.past: FrozenSet[Tuple[str, object]] = frozenset()
        # Attributes that some call reads before it sets them, and changes of ones that count only then.
        self.early_reads: Set[str] = set()
        self.renewals: Set[Tuple[str, Fact]] = set()

    def records_gradients(self, node: ast.AST) -> bool:
        """Return whether gradients are recorded at a node that is walked."""
        return self.with_gradients and not self.file.without_gradients(node)

    def run_models(self, models: Sequence[Model]) -> None:
        """Analyse the forward of models; of parts of others once more only if those do not show what they give them."""
        for inner in (False, True):
            for model in models:
                forward = model.method("forward") if (model.name in self.parts) is inner else None
                known = inner and any(key[0] == id(forward) for key in self.visited)
                if forward is not None and not known:
                    self.run(forward, model, Origin.UNKNOWN if inner else Origin.COMPUTED)

    def run(self, function: Function, model: Optional[Model] = None, origin: Origin = Origin.COMPUTED) -> None:
        """Analyse a function that is traced itself, such as a loss or a model's forward, and its callees.

        Its tensors come from an origin.
        """
        given: Dict[Optional[str], Value] = {}
        for arg in parameters_of(function)[model is not None :]:
            kind = declared_kind(function, arg)
            tensor = kind is Kind.UNKNOWN and self._used_as_tensor(function, model, arg.arg)
            given[arg.arg] = Value(Kind.TENSOR, origin) if tensor else declared(kind, origin)
        self.past = frozenset()
        self.call(function, model, (), given)
        self._judge_renewals()

    def _judge_renewals(self) -> None:
        """Note changes of attributes as ones of Python state if some call reads the attribute before it sets it."""
        for attribute, change in self.renewals:
            settled = replace(change, kind="settled")
            if attribute in self.early_reads:
                self.facts.discard(settled)
                self.facts.add(change)
            else:
                self.facts.add(settled)

    def _used_as_tensor(self, function: Function, model: Optional[Model], name: str, depth: int = 0) -> bool:
        """Return whether a parameter is used as a tensor, by a function or by the file's own parts of its model."""
        if used_as_tensor(function, name, self.names, self.layers, self.of_tensors):
            return True
        calls = [node for node in walk(function) if isinstance(node, ast.Call)] if model and depth < _DEEPEST else []
        for call in calls:
            owner, _, attribute = (dotted(call.func) or "").partition(".")
            names = model.constructed_in(attribute) if model is not None and owner == "self" else set()
            for part in [self.models[each] for each in sorted(names & self.models.keys())]:
                forward = part.method("forward")
                if forward is None:
                    continue
                own = [arg.arg for arg in parameters_of(forward)][1:]
                given = [*zip(own, call.args), *((each.arg, each.value) for each in call.keywords)]
                for inner, value in given:
                    handed = isinstance(value, ast.Name) and value.id == name
                    if handed and inner is not None and self._used_as_tensor(forward, part, inner, depth + 1):
                        return True
        return False

    def call(
        self,
        function: Function,
        model: Optional[Model],
        given: Sequence[Value],
        keywords: Mapping[Optional[str], Value],
        sure: bool = True,
        outer: Optional[Scope] = None,
    ) -> Value:
        """Analyse a function for arguments like these and return the description of its result.

        The call may not happen if it is not `sure`. A function within another has the variables of the `outer` one.
        """
        parameters = parameters_of(function)
        own = model is not None and outer is None
        environment = dict(outer.environment) if outer is not None else {}
        environment.update(
            (arg.arg, keywords.get(arg.arg) or declared(declared_kind(function, arg), Origin.UNKNOWN))
            for arg in parameters
        )
        environment.update(zip([arg.arg for arg in parameters[own:]], given))
        if own and parameters:
            environment[parameters[0].arg] = PYTHON
        key = (
            id(function),
            model.name if model else "",
            sure,
            self.with_gradients,
            self.transforms,
            self.past,
            *environment.items(),
        )
        if key in self.visited or len(self.visited) > 2000:
            found, self.past = self.visited.get(key, (UNKNOWN, self.past))
            return found
        self.visited[key] = UNKNOWN, self.past
        if function.args.vararg:
            environment[function.args.vararg.arg] = Value(Kind.TENSORS, Origin.PARTLY)
        walker = self.walker(function, model, environment, outer)
        walker.scope.sure = sure
        walker.block(function.body)
        found = walker.result or PYTHON
        self.visited[key] = found, self.past
        return found

    def walker(
        self, function: Function, model: Optional[Model], environment: Environment, outer: Optional[Scope]
    ) -> Statements:
        """Return the walker of a function's statements, in which these names are known."""
        return Statements(Scope(self, function, model, environment, outer))


class Statements(Expressions):
    """The statements of one function; `result` is the description of what it returns."""

    result: Optional[Value] = None

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for number, statement in enumerate(statements):
            self.statement(statement)
            if isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in statement.body[-1:]):
                if self.taken(statement.test) is not True:
                    with self.scope.behind(self.scope.runs(statement.test).if_false):
                        self.block(statements[number + 1 :])
                return

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                kind = self.expression(node.value)
                for target in targets_of(node):
                    self.assign(target, kind, node.value)
        elif isinstance(node, ast.AugAssign):
            self.augmented(node)
        elif isinstance(node, ast.If):
            self.branch(node)
        elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
            if isinstance(node, ast.While):
                self.truth(node.test)
            else:
                self.iterate(node.target, node.iter)
            self.twice(node.body)
            self.block(node.orelse)
        elif isinstance(node, ast.Assert):
            self._decide(node)
        elif isinstance(node, ast.Return):
            kind = self.expression(node.value) if node.value is not None else PYTHON
            self.result = kind if self.result is None else join(self.result, kind)
        elif isinstance(node, ast.Expr):
            self.expression(node.value)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                kind = self.expression(item.context_expr)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, kind, None)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            self.block(node.body)
            for handler in node.handlers:
                with self.scope.behind(False):
                    self.block(handler.body)
            self.block([*node.orelse, *node.finalbody])
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self.scope.globals |= frozenset(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.scope.inner[node.name] = node
        # A raise ends the trace with any message; nested functions are followed only when called.

    def twice(self, body: Sequence[ast.stmt]) -> None:
        """Walk a loop body until the kinds assigned at its end are known at its start."""
        before = dict(self.scope.environment)
        for _ in range(2):
            self.block(body)
            self.merge(before, self.scope.environment)

    def branch(self, node: ast.If) -> None:
        taken = self.taken(node.test)
        if taken is not None:
            self.block(node.body if taken else node.orelse)
            return
        self._decide(node)
        before, tested = dict(self.scope.environment), self.scope.tested
        self.scope.tested = tested | settled_by(node)
        runs = self.scope.runs(node.test)
        with self.scope.behind(runs.if_true):
            self.block(node.body)
        after_body, self.scope.tested = self.scope.environment, tested
        self.scope.environment = dict(before)
        with self.scope.behind(runs.if_false):
            self.block(node.orelse)
        self.merge(after_body, self.scope.environment)

    def _decide(self, node: Union[ast.If, ast.Assert]) -> None:
        """Evaluate a test; that of a check passes in a trace, with any values."""
        if is_check(node) and type(self.scope.analysis) is ForwardAnalysis:
            for operand, _ in operands(node.test, True):
                self.expression(operand)
        else:
            self.truth(node.test)

    def merge(self, first: Environment, second: Environment) -> None:
        both = {name: join(first[name], second[name]) for name in first.keys() & second.keys()}
        self.scope.environment = {**first, **second, **both}

    def augmented(self, node: ast.AugAssign) -> None:
        kind, target = self.expression(node.value), node.target
        if isinstance(target, ast.Name):
            current = self.scope.environment.get(target.id, UNKNOWN)
            if current.kind is Kind.PARAMETER:
                self.scope.fact("written", target, target.id)
            computed = current.is_tensor or (kind.is_tensor and current.kind is Kind.PYTHON)
            changed = result(Kind.TENSOR, [current, kind]) if computed else join(current, kind)
            self.assign(target, changed, None)
        elif isinstance(target, ast.Subscript) or not self.scope.is_registered(target):
            # `self.buffer += x` changes the buffer in place, which an IPU keeps.
            self.assign(target, kind, None)
        if isinstance(target, ast.Attribute):
            self.scope.written(target)
