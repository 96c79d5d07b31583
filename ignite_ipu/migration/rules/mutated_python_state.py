"""Traced code that assigns attributes, fills containers or writes globals.

forward runs once, when the model is compiled. A counter that it increments stays at its value after the trace. An
attribute that it assigns to self lands on PopTorch's copy of the model.

Remedy: Register a tensor with register_buffer and change it in place (`self.steps.add_(1)`), or return the value from
forward.

In __init__:
    - self.calls = 0
    + self.register_buffer("calls", torch.zeros(()))

In forward:
    - self.calls += 1
    + self.calls.add_(1.0)
      return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import STATE
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, breach_of, breaches_of

SEVERITY, RUN = Severity.WARNING, Outcome.BY_FUNCTION

latent = breaches_of(STATE, "mutation")


def check(program: Program) -> Hits:
    """Find changes of Python state; `run` bears those that come to the same in every call."""
    changed = {fact.node for fact in program.facts_of("mutation")}
    for fact in program.facts_of("mutation", "settled"):
        if fact.kind == "mutation" or fact.node not in changed:
            yield breach_of(fact, STATE, fact.name, Outcome.HANDLED if fact.kind == "settled" else None)
