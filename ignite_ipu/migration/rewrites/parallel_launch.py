"""Processes are connected by process_backend(), and wrappers for several GPUs are parallel_model's.

Example:
      import ignite.distributed as idist
      from torch import nn
    + from ignite_ipu import parallel_model, process_backend

    - with idist.Parallel(backend="nccl") as parallel:
    + with idist.Parallel(backend=process_backend("nccl")) as parallel:
          parallel.run(training)
    - model = nn.DataParallel(model, device_ids=[0, 1])
    + model = parallel_model(nn.DataParallel, model, device_ids=[0, 1])
"""

from __future__ import annotations

import libcst as cst

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.rewriting.editor import Editor

_LAUNCHERS = ("ignite.distributed.Parallel", "ignite.distributed.spawn", "ignite.distributed.initialize")
_WRAPPERS = (
    *("torch.nn.parallel.DataParallel", "torch.nn.parallel.DistributedDataParallel"),
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
)


def apply(editor: Editor) -> None:
    program = editor.program
    for call, _ in program.calls(*_LAUNCHERS, "torch.distributed.init_process_group"):
        backend = argument(call, "backend", 0)
        if backend is not None and constant(backend) == "nccl":
            editor.expression(backend, f'{editor.need("process_backend", call)}("nccl")')
    for call, _ in program.calls("ignite.distributed.auto_model"):
        editor.expression(call.func, editor.need("auto_model", call))
    for call, _ in program.calls(*_WRAPPERS):
        editor.replace(call, _given, editor.need("parallel_model", call))


def _given(node: cst.Call, name: str) -> cst.Call:
    return node.with_changes(func=cst.Name(name), args=[cst.Arg(node.func), *node.args])
