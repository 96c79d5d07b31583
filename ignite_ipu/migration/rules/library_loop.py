"""Models trained by a loop of an installed package: an engine, a trainer, or a `fit` method.

`ignite-ipu migrate` rewrites the files that it is given, and not installed packages. With nothing but the device
rewritten, the package's loop would train on the host. `ignite-ipu run` and `import ignite_ipu.auto` capture the models
and optimizers that the loop uses.

Remedy: Import ignite_ipu.auto at the top of the program, which `ignite-ipu migrate` does. Or start the program with
`ignite-ipu run`.

Example:
    + import ignite_ipu.auto
      import torch
      from monai.engines import SupervisedTrainer

      model = torch.nn.Linear(4, 2)
      trainer = SupervisedTrainer(
          device=torch.device("cpu"),
          max_epochs=1,
          train_data_loader=loader,
          network=model,
          optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
          loss_function=torch.nn.CrossEntropyLoss(),
      )
      trainer.run()
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.library_loops import library_loops
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    for node, name in library_loops(program, program.training):
        yield Hit(node, f"{name} trains by a loop of its package, which no rewrite reaches")
