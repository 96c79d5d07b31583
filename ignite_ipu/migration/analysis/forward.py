"""Analysis of the code that an IPU traces: which values are tensors there, and what is done with them."""

from __future__ import annotations

import ast
from typing import Dict, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.kinds import Fact, Function, Kind, declared_kind, parameters_of, used_as_tensor
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import Names
from ignite_ipu.migration.analysis.walker import Walker

__all__ = ["ForwardAnalysis"]


class ForwardAnalysis:
    """Follows tensors through the models and functions of one file; `facts` grows with each run.

    PopTorch runs `forward` once, on tensors without values. So what matters is where the value of a tensor is asked
    for, and which Python state is read or written. The analysis follows values through a model's methods and the file's
    functions, and knows for each expression whether it is a tensor, a Python value, or unknown. Unknown is never
    reported.
    """

    def __init__(self, names: Names, models: Sequence[Model], functions: Dict[str, Function]) -> None:
        self.names = names
        self.models = {model.name: model for model in models}
        self.functions = functions
        self.layers = {name for model in models for name in (*model.values, *model.holds)}
        self.facts: Set[Fact] = set()
        self.visited: Dict[Tuple[int, str, Tuple[Kind, ...]], Kind] = {}

    def run_model(self, model: Model) -> None:
        """Analyse a model's forward and what it calls."""
        forward = model.method("forward")
        if forward is None:
            return
        parameters = parameters_of(forward)[1:]
        self.call(forward, [Kind.PYTHON, *(self._entry_kind(forward, arg) for arg in parameters)], model)

    def run_function(self, function: Function) -> None:
        """Analyse a function that is traced itself, such as a loss."""
        self.call(function, [self._entry_kind(function, arg) for arg in parameters_of(function)], None)

    def call(self, function: Function, kinds: Sequence[Kind], model: Optional[Model]) -> Kind:
        """Analyse a function for arguments of these kinds and return the kind of its result."""
        key = (id(function), model.name if model else "", tuple(kinds))
        if key in self.visited or len(self.visited) > 2000:
            return self.visited.get(key, Kind.UNKNOWN)
        self.visited[key] = Kind.UNKNOWN
        environment = {arg.arg: declared_kind(function, arg) for arg in parameters_of(function)}
        environment.update(dict(zip((arg.arg for arg in parameters_of(function)), kinds)))
        if function.args.vararg:
            environment[function.args.vararg.arg] = Kind.TENSORS
        walker = Walker(self, function, model, environment)
        walker.block(function.body)
        self.visited[key] = walker.result or Kind.PYTHON
        return self.visited[key]

    def _entry_kind(self, function: Function, arg: ast.arg) -> Kind:
        kind = declared_kind(function, arg)
        if kind is Kind.UNKNOWN and used_as_tensor(function, arg.arg, self.names, self.layers):
            return Kind.TENSOR
        return kind
