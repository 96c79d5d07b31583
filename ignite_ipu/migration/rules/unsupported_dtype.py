"""float64, bfloat16 and complex tensors and models.

An IPU computes in float32 and float16. float64 is narrowed to float32 without a word; bfloat16 and complex numbers
cannot be used.

Remedy: Use float32, or model.half() for half precision.

Example:
      import torch

    - model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    + model = torch.nn.Linear(2, 2).half()
"""

from __future__ import annotations

import ast
from typing import Optional

from ignite_ipu.capabilities import LACKED_FORMATS, PRECISION
from ignite_ipu.capabilities.traced import FORMAT
from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.analysis.names import dotted, unmoved
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, breach_of

SEVERITY, RUN = Severity.WARNING, Outcome.REFUSED

_NARROWED = frozenset(entry.name for entry in PRECISION if entry.name in ("torch.float64", "torch.double"))


def check(program: Program) -> Hits:
    traced = list(program.facts_of("format"))
    for fact in traced:
        yield breach_of(fact, FORMAT, fact.name)
    known = {fact.node for fact in traced}
    for node in program.nodes(ast.Attribute):
        name = program.names.resolve(node)
        if name not in LACKED_FORMATS | _NARROWED or _is_named(program, node):
            continue
        if known.isdisjoint(program.ancestors(node)):
            place = node if name in _NARROWED else _place(program, node)
            if place is not None:
                yield _hit(program, place, name)
    models = program.training.models
    for dtype in ("bfloat16", "double"):
        for call, owner in program.method_calls(dtype):
            if owner in models:
                yield _hit(program, call, f"torch.{dtype}")
    for call, owner in program.method_calls("to"):
        for name in (_format_named(program, value) for value in call.args if owner in models):
            if name is not None:
                yield _hit(program, call, name)


def _place(program: Program, node: ast.Attribute) -> Optional[ast.expr]:
    """Return the place at which a run refuses a number format that code names, None for a tensor of the host.

    A layer in a format is refused where it is called, and a model at its conversion.
    """
    above = program.parents[node]
    call = program.parents[above] if isinstance(above, ast.keyword) else above
    if not isinstance(call, ast.Call) or node is call.func:
        # A variable counts where a model is converted to it.
        return node if isinstance(call, (ast.IfExp, ast.Return)) else None
    name = program.names.called(call)
    if name is None:
        method = call.func
        moves_tensor = (
            isinstance(method, ast.Attribute) and method.attr in ("to", "type") and not _is_model(program, method.value)
        )
        return None if moves_tensor else node
    if name.startswith("torch.nn.") and name[9:10].isupper():
        used = (fact.node for fact in program.facts_of("layer") if fact.made is call)
        return next(used, None) or program.first_call(call)
    return node if not name.startswith("torch.") or name == "torch.set_default_dtype" else None


def _is_model(program: Program, owner: ast.expr) -> bool:
    """Return whether an expression is a model: a variable that holds one, or a construction."""
    made = unmoved(owner)
    name = program.names.called(made) or ""
    own = isinstance(made, ast.Call) and dotted(made.func) in {model.name for model in program.models}
    return own or name.startswith("torch.nn.") or dotted(owner) in program.training.models


def _format_named(program: Program, value: ast.expr) -> Optional[str]:
    """Return the number format that a variable names, None for one that an IPU has, or that the text does not show."""
    behind = program.single_value(value.id) if isinstance(value, ast.Name) else None
    name = None if behind is None else program.names.resolve(behind)
    return name if name in LACKED_FORMATS else None


def _hit(program: Program, node: ast.expr, name: str) -> Hit:
    if name in _NARROWED:
        return Hit(node, f"an IPU has no {name}", run=Outcome.UNCHANGED)
    fact = Fact("format", node, name, program.where(node), certain=not _is_chosen(program, node))
    return breach_of(fact, FORMAT, name)


def _is_chosen(program: Program, node: ast.expr) -> bool:
    """Return whether a type is one of several that a test chooses from."""
    tests = (above.test for above in program.ancestors(node) if isinstance(above, (ast.If, ast.IfExp)))
    return any("__name__" not in {part.id for part in ast.walk(test) if isinstance(part, ast.Name)} for test in tests)


def _is_named(program: Program, node: ast.Attribute) -> bool:
    """Return whether a type is only spoken of: one of a table, compared with, or that of autocast, another rule's."""
    above = program.parents[node]
    above = program.parents[above] if isinstance(above, (ast.keyword, ast.Tuple, ast.List, ast.Set)) else above
    return isinstance(above, (ast.Dict, ast.Compare)) or program.names.called(above) == "torch.amp.autocast"
