"""Experiment loggers: the calls of each; a recording library stands in for libraries that are not installed."""

from __future__ import annotations

import io
import logging
import re
from typing import Any, Dict, List, Tuple
from unittest import mock

import torch
from ignite.engine import Events
from ignite.metrics import Accuracy

from ignite_ipu.handlers import Gradients
from tests.ignite.side import handlers, stand_ins
from tests.ignite.table import row

_OFTEN = Events.ITERATION_COMPLETED(every=2)


def _train_with(side, logger: Any, package: Any = None) -> None:
    """Log outputs, hyper-parameters and metrics, and weights and gradients where the logger can."""
    model, optimizer, trainer = side.setup()
    if not side.native:
        Gradients().attach(trainer)
    evaluator = side.evaluator(model, {"accuracy": Accuracy()})
    logger.attach_output_handler(trainer, _OFTEN, tag="training", output_transform=lambda loss: {"loss": loss})
    logger.attach_opt_params_handler(trainer, _OFTEN, optimizer=optimizer)
    logger.attach_output_handler(
        evaluator,
        Events.COMPLETED,
        tag="validation",
        metric_names="all",
        global_step_transform=handlers.global_step_from_engine(trainer),
    )
    for kind in ("WeightsScalarHandler", "WeightsHistHandler", "GradsScalarHandler", "GradsHistHandler"):
        if package is not None and hasattr(package, kind):
            logger.attach(trainer, getattr(package, kind)(model), _OFTEN)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
    trainer.run(side.loader(), max_epochs=2)


@row("TensorboardLogger", note="weights as they are on the device; gradients with this library's `Gradients`")
def tensorboard(side):
    package = handlers.tensorboard_logger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with handlers.TensorboardLogger(log_dir=side.folder / "board") as logger:
        _train_with(side, logger, package)
    written = EventAccumulator(str(side.folder / "board"), size_guidance={"histograms": 0}).Reload()
    tags = written.Tags()
    scalars = {tag: [(event.step, event.value) for event in written.Scalars(tag)] for tag in tags["scalars"]}
    spreads = {
        tag: [(event.step, event.histogram_value.min, event.histogram_value.max) for event in written.Histograms(tag)]
        for tag in tags["histograms"]
    }
    assert any(tag.startswith("grads") for tag in scalars) and any(tag.startswith("grads") for tag in spreads)
    return scalars, spreads


@row(
    "setup_tb_logging", "setup_visdom_logging", "setup_mlflow_logging", "setup_neptune_logging", "setup_wandb_logging",
    "setup_plx_logging", "setup_clearml_logging", "setup_trains_logging",
)  # fmt: skip
def setup_logging(side):
    from ignite.contrib.engines import common

    recorders = {name: mock.MagicMock() for name in ("visdom", "wandb", "mlflow", "clearml", "polyaxon", "neptune")}
    fakes = {**recorders, "mlflow.utils.validation": recorders["mlflow"].utils.validation}
    fakes.update({"mlflow.utils": recorders["mlflow"].utils, "polyaxon.tracking": recorders["polyaxon"].tracking})
    fakes.update({f"clearml.binding.{name}": mock.MagicMock() for name in ("frameworks", "frameworks.tensorflow_bind")})
    fakes.update({"clearml.binding": mock.MagicMock(), "neptune.utils": mock.MagicMock()})
    fakes.update({"neptune.integrations": mock.MagicMock(), "neptune.types": mock.MagicMock()})
    model, optimizer, trainer = side.setup()
    evaluator = side.evaluator(model, {"accuracy": Accuracy()})
    shared = (trainer, optimizer, evaluator, 2)
    with stand_ins(fakes):
        common.setup_tb_logging(side.folder / "board", *shared).close()
        common.setup_visdom_logging(*shared, num_workers=0)
        common.setup_mlflow_logging(*shared)
        common.setup_wandb_logging(*shared)
        common.setup_plx_logging(*shared)
        common.setup_clearml_logging(*shared, project_name="p")
        common.setup_trains_logging(*shared, project_name="p")
        common.setup_neptune_logging(*shared)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
        trainer.run(side.loader(), max_epochs=2)
    return {name: _calls(recorder) for name, recorder in recorders.items() if name != "visdom"}


