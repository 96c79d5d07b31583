"""Data parallelism over GPUs."""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.findings import Hit, Hits, Rule, Severity
from ignite_ipu.migration.program import Program

_WRAPPERS = (
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.init_process_group",
    "torch.distributed.all_reduce",
    "ignite.distributed.auto_model",
)


def check(program: Program) -> Hits:
    """Find wrappers, process groups and NCCL launches."""
    for call, name in program.calls(*_WRAPPERS):
        yield Hit(call, f"{name} spreads the work over GPUs")
    for call, name in program.calls(
        "ignite.distributed.Parallel", "ignite.distributed.spawn", "ignite.distributed.initialize"
    ):
        backend = argument(call, "backend", 0)
        if constant(backend) in ("nccl", "horovod", "xla-tpu"):
            yield Hit(call, f"{name} launches processes for {constant(backend)}")


RULE = Rule(
    name="data-parallel",
    severity=Severity.ERROR,
    summary="DataParallel, DistributedDataParallel, FSDP, process groups on NCCL, and idist.auto_model.",
    rationale=(
        "On IPUs one process drives all replicas of a model: PopTorch copies it to each, splits the batch and "
        "averages gradients itself. A model wrapped for GPUs cannot be compiled."
    ),
    remedy=(
        "Hand the plain model over and say options.replicationFactor(n); launch several processes with "
        "ignite_ipu.process_backend or `ignite-ipu launch`."
    ),
    example="""\
  import torch

- model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
+ model = torch.nn.Linear(2, 2)
""",
    check=check,
)
