"""The batching arithmetic: what one device call consumes, and which updates it makes."""

from __future__ import annotations

import torch
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import agree, batches, expect, joined, network, sgd

PROMISES = Promises("batching", "concepts.md")


def _compare(bench: Bench, device_iterations: int = 1, accumulation: int = 1, replicas: int = 1) -> None:
    """Make two calls, and the updates they consist of natively, in the order [D][A][R][B]."""
    per_update = accumulation * replicas
    micro_batches = batches(2 * device_iterations * per_update, size=4)
    pair = bench.pair(
        lambda model: sgd(model, 0.5, 0),
        device_iterations=device_iterations,
        gradient_accumulation_steps=accumulation,
        replication_factor=replicas,
    )
    losses = pair.run(joined(micro_batches, calls=2), micro_batches, accumulation=per_update)
    pair.compare()
    agree(pair.trainer.state.output, sum(losses[len(losses) // 2 :]) / (len(losses) // 2), "mean loss of the last call")


@PROMISES.promise()
def device_iterations(bench: Bench) -> None:
    """With deviceIterations, one call makes that many updates, one after the other."""
    _compare(bench, device_iterations=3)


@PROMISES.promise()
def gradient_accumulation(bench: Bench) -> None:
    """With gradientAccumulation, an update's micro-batches see the same weights, and their gradients are averaged."""
    _compare(bench, accumulation=4)


@PROMISES.promise()
def both(bench: Bench) -> None:
    """A call of deviceIterations x gradientAccumulation micro-batches is cut in this order."""
    _compare(bench, device_iterations=2, accumulation=3)


@PROMISES.promise(ipus=2)
def replicas(bench: Bench) -> None:
    """Replicas share the micro-batches of an update, and their gradients are averaged."""
    _compare(bench, replicas=2)


@PROMISES.promise(ipus=2)
def all_three(bench: Bench) -> None:
    """Device iterations, accumulation and replicas together make the updates that are documented."""
    _compare(bench, device_iterations=2, accumulation=2, replicas=2)


@PROMISES.promise(page="schedules.md")
def counts(bench: Bench) -> None:
    """Training drops what does not fill a call, and counts calls, updates, micro-batches and samples."""
    x, y = joined(batches(9, size=6))[0]  # 54 samples: 13 micro-batches of 4, and 2 samples
    model = network()
    trainer = bench.trainer(model, sgd(model), device_iterations=2, gradient_accumulation_steps=3)
    state = trainer.run(DataLoader(TensorDataset(x, y), batch_size=4), max_epochs=2)
    found = state.epoch_length, state.iteration, state.weight_updates, state.micro_batches, state.samples
    expect(found == (2, 4, 8, 24, 96), f"calls an epoch, calls, updates, micro-batches, samples: {found}")


@PROMISES.promise()
def training_on_every_sample(bench: Bench) -> None:
    """With drop_last=False what does not fill a call trains, too: the updates it fills, and one of the rest."""
    x, y = joined(batches(9, size=6))[0]  # 54 samples: 4 updates of 12, and one of 6
    pair = bench.pair(device_iterations=2, gradient_accumulation_steps=3, drop_last=False)
    state = pair.trainer.run(DataLoader(TensorDataset(x, y), batch_size=4), max_epochs=2)
    pair.train(2 * list(zip(torch.split(x, 12), torch.split(y, 12))))
    pair.compare()
    expect(state.samples == 108, f"{state.samples} samples were counted of 108")


@PROMISES.promise(page="metrics.md")
def evaluation_of_every_sample(bench: Bench) -> None:
    """Evaluation counts every sample exactly once, also those of the last, incomplete batch."""
    x, y = joined(batches(9, size=6))[0]
    model = network()
    loss_fn = nn.CrossEntropyLoss()
    evaluator = bench.evaluator(model, {"accuracy": Accuracy(), "loss": Loss(loss_fn)}, device_iterations=2)
    found = evaluator.run(DataLoader(TensorDataset(x, y), batch_size=8)).metrics
    with torch.no_grad():
        scores = network()(x)
    expected = {"accuracy": (scores.argmax(1) == y).double().mean().item(), "loss": loss_fn(scores, y).item()}
    agree({name: found[name] for name in expected}, expected, "metrics")


@PROMISES.promise(page="metrics.md", ipus=2)
def replicated_evaluation(bench: Bench) -> None:
    """Replicas share an evaluation's batches, and every sample counts once."""
    x, y = joined(batches(9, size=6))[0]
    evaluator = bench.evaluator(network(), {"accuracy": Accuracy()}, replication_factor=2)
    found = evaluator.run(DataLoader(TensorDataset(x, y), batch_size=8)).metrics["accuracy"]
    agree(found, (network()(x).argmax(1) == y).double().mean().item(), "accuracy")
