"""Names that wrap a model: for several GPUs, for a compiler, or for other processes."""

from __future__ import annotations

from ignite_ipu.capabilities.table import Capability, Table, Treatment

REPLICAS = (
    "one process drives all IPUs, and replicas of the model are asked for with --replication-factor. To train in "
    "several processes, start them with torchrun or `ignite-ipu launch -m ignite_ipu run`"
)
"""How several IPUs are asked for, in place of several processes."""
_ITSELF = "the model itself: one process drives all IPUs"
_AS_IT_IS = "the model as it is"
_COMPILED = "left out: the program is compiled for the IPU"
_COPY = "is made of a copy of the model on the host"
_SHARED = "is made on the host, and has the weights of the model"
_CALLED = "A model of torch.jit is no Python code that PopTorch could trace: call the model itself"

SHARED_STATISTICS = (
    "a device normalises by the samples of its own process, and a SyncBatchNorm by those of all processes. Leave "
    "convert_sync_batchnorm() out to normalise in each process, or use GroupNorm"
)
"""Why layers with statistics of several processes are refused."""

WRAPPERS = Table(
    [
        Capability(
            "torch.nn.parallel.DataParallel",
            Treatment.LEFT_OUT,
            _ITSELF,
            replaces="model(x)",
            example="nn.DataParallel(model)(x)",
        ),
        Capability("torch.nn.parallel.DistributedDataParallel", Treatment.LEFT_OUT, _ITSELF),
        Capability(
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
            Treatment.LEFT_OUT,
            f"{_AS_IT_IS}: one process has all samples of its statistics",
            replaces="model(x)",
            example="nn.SyncBatchNorm.convert_sync_batchnorm(model)(x)",
        ),
        Capability(
            "torch.distributed.fsdp.FullyShardedDataParallel",
            Treatment.REFUSED,
            "a model is not sharded over processes",
            f"Leave it out: {REPLICAS}",
        ),
        Capability(
            "ignite.distributed.auto_model",
            Treatment.LEFT_OUT,
            _AS_IT_IS,
            replaces="model(x)",
            example="idist.auto_model(model)(x)",
        ),
        Capability("torch.compile", Treatment.LEFT_OUT, _COMPILED),
        Capability("torch.nn.Module.compile", Treatment.LEFT_OUT, _COMPILED),
        *[
            Capability(f"torch.{name}", Treatment.HOST, _SHARED, _CALLED)
            for name in ("jit.trace", "jit.trace_module", "jit.script")
        ],
        *[Capability(f"torch.{name}", Treatment.HOST, _COPY, _CALLED) for name in ("onnx.export", "export.export")],
        Capability("torch.fx.symbolic_trace", Treatment.HOST, f"{_SHARED}; its calls are captured"),
        Capability(
            "torch.nn.Module.share_memory",
            Treatment.REFUSED,
            "an IPU's weights are on the device, where other processes cannot write into them (Hogwild)",
            f"Train in one process: {REPLICAS}",
            example="model.share_memory()",
        ),
    ]
)
