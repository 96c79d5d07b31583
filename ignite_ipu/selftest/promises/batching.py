"""The batching arithmetic: the samples and the updates of one device call."""

from __future__ import annotations

from typing import Any

from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu.selftest.bench import Bench, agree, batches, expect, joined, network, sgd
from ignite_ipu.selftest.promises import needs

PAGE = "concepts.md"


def _samples(batch_size: int) -> Any:
    return DataLoader(TensorDataset(*joined(batches(9, size=6))[0]), batch_size=batch_size)


def _compare(bench: Bench, device_iterations: int = 1, accumulation: int = 1, replicas: int = 1) -> None:
    """Make two calls, and the updates they consist of in PyTorch, in the order [D][A][R][B]."""
    per_update = accumulation * replicas
    micro_batches = batches(2 * device_iterations * per_update, size=4)
    pair = bench.pair(
        lambda model: sgd(model, 0.5, 0),
        device_iterations=device_iterations,
        gradient_accumulation_steps=accumulation,
        replication_factor=replicas,
    )
    losses = pair.check(joined(micro_batches, calls=2), micro_batches, accumulation=per_update)
    agree(pair.trainer.state.output, sum(losses[len(losses) // 2 :]) / (len(losses) // 2), "mean loss of the last call")


def device_iterations(bench: Bench) -> None:
    """With deviceIterations, one call makes that many updates, one after the other."""
    _compare(bench, device_iterations=3)


def gradient_accumulation(bench: Bench) -> None:
    """With gradientAccumulation, an update's micro-batches see the same weights, and their gradients are averaged."""
    _compare(bench, accumulation=4)


def both(bench: Bench) -> None:
    """A call of deviceIterations x gradientAccumulation micro-batches is cut in this order."""
    _compare(bench, device_iterations=2, accumulation=3)


@needs(ipus=2)
def replicas(bench: Bench) -> None:
    """Replicas share the micro-batches of an update, and their gradients are averaged."""
    _compare(bench, replicas=2)


@needs(ipus=2)
def all_three(bench: Bench) -> None:
    """Device iterations, accumulation and replicas together make the updates that are documented."""
    _compare(bench, device_iterations=2, accumulation=2, replicas=2)


@needs(page="schedules.md")
def counts(bench: Bench) -> None:
    """Training drops samples that do not fill a call, and counts calls, updates, micro-batches and samples."""
    trainer = bench.pair(device_iterations=2, gradient_accumulation_steps=3).trainer
    state = trainer.run(_samples(batch_size=4), max_epochs=2)  # 13 micro-batches of 4, and 2 samples
    found = state.epoch_length, state.iteration, state.weight_updates, state.micro_batches, state.samples
    expect(found == (2, 4, 8, 24, 96), f"calls an epoch, calls, updates, micro-batches, samples: {found}")


def training_on_every_sample(bench: Bench) -> None:
    """With drop_last=False samples that do not fill a call train, too: the updates they fill, and one of the rest."""
    pair = bench.pair(device_iterations=2, gradient_accumulation_steps=3, drop_last=False)
    state = pair.trainer.run(_samples(batch_size=4), max_epochs=2)
    pair.train(2 * list(_samples(batch_size=12)))  # 4 updates, and one of 6 samples
    pair.compare()
    expect(state.samples == 108, f"{state.samples} samples were counted of 108")


@needs(page="metrics.md")
def evaluation_of_every_sample(bench: Bench) -> None:
    """Evaluation counts every sample exactly once, also those of the last, incomplete batch."""
    loss_fn = nn.CrossEntropyLoss()
    evaluator = bench.evaluator(network(), {"accuracy": Accuracy(), "loss": Loss(loss_fn)}, device_iterations=2)
    found = evaluator.run(_samples(batch_size=8)).metrics
    x, y = joined(batches(9, size=6))[0]
    scores = network()(x)
    expected = {"accuracy": (scores.argmax(1) == y).double().mean().item(), "loss": loss_fn(scores, y).item()}
    agree({name: found[name] for name in expected}, expected, "metrics")


@needs(page="metrics.md", ipus=2)
def replicated_evaluation(bench: Bench) -> None:
    """Replicas share an evaluation's batches, and every sample counts once."""
    evaluator = bench.evaluator(network(), {"accuracy": Accuracy()}, replication_factor=2)
    found = evaluator.run(_samples(batch_size=8)).metrics["accuracy"]
    x, y = joined(batches(9, size=6))[0]
    agree(found, (network()(x).argmax(1) == y).double().mean().item(), "accuracy")
