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
from ignite_ipu.migration.analysis.names import constant, dotted, unmoved
from ignite_ipu.migration.analysis.settings import settings_of
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, breach_of

SEVERITY, RUN = Severity.WARNING, Outcome.REFUSED

_NARROWED = frozenset(entry.name for entry in PRECISION if entry.name in ("torch.float64", "torch.double"))

_OF_TYPES = {f"torch{module}.BFloat16Tensor": "torch.bfloat16" for module in ("", ".cuda")}
_TENSORS = ("weight", "bias", "data", "grad")


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
    yield from _of_models(program)
    yield from _of_defaults(program)


def _of_models(program: Program) -> Hits:
    """Yield the conversions of models by a method's name, or to a format that a setting has."""
    for dtype in ("bfloat16", "double"):
        for call, _ in program.method_calls(dtype):
            assert isinstance(call.func, ast.Attribute)
            if _is_model(program, call.func.value):
                yield _hit(program, call, f"torch.{dtype}")
    for call, _ in program.method_calls("to", "type"):
        assert isinstance(call.func, ast.Attribute)
        if _is_model(program, call.func.value):
            for value in (*call.args, *(keyword.value for keyword in call.keywords)):
                if program.names.resolve(value) is None:
                    yield from _of_setting(program, call, value)


def _of_defaults(program: Program) -> Hits:
    """Yield the calls that set the format of new tensors, which models may be converted from later."""
    owners = (getattr(call.func, "value", call) for call, _ in program.method_calls("float", "half"))
    converted = any(_is_model(program, each) for each in owners)
    for call, _ in program.calls("torch.set_default_dtype", "torch.set_default_tensor_type"):
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from _of_setting(program, call, value, certain=not converted)


def _of_setting(program: Program, call: ast.Call, value: ast.expr, certain: bool = True) -> Hits:
    """Yield the hit for a call that is given a format, if a setting has one which an IPU lacks."""
    found = [_format_named(program, each) for each in settings_of(program).behind(value)]
    lacked = next((each for each in found if each in LACKED_FORMATS), None)
    if lacked is not None:
        yield _hit(program, call, lacked, certain and set(found) == {lacked})


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
    return None if name.startswith("torch.") else node


def _is_model(program: Program, owner: ast.expr) -> bool:
    """Return whether an expression is a model or a part of one: a variable that holds one, or a construction."""
    made = unmoved(owner)
    while isinstance(made, ast.Subscript) or (isinstance(made, ast.Attribute) and made.attr not in _TENSORS):
        if dotted(made) in program.training.models:
            return True
        made = made.value
    name = program.names.called(made) or ""
    own = isinstance(made, ast.Call) and dotted(made.func) in {model.name for model in program.models}
    return own or name.startswith("torch.nn.") or dotted(made) in program.training.models


def _format_named(program: Program, value: Optional[ast.expr]) -> Optional[str]:
    """Return the number format that an expression names, itself, as a type of tensors, or by that type's name."""
    written = constant(value)
    name = written if isinstance(written, str) else None if value is None else program.names.resolve(value)
    return _OF_TYPES.get(name or "", name)


def _hit(program: Program, node: ast.expr, name: str, certain: bool = True) -> Hit:
    if name in _NARROWED:
        return Hit(node, f"an IPU has no {name}", run=Outcome.UNCHANGED)
    fact = Fact("format", node, name, program.where(node), certain=certain and not _is_chosen(program, node))
    return breach_of(fact, FORMAT, name)


def _is_chosen(program: Program, node: ast.expr) -> bool:
    """Return whether a type is one of several that a test chooses from, unless settings decide for it."""
    below: ast.AST = node
    for above in program.ancestors(node):
        if isinstance(above, (ast.If, ast.IfExp)) and below is not above.test:
            names = {part.id for part in ast.walk(above.test) if isinstance(part, ast.Name)}
            otherwise = below is above.orelse or (isinstance(above, ast.If) and below in above.orelse)
            if "__name__" not in names and settings_of(program).decision(above.test) is not (not otherwise):
                return True
        below = above
    return False


def _is_named(program: Program, node: ast.Attribute) -> bool:
    """Return whether a type is only spoken of: one of a table, compared with, or that of autocast, another rule's."""
    above = program.parents[node]
    above = program.parents[above] if isinstance(above, (ast.keyword, ast.Tuple, ast.List, ast.Set)) else above
    return isinstance(above, (ast.Dict, ast.Compare)) or program.names.called(above) == "torch.amp.autocast"
