"""A poptorch.optim optimizer without an explicit lr in code with a schedule.

Arguments that are not passed explicitly are compiled in as constants, the learning rate included; setOptimizer with
another value is refused.

Remedy: Pass lr explicitly, or call optimizer.variable_attrs.markAsVariable("lr").

With PopTorch:
    - optimizer = poptorch.optim.Adam(model.parameters())
    + optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
      scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    scheduled = {dotted(argument(call, "optimizer", 0)) for call in program.training.schedulers.values()}
    variable = any(True for _ in program.method_calls("markAsVariable"))
    for name, (call, kind) in sorted(program.training.optimizers.items()):
        explicit = argument(call, "lr", 1) is not None or any(keyword.arg is None for keyword in call.keywords)
        if kind.startswith("poptorch.optim.") and name in scheduled and not explicit and not variable:
            yield Hit(call, f"the learning rate of {name} is a constant of the compiled program")
