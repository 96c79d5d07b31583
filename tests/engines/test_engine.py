"""An Ignite script on an IPU behaves as on Ignite's own engines."""

from __future__ import annotations

import inspect
import io
import textwrap

import ignite.engine
import pytest
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, ConfusionMatrix, Loss
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUSession, create_ipu_evaluator, create_ipu_trainer, ipu_evaluation_step, ipu_training_step
from tests.supervised import assert_same_weights, network, pair, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()
# After `data`: there is not in every Ignite a `max_iters`.
LIMITS = list(inspect.signature(Engine.run).parameters)[2:]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (create_ipu_trainer, ignite.engine.create_supervised_trainer),
        (create_ipu_evaluator, ignite.engine.create_supervised_evaluator),
    ],
)
def test_the_factories_take_ignites_arguments(ours, theirs):
    """Names, order and kinds are Ignite's; added ones are keyword-only."""
    expected = list(inspect.signature(theirs).parameters.values())
    parameters = list(inspect.signature(ours).parameters.values())
    given = parameters[: len(expected)]
    assert [(p.name, p.kind) for p in given] == [(p.name, p.kind) for p in expected]
    for mine, other in zip(given, expected):
        if not callable(other.default):
            assert mine.default == other.default, mine.name
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[len(expected) :])


def test_losses_and_weights_are_those_of_ignites_engine():
    """The same script on both engines sees the same loss at every iteration and ends with the same weights."""
    losses = {}
    models = {}
    for create in (ignite.engine.create_supervised_trainer, create_ipu_trainer):
        model, optimizer = pair(momentum=0.9)
        trainer = create(model, optimizer, CROSS_ENTROPY)
        seen = losses[create] = []
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine, seen=seen: seen.append(engine.state.output)
        )
        torch.manual_seed(3)
        trainer.run(DataLoader(task(), batch_size=8, shuffle=True), max_epochs=3)
        models[create] = model
    native, ipu = losses.values()
    assert len(ipu) == 24
    assert ipu == pytest.approx(native, rel=1e-5)
    assert_same_weights(*models.values())


@pytest.mark.parametrize("device_iterations", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
def test_one_iteration_is_one_device_call(device_iterations, accumulation, replicas):
    """It consumes D * A * R micro-batches, makes D updates, and reports the mean loss of all of them."""
    model, optimizer = pair(lr=0.0001)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        CROSS_ENTROPY,
        gradient_accumulation_steps=accumulation,
        device_iterations=device_iterations,
        replication_factor=replicas,
    )
    loader = DataLoader(task(), batch_size=4)
    trainer.run(loader)
    calls = 16 // (device_iterations * accumulation * replicas)
    assert trainer.state.iteration == calls
    counted = poptorch.counters(trainer.ipu.training.executor)
    assert (counted.device_calls, counted.micro_batches, counted.optimizer_updates) == (
        calls,
        16,
        calls * device_iterations,
    )
    reference, reference_optimizer = pair(lr=0.0001)
    train_natively(reference, reference_optimizer, loader, accumulation * replicas)
    assert_same_weights(model, reference)
    last = list(loader)[-16 // calls :]
    expected = sum(CROSS_ENTROPY(reference(x), y).item() for x, y in last) / len(last)
    assert trainer.state.output == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("mode", ["All", "Final", "EveryN"])
def test_labels_belong_to_the_predictions(mode):
    """Whatever the output mode returns, `output_transform` gets the inputs and targets of those samples."""
    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode[mode], *([2] if mode == "EveryN" else []))
    model, optimizer = pair(lr=1e-9)
    trainer = create_ipu_trainer(
        model, optimizer, CROSS_ENTROPY, options=options, output_transform=lambda x, y, y_pred, loss: (x, y, y_pred)
    )
    trainer.run(DataLoader(task(), batch_size=4))
    x, y, y_pred = trainer.state.output
    assert len(x) == len(y) == len(y_pred) == {"All": 64, "Final": 8, "EveryN": 32}[mode]
    torch.testing.assert_close(y_pred, network()(x), rtol=1e-4, atol=1e-4)
    data = task()
    rows = [int((data.tensors[0] == row).all(1).nonzero()) for row in x]
    assert torch.equal(data.tensors[1][rows], y)


