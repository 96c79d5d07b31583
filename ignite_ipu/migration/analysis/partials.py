"""Functions with some of their arguments given beforehand, by `functools.partial`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional

from ignite_ipu.migration.analysis.names import dotted, has_hidden_arguments

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


class Partial(NamedTuple):
    """A call of `functools.partial`."""

    call: ast.Call

    @property
    def function(self) -> ast.expr:
        """What is called in the end."""
        return self.call.args[0]

    def given(self, function: ast.FunctionDef) -> Dict[str, Optional[str]]:
        """Return the sources of what the function's parameters are given; None for what is no chain of names."""
        positional = [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]
        values = dict(zip(positional, self.call.args[1:]))
        values.update({keyword.arg: keyword.value for keyword in self.call.keywords if keyword.arg is not None})
        return {name: dotted(value) for name, value in values.items()}


def find_partial(program: Program, function: ast.expr) -> Optional[Partial]:
    """Return the partial that an expression is or names, when it and the function in it are used nowhere else."""
    name = dotted(function)
    values = [function] if name is None else [value for target, value in program.training.assigned if target == name]
    if len(values) != 1 or program.names.called(values[0]) != "functools.partial":
        return None
    call = values[0]
    assert isinstance(call, ast.Call)
    if not call.args or has_hidden_arguments(call):
        return None
    inside = dotted(call.args[0])
    mentions = [dotted(node) for kind in (ast.Name, ast.Attribute) for node in program.nodes(kind)]
    alone = inside is not None and mentions.count(inside) == 1 and (name is None or mentions.count(name) == 2)
    return Partial(call) if alone else None
