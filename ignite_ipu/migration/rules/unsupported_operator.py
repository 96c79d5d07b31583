"""A torch operator or layer, in traced code or on the way from a model to a loss, that PopTorch does not compile.

Operators of a loop are compiled with the model if a loss is computed by them; others run on the host. An operator
without an implementation for the device stops the compilation, unless its result is a constant or not used, which only
a trace shows: so this is a warning.

Remedy: Rewrite it with supported operators, or run the model once on the emulator (`ignite-ipu check --run`) to be
sure.

In forward:
    - return torch.linalg.svd(self.layer(x)).S
    + return torch.linalg.norm(self.layer(x))
"""

from __future__ import annotations

import ast
from typing import Iterable

from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.analysis.operators import is_dynamic, is_loss, is_made_here, problem
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, not_compiled

SEVERITY, RUN = Severity.WARNING, Outcome.REFUSED


def latent(program: Program, facts: Iterable[Fact]) -> Hits:
    for fact in facts:
        if fact.kind == "layer":
            yield from _layer(fact)
        if fact.kind != "call":
            continue
        elsewhere = is_loss(fact.name) or is_dynamic(fact.name)  # other rules know more about these
        found = None if elsewhere else problem(fact.name)
        made_here = isinstance(fact.node, ast.Call) and is_made_here(program.names, fact.node)
        if found is not None and not made_here:
            yield not_compiled(fact, found)


def check(program: Program) -> Hits:
    yield from latent(program, program.facts)
    known = {fact.made for fact in program.facts_of("layer")}
    for model in program.models:
        for _, value in sorted(model.values.items()):
            layer = program.names.called(value) or ""
            if isinstance(value, ast.Call) and value not in known and layer.startswith("torch.nn."):
                yield from _layer(Fact("layer", value, layer, f"{model.name}.forward", program.may_call(value), value))


def _layer(fact: Fact) -> Hits:
    found = None if is_loss(fact.name) else problem(fact.name)
    if found is not None:
        yield not_compiled(fact, found)