@pytest.mark.parametrize("samples", [1, 7, 40, 64, 61])
def test_every_sample_counts_once_in_an_evaluation(samples):
    """Metrics equal Ignite's own engine's, ragged last batch included, and count each sample once."""
    data = task(samples)
    metrics = lambda: {"accuracy": Accuracy(), "loss": Loss(CROSS_ENTROPY), "matrix": ConfusionMatrix(3)}  # noqa: E731
    native = ignite.engine.create_supervised_evaluator(network(), metrics()).run(DataLoader(data, batch_size=4))
    model = network()
    evaluator = create_ipu_evaluator(model, metrics(), device_iterations=3)
    state = evaluator.run(DataLoader(data, batch_size=4))
    assert int(state.metrics["matrix"].sum()) == samples
    assert torch.equal(state.metrics["matrix"], native.metrics["matrix"])
    assert state.metrics["accuracy"] == native.metrics["accuracy"]
    assert state.metrics["loss"] == pytest.approx(native.metrics["loss"], rel=1e-6)
    evaluator.ipu.close()


def test_schedulers_reach_the_device_once_per_change():
    """A scheduler bound to the user's optimizer changes the device's learning rate before the next step."""
    model, optimizer = pair(lr=0.1)
    reference, reference_optimizer = pair(lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    reference_scheduler = torch.optim.lr_scheduler.StepLR(reference_optimizer, 1, gamma=0.5)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: scheduler.step())
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader, max_epochs=3)
    for _ in range(3):
        train_natively(reference, reference_optimizer, loader)
        reference_scheduler.step()
    assert_same_weights(model, reference)
    # Once when the program was loaded, then for the second and the third epoch.
    assert poptorch.counters(trainer.ipu.training.executor).optimizer_uploads == 3


def test_steps_of_ones_own_engine():
    """The step functions are public, for engines that users build."""
    model, optimizer = pair()
    factory = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer = Engine(ipu_training_step(factory.ipu, output_transform=lambda x, y, y_pred, loss: float(loss)))
    evaluator = Engine(ipu_evaluation_step(factory.ipu))
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader)
    Accuracy().attach(evaluator, "accuracy")
    state = evaluator.run(loader)
    reference, reference_optimizer = pair()
    train_natively(reference, reference_optimizer, loader)
    expected = sum(int((reference(x).argmax(1) == y).sum()) for x, y in loader) / 64
    assert state.metrics["accuracy"] == pytest.approx(expected)


def test_batches_of_dictionaries_with_scalars():
    """Nested batches reach the model as they are; a Python number may change from batch to batch."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, batch):
            return self.inner(batch["features"]["x"]) * batch["scale"]

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(
        model, optimizer, CROSS_ENTROPY, prepare_batch=lambda batch, device, non_blocking: (batch, batch["target"])
    )
    x, y = task().tensors
    batches = [{"features": {"x": x[i : i + 8]}, "scale": 1.0 + i, "target": y[i : i + 8]} for i in range(0, 64, 8)]
    trainer.run(batches)
    reference = Scaled()
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    train_natively(reference, reference_optimizer, [(batch, batch["target"]) for batch in batches])
    assert_same_weights(model, reference)


def test_a_model_that_returns_its_own_loss():
    """loss_fn=None takes the loss from the model's output."""

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, batch):
            x, y = batch
            logits = self.inner(x)
            return {"loss": CROSS_ENTROPY(logits, y), "logits": logits}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = create_ipu_trainer(
        model, optimizer, None, prepare_batch=lambda batch, device, non_blocking: (tuple(batch), batch[1])
    )
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader)
    reference, reference_optimizer = pair(lr=0.05)
    train_natively(reference, reference_optimizer, loader)
    assert_same_weights(model.inner, reference)


