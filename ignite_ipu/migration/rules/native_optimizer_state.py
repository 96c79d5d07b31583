"""state_dict() of a torch.optim optimizer that trains through poptorch.trainingModel.

PopTorch never reads the state of a torch optimizer back from the device: the checkpoint holds no momentum, and a
resumed run starts from zero.

Remedy: Use poptorch.optim, whose state_dict() reads the device.

With PopTorch:
    - optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    + optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
      training_model = poptorch.trainingModel(model, options, optimizer)
      torch.save(optimizer.state_dict(), 'state.pt')
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    training = program.training
    given = {dotted(argument(call, "optimizer", 2)) for call, _ in program.calls("poptorch.trainingModel")}
    native = {name for name, (_, kind) in training.optimizers.items() if name in given and kind.startswith("torch.")}
    for call, owner in program.method_calls("state_dict", "load_state_dict"):
        if owner in native:
            yield Hit(call, f"the state of {owner} is on the device and never comes back")