@row("FBResearchLogger")
def fbresearch(side):
    if not hasattr(handlers, "FBResearchLogger"):
        return "not in this release"
    lines = io.StringIO()
    log = logging.getLogger(f"fb-{side.kind}")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.StreamHandler(lines))
    _, optimizer, trainer = side.setup()
    logger = handlers.FBResearchLogger(logger=log, show_output=True)
    logger.attach(trainer, "Train", every=2, optimizer=optimizer)
    trainer.run(side.loader(), max_epochs=1)
    return [
        re.sub(r"(Iter|Epoch|eta|Time|data)[^ ]*[:=] ?\S+|\d+:\d+:\d+(\.\d+)?|\d\.\d+ sec", "", line)[:40]
        for line in lines.getvalue().splitlines()
        if "lr" in line
    ]


def _calls(recorder: Any) -> List[Tuple[str, Any]]:
    """Return the calls of a recording library: method names, and their numbers, texts and tensors."""
    return [(name, _plain((args, kwargs))) for name, args, kwargs in recorder.mock_calls if "__" not in name]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, mock.NonCallableMock):
        return "an object of the library"
    if isinstance(value, (int, float, str, bool, torch.Tensor, type(None))):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value).__name__


def _recorded(side, modules: Tuple[str, ...], make: Any, package: Any = None, **attributes: Any) -> Any:
    recorder = mock.MagicMock(**attributes)
    fakes: Dict[str, Any] = {}
    for name in modules:
        place = recorder
        for part in name.split(".")[1:]:
            place = getattr(place, part)
        fakes[name] = place
    with stand_ins(fakes):
        logger = make(recorder)
        _train_with(side, logger, package)
        logger.close()
    calls = _calls(recorder)
    assert len(calls) > 4, calls
    return calls


@row("WandBLogger", note="tested with a library that records its calls; all of its offline mode applies")
def wandb(side):
    return _recorded(side, ("wandb",), lambda recorder: handlers.WandBLogger(project="p", mode="offline"))


@row("MLflowLogger", note="tested with a library that records its calls")
def mlflow(side):
    modules = ("mlflow", "mlflow.utils", "mlflow.utils.validation")
    return _recorded(side, modules, lambda recorder: handlers.MLflowLogger())


@row("PolyaxonLogger", note="tested with a library that records its calls")
def polyaxon(side):
    return _recorded(side, ("polyaxon", "polyaxon.tracking"), lambda recorder: handlers.PolyaxonLogger())


@row("NeptuneLogger", note="tested with a library that records its calls; weights and gradients included")
def neptune(side):
    package = handlers.neptune_logger

    class Run(dict):
        """Keeps the values appended under each name."""

        def __missing__(self, name):
            series = mock.MagicMock()
            self[name] = series
            return series

        stop = wait = lambda self: None

    run = Run()
    modules = ("neptune", "neptune.types", "neptune.utils", "neptune.integrations")
    fakes = {name: mock.MagicMock() for name in modules}
    fakes["neptune"].init_run.return_value = run
    with stand_ins(fakes):
        _train_with(side, handlers.NeptuneLogger(), package)
    return {name: _calls(series) for name, series in run.items() if isinstance(series, mock.MagicMock)}


@row("ClearMLLogger", note="tested with a library that records its calls; weights and gradients included")
def clearml(side):
    package = handlers.clearml_logger

    modules = ("clearml", "clearml.binding", "clearml.binding.frameworks", "clearml.binding.frameworks.tensorflow_bind")
    return _recorded(side, modules, lambda recorder: handlers.ClearMLLogger(project_name="p", task_name="t"), package)


@row("VisdomLogger", note="tested with a library that records its calls; weights and gradients included")
def visdom(side):
    package = handlers.visdom_logger

    return _recorded(side, ("visdom",), lambda recorder: handlers.VisdomLogger(num_workers=0), package)
