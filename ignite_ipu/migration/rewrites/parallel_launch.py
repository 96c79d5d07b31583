"""Processes are launched on a backend that has no need of GPUs, and their models are not wrapped for GPUs."""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.rewriting.editor import Editor, Rewrite

_LAUNCHERS = ("ignite.distributed.Parallel", "ignite.distributed.spawn", "ignite.distributed.initialize")


def apply(editor: Editor) -> None:
    """Replace the backend nccl, and idist.auto_model."""
    program = editor.program
    for call, _ in program.calls(*_LAUNCHERS):
        backend = argument(call, "backend", 0)
        if backend is not None and constant(backend) == "nccl":
            editor.expression(backend, f'{editor.need("process_backend", call)}("nccl")')
    for call, _ in program.calls("ignite.distributed.auto_model"):
        editor.expression(call.func, editor.need("auto_model", call))


REWRITE = Rewrite(
    name="parallel-launch",
    summary="idist.Parallel launches on process_backend(), and models stay unwrapped.",
    example="""\
  import ignite.distributed as idist
+ from ignite_ipu import process_backend

- with idist.Parallel(backend="nccl") as parallel:
+ with idist.Parallel(backend=process_backend("nccl")) as parallel:
      parallel.run(training)
""",
    apply=apply,
)
