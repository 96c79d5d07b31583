"""Train and test a CNN on MNIST over four IPUs, with pytorch-ignite: the model is cut into stages without an edit.

Without torchvision, or without its copy of MNIST in mnist_data/, scikit-learn's handwritten digits take MNIST's place;
they are few, and then the defaults marked * are smaller.
"""

from __future__ import annotations

import argparse
import os
from typing import Optional, Sequence, Tuple

import torch
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Average
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ignite_ipu import IPUConfig, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.pipeline import Placement, measure, plan_placement, write_trace

STAGES = ["layer1", "layer2", "layer3", "layer4"]  # a stage begins at each, on the next IPU
ACCUMULATION = 10  # micro-batches per weight update; 4 stages need at least 2 * 4 - 1


class ConvLayer(nn.Sequential):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(nn.Conv2d(channels, filters, 5), nn.MaxPool2d(2), nn.ReLU())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(1, 10)
        self.layer2 = ConvLayer(10, 20)
        self.layer3 = nn.Linear(320, 256)
        self.layer4 = nn.Linear(256, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.layer2(self.layer1(images)).flatten(1)
        return self.layer4(self.layer3(features).relu())


def parse(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, help="micro-batch size for training (default: 40, *4)")
    parser.add_argument("--device-iterations", type=int, help="weight updates per device call (default: 10, *2)")
    parser.add_argument("--test-batch-size", type=int, help="micro-batch size for inference (default: 8)", default=8)
    parser.add_argument("--epochs", type=int, default=3, help="epochs to train for (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of AdamW (default: %(default)s)")
    strategies = ["pipelined", "sharded", "serial-phased", "parallel-phased"]
    parser.add_argument("--strategy", choices=strategies, default="pipelined", help="default: %(default)s")
    parser.add_argument("--offload-optimiser", action="store_true", help="keep the optimiser's state off the IPUs")
    parser.add_argument(
        "--profile", action="store_true", help="write PopVision reports (real IPUs do) and the estimated schedule"
    )
    parser.add_argument("--profile-dir", default="profile", help="where --profile writes (default: %(default)s)")
    parser.add_argument("--debug", action="store_true", help="print PopTorch's debug log")
    return parser.parse_args(argv)


def mnist() -> Tuple[Dataset, Dataset]:
    """Return MNIST for training and testing.

    Raises:
        ImportError: There is no torchvision.
        RuntimeError: There is no MNIST in mnist_data/.
    """
    from torchvision import transforms
    from torchvision.datasets import MNIST

    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return MNIST("mnist_data", train=True, transform=steps), MNIST("mnist_data", train=False, transform=steps)


def digits() -> Tuple[Dataset, Dataset]:
    """Return scikit-learn's digits for training and testing, enlarged to MNIST's 28 x 28 pixels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    small = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    data = (F.pad(F.interpolate(small, scale_factor=3), (2, 2, 2, 2)) - 0.1307) / 0.3081, torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return TensorDataset(*(x[order[:1437]] for x in data)), TensorDataset(*(x[order[1437:]] for x in data))


def run(args: argparse.Namespace, model: nn.Module) -> float:
    """Train and test a model as the arguments say, and return its accuracy on the test set."""
    try:
        train_set, test_set = mnist()
        batch_size, device_iterations, test_iterations = 40, 10, 100
    except (ImportError, RuntimeError) as reason:
        print(f"scikit-learn's digits instead of MNIST ({reason})")
        train_set, test_set = digits()
        batch_size, device_iterations, test_iterations = 4, 2, 10
    poptorch = backend.poptorch()
    if args.debug:
        poptorch.setLogLevel("DEBUG")
    options = poptorch.Options()
    if args.profile:
        options.enableProfiling(args.profile_dir)

    torch.manual_seed(0)
    batch_size = args.batch_size or batch_size
    train_loader = DataLoader(train_set, batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, args.test_batch_size)
    trainer = create_ipu_trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=args.learning_rate),
        nn.CrossEntropyLoss(),
        options=options,
        gradient_accumulation_steps=ACCUMULATION,
        device_iterations=args.device_iterations or device_iterations,
        pipeline=STAGES if args.strategy else None,
        config=IPUConfig(
            execution=args.strategy and args.strategy.replace("-", " "),
            offload=["optimizer"] if args.offload_optimiser else [],
        ),
        # All micro-batches of a call come back, not only the last, with the labels that belong to them.
        output_transform=lambda images, labels, predictions, loss: (predictions, labels, loss.item()),
    )
    Accuracy(output_transform=lambda output: output[:2]).attach(trainer, "accuracy")
    Average(output_transform=lambda output: output[2]).attach(trainer, "loss")
    # Its layers run on the trainer's IPUs; pipeline=... would give inference a placement of its own.
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()}, device_iterations=test_iterations)
    ProgressBar().attach(trainer, output_transform=lambda output: {"loss": output[2]})

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine: Engine) -> None:
        state = engine.state
        print(f"epoch {state.epoch}: loss {state.metrics['loss']:.4f}, accuracy {state.metrics['accuracy']:.2%}")

    trainer.run(train_loader, max_epochs=args.epochs)
    accuracy = evaluator.run(test_loader).metrics["accuracy"]
    print(trainer.ipu)
    print(f"Accuracy on test set: {accuracy:.2%}")
    if args.profile and args.strategy in ("pipelined", "sharded"):
        write_schedule(model, batch_size, args)
    return accuracy


def write_schedule(model: nn.Module, batch_size: int, args: argparse.Namespace) -> None:
    """Write the schedule that the planner estimates, as a trace for chrome://tracing or Perfetto."""
    images = torch.zeros(batch_size, 1, 28, 28)
    placement = Placement.of(model, STAGES, execution=args.strategy)
    profile = measure(Network(), images, granularity=STAGES)
    plan = plan_placement(profile, placement, accumulation=ACCUMULATION)
    os.makedirs(args.profile_dir, exist_ok=True)
    path = os.path.join(args.profile_dir, "schedule.json")
    write_trace(plan.schedule(), path)
    print(f"estimated schedule: {path}")


if __name__ == "__main__":
    # The guard is for the loader's worker processes, which import this file.
    arguments = parse()
    torch.manual_seed(0)
    accuracy = run(arguments, Network())
    assert accuracy > 0.9 or arguments.epochs < 3, accuracy
