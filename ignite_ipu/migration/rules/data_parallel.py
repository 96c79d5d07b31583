"""DataParallel, DistributedDataParallel, SyncBatchNorm, FSDP, process groups on NCCL, and idist.auto_model.

On IPUs one process drives all replicas of a model: PopTorch copies it to each, splits the batch and averages gradients
itself. A model wrapped for GPUs cannot be compiled. In several processes of a launcher the gradients of a
DistributedDataParallel are averaged over all of them.

Remedy: Wrap the model by parallel_model, which makes the wrapper the model within, and connect processes by
process_backend; `ignite-ipu migrate` does it. Say options.replicationFactor(n) for replicas.

Example:
      import torch
    + from ignite_ipu import parallel_model

    - model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
    + model = parallel_model(torch.nn.DataParallel, torch.nn.Linear(2, 2))
"""

from __future__ import annotations

from ignite_ipu.capabilities import WRAPPERS
from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True

_OF_SEVERAL = ("torch.nn.parallel.", "torch.nn.SyncBatchNorm.", "torch.distributed.", "ignite.distributed.")
_WRAPPERS = [entry.name for entry in WRAPPERS if entry.name.startswith(_OF_SEVERAL)]
_LAUNCHERS = ("ignite.distributed.Parallel", "ignite.distributed.spawn", "ignite.distributed.initialize")


def check(program: Program) -> Hits:
    for call, name in program.calls(*_WRAPPERS):
        yield Hit(call, f"{name} spreads the work over GPUs", entry=WRAPPERS[name])
    for call, name in program.calls(*_LAUNCHERS, "torch.distributed.init_process_group"):
        backend = constant(argument(call, "backend", 0))
        if isinstance(backend, str) and "gloo" not in backend:
            # `run` connects processes by gloo: those of a launcher, and on the emulator those that it starts.
            outcome = Outcome.HANDLED if name == _LAUNCHERS[0] or name not in _LAUNCHERS else Outcome.REFUSED
            yield Hit(call, f"{name} connects processes by {backend}", run=outcome)
