"""Handlers: checkpoints, stops, averages, clocks, progress bars and Ignite's own bundles of them."""

from __future__ import annotations

import copy
import io
import re

import torch
from ignite.contrib.engines import common
from ignite.engine import Events
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn

from tests.ignite.side import follow, handlers, losses, weights
from tests.ignite.table import DIFFERS, HOST, row


def _train_and_evaluate(side, metrics=None):
    model, optimizer, trainer = side.setup()
    evaluator = side.evaluator(model, metrics or {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})
    return model, optimizer, trainer, evaluator


@row("ProgressBar", note="`CompilationProgress` shows the compilation before it")
def progress_bar(side):
    _, _, trainer = side.setup()
    RunningAverage(output_transform=lambda output: output).attach(trainer, "loss")
    written = io.StringIO()
    bar = handlers.ProgressBar(file=written, ncols=120, mininterval=0, ascii=True)
    bar.attach(trainer, metric_names="all", state_attributes=["iteration"])
    trainer.run(side.loader(), max_epochs=2)
    return re.findall(r"Epoch \[\d/\d\]: \[\d/\d\]|loss=\d+\.\d{2}", written.getvalue())


@row("Checkpoint", "DiskSaver", note="one download of the weights for each file, none if they have not changed")
def checkpoint(side):
    model, optimizer, trainer = side.setup()
    saver = handlers.DiskSaver(side.folder / "files", create_dir=True)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
    handler = handlers.Checkpoint(
        to_save, saver, n_saved=2, global_step_transform=lambda engine, event: engine.state.epoch
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    trainer.run(side.loader(), max_epochs=3)
    files = sorted(path.name for path in (side.folder / "files").iterdir())
    saved = torch.load(side.folder / "files" / "checkpoint_2.pt", weights_only=False)
    whole = weights(model)
    # Another model, as in a new process, goes on from the file and arrives at the same weights.
    side.close()
    other, other_optimizer, other_trainer = side.setup()
    with torch.no_grad():
        other[0].weight.zero_()
    handlers.Checkpoint.load_objects(
        {"model": other, "optimizer": other_optimizer, "trainer": other_trainer}, checkpoint=copy.deepcopy(saved)
    )
    other_trainer.run(side.loader(), max_epochs=3)
    resumed = weights(other)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    return files, saved["model"], saved["optimizer"]["state"], whole


@row("ModelCheckpoint", note="saved files load without this package; scores come from an evaluator as natively")
def model_checkpoint(side):
    model, _, trainer, evaluator = _train_and_evaluate(side)
    handler = handlers.ModelCheckpoint(
        side.folder / "best",
        "best",
        n_saved=1,
        create_dir=True,
        score_function=lambda engine: -engine.state.metrics["loss"],
        score_name="score",
        global_step_transform=handlers.global_step_from_engine(trainer),
    )
    evaluator.add_event_handler(Events.COMPLETED, handler, {"model": model})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
    trainer.run(side.loader(), max_epochs=3)
    (path,) = (side.folder / "best").iterdir()
    return path.name, torch.load(path, weights_only=True), handler.last_checkpoint == str(path)


@row("global_step_from_engine")
def global_step(side):
    _, _, trainer = side.setup()
    step = handlers.global_step_from_engine(trainer)
    seen = follow(trainer, Events.ITERATION_COMPLETED, lambda e: step(e, Events.ITERATION_COMPLETED))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: seen.append(step(e, e.last_event_name)))
    trainer.run(side.loader(), max_epochs=2)
    return seen


@row("EarlyStopping")
def early_stopping(side):
    _, _, trainer, evaluator = _train_and_evaluate(side)
    stopper = handlers.EarlyStopping(1, lambda engine: engine.state.metrics["loss"], trainer)  # stops when it improves
    evaluator.add_event_handler(Events.COMPLETED, stopper)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
    trainer.run(side.loader(), max_epochs=10)
    return trainer.state.epoch, stopper.state_dict(), evaluator.state.metrics


@row("TerminateOnNan", note="a NaN or infinite loss comes back from the device as it is")
def terminate_on_nan(side):
    model = side.model()
    trainer = side.trainer(model, side.sgd(model, lr=1e22), nn.MSELoss(), prepare_batch=_as_regression)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, handlers.TerminateOnNan())
    seen = follow(trainer, Events.ITERATION_COMPLETED, lambda e: torch.isfinite(torch.tensor(e.state.output)).item())
    trainer.run(side.loader(), max_epochs=3)
    return seen, trainer.state.iteration


def _as_regression(batch, device=None, non_blocking=False):
    x, y = batch
    return x, nn.functional.one_hot(y, 3).float()


@row(
    "EMAHandler",
    note="reads the weights after each update: attach it to `ITERATION_COMPLETED(every=N)`, or use this library's "
    "`EMA`, which corrects the decay",
)
def moving_average(side):
    model, _, trainer = side.setup()
    early = handlers.EMAHandler(model, momentum=0.1)
    early.attach(trainer, name="early")
    warm = handlers.EMAHandler(model, momentum=0.02, momentum_warmup=0.2, warmup_iters=5)
    warm.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED(every=2))
    late = []

    @trainer.on(Events.ITERATION_COMPLETED(once=4))
    def make_late():
        # A copy of the model made while it is being trained is an ordinary model.
        late.append(handlers.EMAHandler(model, momentum=0.5))
        assert all(type(tensor) is nn.Parameter for tensor in late[0].ema_model.parameters())

    @trainer.on(Events.EPOCH_COMPLETED)
    def update_late(engine):
        engine.state.late = 0.5
        late[0]._update_ema_model(engine, "late")

    momenta = follow(trainer, Events.ITERATION_COMPLETED, lambda e: e.state.ema_momentum)
    trainer.run(side.loader(), max_epochs=2)
    return [weights(handler.ema_model) for handler in (early, warm, *late)], momenta


