"""A supported layer or operator with an argument that PopTorch refuses.

PopTorch compiles some operators in part only: embeddings without a maximal norm, pooling without indices, LSTMs of one
layer and so on. `run` handles the uses that this library computes by other operators. A restriction that only
PopTorch's sources show is a note.

Remedy: Use the form the message names.

Example:
      from torch import nn

    - layer = nn.Embedding(10, 4, scale_grad_by_freq=True)
    + layer = nn.Embedding(10, 4)
"""

from __future__ import annotations

import ast
from typing import Iterable, Optional

from ignite_ipu.capabilities.traced import ARGUMENT, COUNTED
from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.analysis.operators import constants_of, is_handled, is_loss, problem, refused_arguments
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, hit_of, not_compiled

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

# Restrictions of traced code that a run finds before the compiler sees the argument, each with its way out.
_FOUND_BEFORE = {"COUNTED": COUNTED}


def latent(program: Program, facts: Iterable[Fact]) -> Hits:
    for fact in facts:
        operator = fact.kind == "call" and not _is_layer(fact.name) and not is_loss(fact.name)
        call = fact.node if operator else fact.made
        if isinstance(call, ast.Call):
            yield from _hits(program, call, fact.name, fact)
        if fact.kind == "varies":
            for _, _, restriction in constants_of(fact.name):
                yield hit_of(fact, ARGUMENT.reason(fact.where, f"{fact.name}: {restriction.says}"), restriction.instead)


def check(program: Program) -> Hits:
    called = {fact.made for fact in program.facts_of("layer")}
    for call, name in program.calls("torch.nn.*"):
        if call not in called and (_is_layer(name) or is_loss(name)):
            yield from _hits(program, call, name, None)
    yield from latent(program, program.facts)


def _hits(program: Program, call: ast.Call, name: str, used: Optional[Fact]) -> Hits:
    """Yield the hits for a call; a refused layer is placed where a model or the program calls it, as by a run."""
    found = problem(name) if is_loss(name) else None
    place = used or _use(program, call, name)
    if found is not None and not program.without_gradients(call):
        yield not_compiled(place, found)
    for node, restriction in refused_arguments(program, name, call):
        if restriction.refused and not is_handled(name, restriction):
            broken = _FOUND_BEFORE.get(restriction.breaks, ARGUMENT)
            remedy = restriction.instead if broken is ARGUMENT else broken.remedy
            yield hit_of(place, broken.reason(place.where, f"{name}: {restriction.says}"), remedy)
            continue
        doubt = ", as PopTorch's sources read" if restriction.likely else ""
        severity, run = None, Outcome.HANDLED if is_handled(name, restriction) else None
        if run is None:
            severity, run = Severity.NOTE, Outcome.UNCHANGED
        yield Hit(node, f"{name}: {restriction.says}{doubt}", restriction.instead, severity, run)


def _use(program: Program, call: ast.Call, name: str) -> Fact:
    """Return the use of a layer or function outside of models: its first call, if its name shows that."""
    node = program.first_call(call) if _is_layer(name) else call
    return Fact("layer", node, name, program.where(node), program.may_call(call), call)


def _is_layer(name: str) -> bool:
    return name.startswith("torch.nn.") and name[9:10].isupper()