SCRIPT = """
import sys, torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from tests.supervised import task

folder, stop, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=2)
evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
loader = DataLoader(task(), batch_size=8, shuffle=True)
to_save = {"model": model, "optimizer": optimizer, "trainer": trainer, "lr_scheduler": scheduler}
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: scheduler.step())
trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver(folder, require_empty=False)))
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
trainer.add_event_handler(Events.EPOCH_COMPLETED(once=stop), trainer.terminate)
if resume:
    Checkpoint.load_objects(to_save, torch.load(resume[0], weights_only=True))
trainer.run(loader, max_epochs=4)
"""


def test_a_resumed_run_ends_with_the_uninterrupted_runs_weights(tmp_path, processes):
    """Stopped after any epoch and resumed in a new process: bit for bit the same, with shuffling and dropout."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(folder, stop, *resume):
        processes.run([script, tmp_path / folder, stop, *resume], check=True)

    run("whole", 4)
    whole = torch.load(tmp_path / "whole" / "checkpoint_16.pt", weights_only=True)
    run("stopped", 2)
    run("stopped", 4, tmp_path / "stopped" / "checkpoint_8.pt")
    resumed = torch.load(tmp_path / "stopped" / "checkpoint_16.pt", weights_only=True)
    assert whole["model"].keys() == resumed["model"].keys()
    for name, value in whole["model"].items():
        assert torch.equal(value, resumed["model"][name]), name
    for number, state in whole["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, resumed["optimizer"]["state"][number][name]), (number, name)


@pytest.mark.parametrize(
    ("saved", "shorter", "longer"),
    [
        ({"epoch": 3, "max_epochs": 3, "epoch_length": 8}, {"max_epochs": 1}, {"max_epochs": 5}),
        ({"iteration": 20, "max_epochs": 9, "epoch_length": 8}, {"max_epochs": 1}, {"max_epochs": 3}),
        pytest.param(
            *({"iteration": 20, "max_iters": 20, "epoch_length": 8}, {"max_iters": 10}, {"max_iters": 30}),
            marks=pytest.mark.skipif("max_iters" not in LIMITS, reason="Engine.run has no max_iters in this Ignite"),
        ),
    ],
)
def test_an_end_before_the_loaded_position_is_refused_as_natively(saved, shorter, longer):
    """A run that was loaded at its end stays ended, one that is to end earlier is a mistake; a longer one goes on."""
    refusals, iterations = [], []
    for create in (ignite.engine.create_supervised_trainer, create_ipu_trainer):
        trainer = create(*pair(), CROSS_ENTROPY)
        trainer.load_state_dict(saved)
        with pytest.raises(ValueError, match=next(iter(shorter))) as refused:
            trainer.run(DataLoader(task(), batch_size=8), **shorter)
        refusals.append(str(refused.value))
        made = []
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine, made: made.append(1), made)
        state = trainer.run(DataLoader(task(), batch_size=8), **longer)
        iterations.append((len(made), state.iteration))
    assert refusals[0] == refusals[1]
    assert iterations[0] == iterations[1]


def test_a_loaded_run_takes_its_limits_by_their_places():
    """`epoch_length` is the last of them, after `max_iters` where there is one."""
    trainer = create_ipu_trainer(*pair(), CROSS_ENTROPY)
    trainer.load_state_dict({"iteration": 20, "max_epochs": 5, "epoch_length": 8})
    given = [{"max_epochs": 5, "epoch_length": 8}.get(name) for name in LIMITS[: LIMITS.index("epoch_length") + 1]]
    state = trainer.run(DataLoader(task(), batch_size=8), *given)
    assert (state.epoch, state.iteration) == (5, 40)


def test_a_run_that_is_loaded_at_its_end_stays_ended():
    """A job that is started again after it has finished changes nothing; Ignite's engine would train it once more."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.load_state_dict({"epoch": 3, "max_epochs": 3, "epoch_length": 8})
    state = trainer.run(DataLoader(task(), batch_size=8), max_epochs=3)
    assert (state.epoch, state.iteration) == (3, 24)
    assert_same_weights(model, network())