@row("EpochOutputStore", note="also with asynchronous loaders, whose memory is copied before a handler sees it")
def output_store(side):
    _, _, _trainer, evaluator = _train_and_evaluate(side)
    store = handlers.EpochOutputStore()
    store.attach(evaluator, "outputs")
    evaluator.run(side.loader(samples=45))
    return evaluator.state.outputs, store.data


@row("Timer", support=DIFFERS, note="the first iteration contains the compilation; `IPUStats` leaves it out")
def timer(side):
    _, _, trainer = side.setup()
    clock = handlers.Timer(average=True)
    clock.attach(
        trainer,
        start=Events.EPOCH_STARTED,
        resume=Events.ITERATION_STARTED,
        pause=Events.ITERATION_COMPLETED,
        step=Events.ITERATION_COMPLETED,
    )
    trainer.run(side.loader(), max_epochs=2)
    return clock.step_count, clock.value() > 0


@row("TimeLimit")
def time_limit(side):
    _, _, trainer = side.setup()
    trainer.add_event_handler(Events.ITERATION_COMPLETED, handlers.TimeLimit(limit_sec=1000))
    trainer.run(side.loader(), max_epochs=1)
    whole = trainer.state.iteration
    side.close()
    _, _, trainer = side.setup()
    limit = handlers.TimeLimit(limit_sec=1)
    limit.start_time -= 2
    trainer.add_event_handler(Events.ITERATION_COMPLETED(after=3), limit)
    trainer.run(side.loader(), max_epochs=1)
    return whole, trainer.state.iteration


@row("BasicTimeProfiler", support=DIFFERS, note="times of events and data; the compilation is in the first iteration")
def basic_profiler(side):
    _, _, trainer = side.setup()
    profiler = handlers.BasicTimeProfiler()
    profiler.attach(trainer)
    trainer.run(side.loader(), max_epochs=2)
    results = profiler.get_results()
    return sorted(results), len(profiler.processing_times), results["processing_stats"]["total"] > 0


@row("HandlersTimeProfiler", support=DIFFERS, note="lists this library's own handlers, too")
def handlers_profiler(side):
    _, _, trainer = side.setup()
    profiler = handlers.HandlersTimeProfiler()
    profiler.attach(trainer)

    @trainer.on(Events.EPOCH_COMPLETED)
    def my_handler():
        pass

    trainer.run(side.loader(), max_epochs=2)
    names = [line[0] for line in profiler.get_results() if "my_handler" in line[0]]
    return names, len(profiler.processing_times)


@row(
    "setup_common_training_handlers",
    "setup_common_distrib_training_handlers",
    note="as it is; `to_save` and schedules included",
)
def common_handlers(side):
    model, optimizer, trainer = side.setup()
    scheduler = handlers.PiecewiseLinear(optimizer, "lr", milestones_values=[(0, 0.1), (12, 0.01)])
    common.setup_common_training_handlers(
        trainer,
        to_save={"model": model, "optimizer": optimizer, "trainer": trainer},
        save_every_iters=6,
        output_path=side.folder / "common",
        lr_scheduler=scheduler,
        output_names=["loss"],
        with_pbars=False,
        clear_cuda_cache=False,
    )
    seen = follow(
        trainer, Events.ITERATION_COMPLETED, lambda e: (e.state.metrics.get("loss"), optimizer.param_groups[0]["lr"])
    )
    trainer.run(side.loader(), max_epochs=2)
    return seen, [path.name for path in (side.folder / "common").iterdir()]


@row("gen_save_best_models_by_val_score", "save_best_model_by_val_score", "add_early_stopping_by_val_score")
def common_best(side):
    model, _, trainer, evaluator = _train_and_evaluate(side)
    common.save_best_model_by_val_score(side.folder / "best", evaluator, model, "accuracy", n_saved=1, trainer=trainer)
    common.gen_save_best_models_by_val_score(
        handlers.DiskSaver(side.folder / "gen", create_dir=True),
        evaluator,
        {"net": model},
        "loss",
        1,
        trainer,
        score_sign=-1.0,
    )
    stopper = common.add_early_stopping_by_val_score(2, evaluator, trainer, "accuracy")
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
    trainer.run(side.loader(), max_epochs=4)
    files = sorted(path.name for folder in ("best", "gen") for path in (side.folder / folder).iterdir())
    return files, stopper.counter, trainer.state.epoch


@row("resume in the middle", note="random states of host and device are in the trainer's state dictionary")
def resume(side):
    model, optimizer, trainer = side.setup()
    saved = {}

    @trainer.on(Events.EPOCH_COMPLETED(once=1))
    def keep():
        saved.update(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
        saved["trainer"] = trainer.state_dict()

    seen = losses(trainer)
    trainer.run(side.loader(), max_epochs=3)
    side.close()
    model, optimizer, trainer = side.setup()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    trainer.load_state_dict(saved["trainer"])
    again = losses(trainer)
    trainer.run(side.loader(), max_epochs=3)
    assert again == seen[6:]
    return seen


@row("setup_any_logging", support=HOST, note="Ignite's own deprecation: it raises and names its successors")
def any_logging(side):
    try:
        common.setup_any_logging(None, None, None, None, None, 1)
    except DeprecationWarning as warning:
        return "deprecated" in str(warning)
