"""`ignite.distributed` in a single process: replicas are not ranks. test_launch.py trains in two processes."""

from __future__ import annotations

import ignite.distributed as idist
import torch
from ignite.metrics import Accuracy
from torch import nn

from tests.ignite.side import losses, weights
from tests.ignite.table import HOST, row


@row(
    "get_world_size", "get_rank", "get_local_rank", "get_nproc_per_node", "get_nnodes", "get_node_rank", "backend",
    "available_backends", "model_name", "hostname", "show_config", "sync", "registered_computation_models",
    support=HOST, note="they speak of processes; the replicas of one process share its rank",
)  # fmt: skip
def ranks(side):
    several = {} if side.native else {"replication_factor": 2}
    model = side.model()
    trainer = side.trainer(model, side.sgd(model), **several)
    trainer.run(side.loader(), max_epochs=1)
    idist.sync()
    idist.show_config()
    one = (idist.get_world_size(), idist.get_rank(), idist.get_local_rank(), idist.get_nproc_per_node())
    names = sorted(model.__name__ for model in idist.registered_computation_models)
    return one, idist.get_nnodes(), idist.get_node_rank(), idist.backend(), idist.model_name(), idist.hostname(), names


@row("device", support=HOST, note="the CPU, where PopTorch wants models and batches")
def device(side):
    model = side.model().to(idist.device())
    trainer = side.trainer(model, side.sgd(model))
    seen = losses(trainer)
    trainer.run(side.loader(), max_epochs=1)
    return str(idist.device()), seen


@row(
    "all_reduce", "all_gather", "all_gather_tensors_with_shapes", "broadcast", "barrier", "new_group", "one_rank_only",
    "one_rank_first", "set_local_rank", support=HOST, note="between processes; with one they give back what they got",
)  # fmt: skip
def collectives(side):
    @idist.one_rank_only()
    def only():
        return "ran"

    _, _, trainer = side.setup()
    trainer.run(side.loader(), max_epochs=1)
    with getattr(idist, "one_rank_first", idist.utils.one_rank_first)():
        idist.barrier()
    loss = trainer.state.output
    return idist.all_reduce(loss), idist.all_gather(loss), idist.broadcast(loss, src=0), only()


@row(
    "auto_dataloader",
    "DistributedProxySampler",
    note="`batch_size` is the micro-batch of all this node's processes together, as natively",
)
def auto_dataloader(side):
    loader = idist.auto_dataloader(side.data(), batch_size=8, shuffle=False)
    model, _, trainer = side.setup()
    seen = losses(trainer)
    trainer.run(loader, max_epochs=1)
    return seen, side.evaluator(model, {"accuracy": Accuracy()}).run(loader).metrics


@row(
    "auto_model",
    "auto_optim",
    note="leave model and optimizer as they are, unless torch.distributed is initialised: see the page",
)
def auto_model(side):
    model = idist.auto_model(side.model())
    optimizer = idist.auto_optim(side.sgd(model))
    trainer = side.trainer(model, optimizer, nn.CrossEntropyLoss())
    seen = losses(trainer)
    trainer.run(side.loader(), max_epochs=1)
    return seen, weights(model)


@row(
    "Parallel",
    "initialize",
    "finalize",
    "spawn",
    note='`idist.Parallel(backend="gloo")`; see [distributed](distributed.md)',
)
def parallel(side):
    def run(local_rank, scale):
        _, _, trainer = side.setup()
        trainer.run(side.loader(), max_epochs=1)
        return [local_rank, scale * trainer.state.output]

    seen = []
    with idist.Parallel(backend=None) as job:
        job.run(lambda rank: seen.append(run(rank, 2.0)))
    return seen


@row("has_native_dist_support", "has_xla_support", "has_hvd_support", support=HOST)
def support(side):
    del side
    flags = (idist.has_native_dist_support, idist.has_xla_support, idist.has_hvd_support)
    return [bool(flag) for flag in flags], torch.distributed.is_available()


@row("torch.nn.DataParallel", note="over one device, as the model within; several are `replication_factor`")
def data_parallel(side):
    model = side.model()
    side.trainer(nn.DataParallel(model), side.sgd(model)).run(side.loader(), max_epochs=1)
    return weights(model)