def test_a_loaded_run_begins_anew_where_its_end_is_taken_away():
    """Ignite's refusal of an earlier end requires that."""
    models = []
    for create in (ignite.engine.create_supervised_trainer, create_ipu_trainer):
        model, optimizer = pair()
        trainer = create(model, optimizer, CROSS_ENTROPY)
        trainer.load_state_dict({"epoch": 3, "max_epochs": 3, "epoch_length": 8})
        trainer.state.max_epochs = None
        assert trainer.run(DataLoader(task(), batch_size=8), max_epochs=1).iteration == 8
        models.append(model)
    assert_same_weights(*models)


def shown_at_the_end(create, resumed=None, stop=None, output_transform=lambda x, y, y_pred, loss: loss.item()):
    """Return the output that handlers see at the end of epochs and of the run, and a state after some iteration."""
    trainer = create(*pair(), CROSS_ENTROPY, output_transform=output_transform)
    seen, saved = [], {}
    trainer.add_event_handler(Events.EPOCH_COMPLETED | Events.COMPLETED, lambda: seen.append(trainer.state.output))
    if stop is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), lambda: saved.update(trainer.state_dict()))
    if resumed is not None:
        trainer.load_state_dict(resumed)
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=2)
    return seen, saved


@pytest.mark.parametrize(("stop", "made_up"), [(8, 0), (16, 1)])
def test_handlers_that_are_made_up_for_see_the_last_output(stop, made_up):
    """Those of an epoch's end, in a run that was saved by its last iteration: they see the loss, as in Ignite."""
    expected, _ = shown_at_the_end(ignite.engine.create_supervised_trainer)
    _, saved = shown_at_the_end(create_ipu_trainer, stop=stop)
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    resumed, _ = shown_at_the_end(create_ipu_trainer, torch.load(file, weights_only=True))
    assert resumed[0] == pytest.approx(expected[made_up], rel=1e-4)


@pytest.mark.parametrize("kind", [tuple, dict, set])
def test_outputs_of_other_kinds_are_made_up_for_if_they_are_plain_data(kind):
    """Tensors in tuples and dictionaries are saved with the state; a checkpoint holds None for other values."""
    kinds = {tuple: lambda y_pred, y: (y_pred, y), dict: lambda y_pred, y: {"y": y}, set: lambda y_pred, y: {id(y)}}

    def output(x, y, y_pred, loss):
        return kinds[kind](y_pred, y)

    expected, saved = shown_at_the_end(create_ipu_trainer, stop=8, output_transform=output)
    resumed, _ = shown_at_the_end(create_ipu_trainer, saved, output_transform=output)
    torch.testing.assert_close(resumed[0], None if kind is set else expected[0])


def test_a_checkpoint_loads_where_neither_this_library_nor_poptorch_is(tmp_path, processes):
    """The files hold plain tensors under plain names."""
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver(str(tmp_path))))
    trainer.run(DataLoader(task(), batch_size=8))
    program = textwrap.dedent(
        """
        import sys, torch
        saved = torch.load(sys.argv[1], weights_only=True)
        assert list(saved["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"], saved["model"].keys()
        assert all(type(value) is torch.Tensor for value in saved["model"].values())
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        model.load_state_dict(saved["model"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        optimizer.load_state_dict(saved["optimizer"])
        assert optimizer.state[model[0].weight]["momentum_buffer"].shape == (8, 6)
        """
    )
    file = tmp_path / "checkpoint_8.pt"
    processes.run(["-c", program, file], check=True, without=("ignite", "ignite_ipu", "poptorch"))


def test_the_session_answers_before_the_first_step():
    """Printing it tells batch arithmetic, IPUs, backend, variable attributes and how often weights move."""
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, device_iterations=2, gradient_accumulation_steps=3)
    texts = []
    trainer.add_event_handler(Events.STARTED, lambda: texts.append(str(trainer.ipu)))
    trainer.run(DataLoader(task(), batch_size=8))
    (text,) = texts
    for part in ("emulator", "24 samples per weight update", "48 samples per device call", "1 steps per epoch"):
        assert part in text, text
    for part in ("16 samples dropped", "1 for training", "lr, momentum", "one copy to the host"):
        assert part in text, text
    assert str(IPUSession.of(model)) == str(trainer.ipu)


