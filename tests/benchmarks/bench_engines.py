"""Cost of the shim over a hand-written PopTorch loop: a step, an epoch over a loader, a switch to evaluation.

The limit of a step is the same hand-written loop, made a second time. That of an epoch is Ignite's own engine over the
user's loader, which is one of PyTorch's and no `poptorch.DataLoader`. Its function makes the hand-written step after
the checks that no step may leave out, since nothing reports these changes: the Python values of the model's code and
its modes, hyper-parameters, and gradients on the host.
"""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import torch
from ignite.engine import Engine
from torch import nn
from torch.utils.data import TensorDataset

from ignite_ipu import backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.torch_names.tensors import version_of
from tests.benchmarks.bench_accelerate import Unchanged
from tests.benchmarks.measures import Measure, Work, ratio, ratio_of_fresh
from tests.benchmarks.models import batches, executor_of, perceptron, poptorch_loop, width_for

ROWS = 32


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    yield step("engine / hand-written PopTorch, step of 5 ms", width_for(5e-3, ROWS, 6), 6, ROWS, 20)
    for milliseconds, aim in ((0.4, 1.10), (2.4, 1.03), (9, 1.01)):
        yield epoch(milliseconds, aim)


def more() -> Iterator[Measure]:
    """Yield further rows."""
    yield step("engine / hand-written PopTorch, 200 small layers", 32, 200, 8, 10)
    yield evaluation_after_training()


def step(name: str, width: int, layers: int, rows: int, steps: int) -> Measure:
    """Measure an engine's step, on batches that are there."""
    data = batches(steps, rows, width)

    def make() -> Tuple[Work, ...]:
        trainer = trainer_of(perceptron(width, layers))

        def engine() -> None:
            for batch in data:
                trainer._process_function(trainer, batch)

        by_hand, again = (poptorch_loop(perceptron(width, layers), data) for _ in range(2))
        return engine, by_hand, again

    return ratio_of_fresh(name, make, 1.02, steps)


def epoch(milliseconds: float, aim: float) -> Measure:
    """Measure whole epochs of a trainer over a loader, with Ignite's events."""
    poptorch, width = backend.poptorch(), width_for(milliseconds * 1e-3, ROWS)
    steps = max(100, int(200 / milliseconds))  # includes the start of a run and the end of an epoch
    samples = ROWS * steps
    dataset = TensorDataset(torch.randn(samples, width), torch.randint(0, 10, (samples,)))

    def make() -> Tuple[Work, ...]:
        trainer, model = trainer_of(perceptron(width)), perceptron(width)
        executor = executor_of(model)
        executor(*dataset[:ROWS])  # which changes the classes of modules and parameters
        unchanged = Unchanged(model)

        def checked(engine: Engine, batch: Any) -> float:
            unchanged.check_model()
            unchanged.check_step(batch, list(map(version_of, batch)))
            loss: float = executor(*batch).item()
            return loss

        plain = Engine(checked)
        loader = torch.utils.data.DataLoader(dataset, batch_size=ROWS, shuffle=True)
        by_hand = poptorch.DataLoader(poptorch.Options(), dataset, batch_size=ROWS, shuffle=True)

        def run(engine: Any, data: Any) -> Work:
            return lambda: engine.run(data, max_epochs=1)

        return run(trainer, loader), poptorch_loop(perceptron(width), by_hand), run(plain, loader)

    name = f"engine / hand-written PopTorch, data loading included, step of {milliseconds} ms"
    # An epoch is long: three of each leave time for several trainers, each of which has its place in memory.
    return ratio_of_fresh(name, make, aim, steps, fresh=4, pairs=3)


def trainer_of(model: nn.Module) -> IPUTrainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    return create_ipu_trainer(model, optimizer, nn.functional.cross_entropy)


def evaluation_after_training() -> Measure:
    """Measure the extra cost of evaluating: the weights go to the host and to the other program."""
    model = perceptron(2048, 5)
    trainer = trainer_of(model)
    evaluator = create_ipu_evaluator(model)
    (batch,) = batches(1, 1, 2048)
    session = trainer.ipu
    trainer._process_function(trainer, batch)
    evaluator._process_function(evaluator, batch)
    sources = [torch.randn_like(parameter) for parameter in perceptron(2048, 5).parameters()]
    targets = [torch.empty_like(source) for source in sources]

    def switch() -> None:
        session.weights.trained()
        assert session.training is not None and session.training.executor is not None
        session.training.executor._life.state.device_is_newer = True  # type: ignore[attr-defined]
        session.weights.to_inference()

    def copy() -> None:
        for _ in range(2):
            for source, target in zip(sources, targets):
                target.copy_(source)

    size = sum(source.numel() * source.element_size() for source in sources)
    return ratio(f"a switch to evaluation / two memcpys of {size >> 20} MiB", switch, copy, 1.1)
