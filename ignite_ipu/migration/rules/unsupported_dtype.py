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

from ignite_ipu.capabilities import LACKED_FORMATS, PRECISION
from ignite_ipu.capabilities.traced import FORMAT
from ignite_ipu.migration.analysis.kinds import Fact
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
            yield _hit(program, node, name)
    models = program.training.models
    for dtype in ("bfloat16", "double"):
        for call, owner in program.method_calls(dtype):
            if owner in models:
                yield _hit(program, call, f"torch.{dtype}")


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