def test_an_operator_that_no_ipu_has_is_named_with_the_users_line():
    """Not with a line of the model's caller."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, lambda y_pred, y: CROSS_ENTROPY(torch.lgamma(y_pred), y))
    with pytest.raises(poptorch.Error, match=r"lgamma is used at .*test_engine\.py:\d+"):
        trainer.run(DataLoader(task(), batch_size=8))


def test_an_operator_that_a_stock_layer_uses_is_named_with_the_layer():
    """No line of the model's own runs, and Ignite's is not it."""
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"))
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    with pytest.raises(poptorch.Error, match=r"linalg_solve, used in the module '.*0\.parametrizations\.weight\.0'"):
        trainer.run([(torch.randn(2, 4), torch.randn(2, 4))])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [Events.EPOCH_COMPLETED, Events.ITERATION_COMPLETED(once=11), Events.STARTED])
def test_runs_after_one_that_failed_are_ignites(error, at):
    """Ignite answers the first run after an exception with None, and goes on in the second."""
    outcomes = {}
    for create in (ignite.engine.create_supervised_trainer, create_ipu_trainer):
        model, optimizer = pair(momentum=0.9)
        trainer = create(model, optimizer, CROSS_ENTROPY)
        errors = [error("of a handler")]

        def fail_once(engine, errors=errors):
            if errors:
                raise errors.pop()

        trainer.add_event_handler(at, fail_once)
        loader = DataLoader(task(), batch_size=8)
        with pytest.raises(error, match="of a handler"):
            trainer.run(loader, max_epochs=3)
        second = trainer.run(loader, max_epochs=3)
        third = trainer.run(loader, max_epochs=3)
        outcomes[create] = model, (second, third.iteration, third.epoch)
    (native, expected), (ipu, found) = outcomes.values()
    assert found == expected and found[0] is None
    assert_same_weights(ipu, native)


@pytest.mark.parametrize("pass_on", [list, iter], ids=["list", "iterator"])
def test_ready_batches_joined_as_the_warning_says_train_as_natively(pass_on, caplog):
    """Where Ignite accumulates over two elements, a device call takes one that has the rows of both."""
    batches = list(DataLoader(task(), batch_size=8))
    joined = [tuple(map(torch.cat, zip(*batches[first : first + 2]))) for first in range(0, len(batches), 2)]
    models = []
    for create, data in ((ignite.engine.create_supervised_trainer, batches), (create_ipu_trainer, joined)):
        model, optimizer = pair(momentum=0.9)
        trainer = create(model, optimizer, CROSS_ENTROPY, gradient_accumulation_steps=2)
        trainer.run(pass_on(data), max_epochs=1, epoch_length=len(data))
        models.append(model)
    assert_same_weights(*reversed(models))
    assert "cut into 2 micro-batches" in caplog.text and "join 2 of them into one element" in caplog.text


def test_state_dictionaries_can_be_compared():
    """As Ignite's; in the middle of an epoch, with the sums of a metric, too."""
    model, optimizer = pair()
    transform = lambda x, y, y_pred, loss: (y_pred, y)  # noqa: E731
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), output_transform=transform)
    ConfusionMatrix(3).attach(trainer, "confusion")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), trainer.terminate)
    before = trainer.state_dict()
    trainer.run(DataLoader(task(), batch_size=16, shuffle=True), max_epochs=2)
    after = trainer.state_dict()
    assert after == trainer.state_dict() and before != after
    assert after["ipu"]["added_up"]["objects"]["confusion"] is not None


@pytest.mark.parametrize("state", [None, 1, "trainer"])
def test_states_that_are_no_mappings_are_refused_as_by_ignite(state):
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    with pytest.raises(TypeError) as native:
        Engine(lambda engine, batch: None).load_state_dict(state)
    with pytest.raises(TypeError) as found:
        trainer.load_state_dict(state)
    assert str(found.value) == str(native.value)
