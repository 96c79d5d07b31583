"""Weights move when they must and never otherwise, and nothing is lost on the way."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUEvents, IPUSession, SessionError, create_ipu_evaluator, create_ipu_trainer, ipu_train_batch
from ignite_ipu.engines.averages import create_ipu_averages_evaluator
from ignite_ipu.engines.steps import ipu_evaluation_step
from ignite_ipu.errors import LossError
from tests.supervised import assert_same_weights, network, pair, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


def loader(**settings):
    return DataLoader(task(), batch_size=8, **settings)


def trainer_for(model, optimizer, **settings):
    return create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **settings)


def counts(program):
    return poptorch.counters(program.executor)


def test_an_epoch_and_its_validations_cost_one_copy_each_way():
    """Several evaluators and a checkpoint after each epoch share one download and one upload."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    evaluators = [create_ipu_evaluator(model, {"accuracy": Accuracy()}) for _ in range(3)]

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        for evaluator in evaluators:
            evaluator.run(loader())
        model.state_dict()

    trainer.run(loader(), max_epochs=4)
    (evaluation,) = trainer.ipu.evaluations
    training = counts(trainer.ipu.training)
    assert (training.weight_downloads, training.weight_uploads) == (4, 1)
    assert (counts(evaluation).weight_uploads, counts(evaluation).weight_downloads) == (4, 0)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert training.weight_download_bytes == 4 * size


def test_evaluations_in_a_row_copy_nothing():
    """Only the first evaluation after training needs weights."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    evaluator = create_ipu_evaluator(model)
    trainer.run(loader())
    evaluator.run(loader())
    before = poptorch.counters()
    for _ in range(3):
        evaluator.run(loader())
    moved = poptorch.counters() - before
    assert (moved.weight_uploads, moved.weight_downloads) == (0, 0)


def test_an_evaluator_before_any_training_sees_later_training():
    """The order in which engines are made and run does not matter."""
    model, optimizer = pair(lr=0.5)
    evaluator = create_ipu_evaluator(model, output_transform=lambda x, y, y_pred: y_pred)
    x = task().tensors[0]
    evaluator.run(loader())
    trainer = trainer_for(model, optimizer)
    trainer.run(loader())
    evaluator.run([(x[:8], x[:8])])
    reference, reference_optimizer = pair(lr=0.5)
    train_natively(reference, reference_optimizer, loader())
    torch.testing.assert_close(evaluator.state.output, reference(x[:8]), rtol=1e-4, atol=1e-5)


def test_taking_turns_on_the_same_ipus():
    """With share_ipus only one program holds IPUs at a time, and training goes on where it was."""
    model, optimizer = pair(momentum=0.9)
    trainer = trainer_for(model, optimizer, config={"share_ipus": True})
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
    attached = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        evaluator.run(loader())
        programs = [trainer.ipu.training, *trainer.ipu.evaluations]
        attached.append([program.ready for program in programs])

    trainer.run(loader(), max_epochs=3)
    assert attached == [[False, True]] * 3
    reference, reference_optimizer = pair(momentum=0.9)
    for _ in range(3):
        train_natively(reference, reference_optimizer, loader())
    assert_same_weights(model, reference)
    assert counts(trainer.ipu.training).compiles == 1


@pytest.mark.parametrize(("ipus", "attached"), [(1, [False, True]), (2, [True, True])])
def test_turns_are_taken_where_the_machine_has_too_few_ipus(ipus, attached, monkeypatch, caplog, tmp_path):
    """Without share_ipus, which the message names; where there are enough, each program keeps its own."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", str(ipus))
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))
    model, optimizer = pair(momentum=0.9)
    trainer, evaluator = trainer_for(model, optimizer), create_ipu_evaluator(model, {"accuracy": Accuracy()})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader()))
    trainer.run(loader(), max_epochs=3)
    assert [program.ready for program in (trainer.ipu.training, *trainer.ipu.evaluations)] == attached
    reference, native = pair(momentum=0.9)
    for _ in range(3):
        train_natively(reference, native, loader())
    assert_same_weights(model, reference)
    assert ("IPUConfig(share_ipus=True) sets that" in caplog.text) == ("take turns" in repr(trainer.ipu)) == (ipus == 1)


def test_an_evaluation_that_finds_all_ipus_busy_names_share_ipus(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "2")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))
    (model, optimizer), other = pair(), network()
    busy = create_ipu_evaluator(other)
    # Of another thread: an idle model of this one would give its IPU.
    thread = threading.Thread(target=lambda: busy.run(loader()))
    thread.start()
    thread.join()
    trainer_for(model, optimizer).run(loader())
    with pytest.raises(SessionError, match=r"Failed to acquire 1 IPU.*With IPUConfig.share_ipus=True. both take turns"):
        create_ipu_evaluator(model).run(loader())


def test_weights_set_on_the_host_reach_the_device():
    """Training goes on from `load_state_dict` and in-place edits between epochs."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)

    @trainer.on(Events.EPOCH_STARTED(once=2))
    def load():
        model.load_state_dict(network().state_dict())

    @trainer.on(Events.EPOCH_COMPLETED(once=2))
    def edit():
        with torch.no_grad():
            model[0].weight.mul_(0.5)

    trainer.run(loader(), max_epochs=3)
    reference, reference_optimizer = pair()
    train_natively(reference, reference_optimizer, loader())
    with torch.no_grad():
        reference[0].weight.mul_(0.5)
    train_natively(reference, reference_optimizer, loader())
    assert_same_weights(model, reference)


def clip_in_place(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.2, 0.2)


def clip_through_data(model):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.2, 0.2)


def load_into(model):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def freeze(model):
    model[0].requires_grad_(not model[0].weight.requires_grad)


def freeze_by_attribute(model):
    model[2].bias.requires_grad = not model[2].bias.requires_grad


@pytest.mark.parametrize("change", [clip_in_place, clip_through_data, load_into, freeze, freeze_by_attribute])
def test_what_handlers_do_to_weights_holds_from_the_next_iteration(change):
    """As on Ignite's own engine, whose weights are changed between iterations."""

    def trained(create_trainer):
        model, optimizer = pair(lr=0.5)
        trainer = create_trainer(model, optimizer, CROSS_ENTROPY)
        losses = []
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), lambda: change(model))
        trainer.run(loader(), max_epochs=2)
        return model, losses

    (model, losses), (reference, expected) = trained(create_ipu_trainer), trained(create_supervised_trainer)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("at", [Events.STARTED, Events.ITERATION_COMPLETED(once=2)])
def test_a_model_that_is_frozen_as_a_whole_is_refused(at):
    """PyTorch refuses to go backward, from the first iteration or from that on in which a handler freezes the rest."""
    iterations = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        model, optimizer = pair()
        trainer = create(model, optimizer, CROSS_ENTROPY)
        trainer.add_event_handler(at, lambda engine, model: model.requires_grad_(False), model)
        with pytest.raises((RuntimeError, LossError), match=r"does not require grad|all parameters .* are frozen"):
            trainer.run(loader())
        iterations.append(trainer.state.iteration)
    assert iterations[0] == iterations[1]


def test_reading_weights_in_every_iteration_uploads_nothing():
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: model[0].weight.norm().item())
    trainer.run(loader())
    assert counts(trainer.ipu.training).weight_uploads == 1


def test_a_layer_that_is_replaced_within_an_epoch_is_refused_at_its_end():
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: setattr(model, "2", nn.Linear(8, 3)))
    with pytest.raises(SessionError, match=r"2\.weight, 2\.bias of the model was replaced"):
        trainer.run(loader(), max_epochs=1)


def test_an_optimizer_state_goes_from_gpu_style_training_to_the_ipu_and_back():
    """A run begun on the host continues on the IPU, and on the host again, as if never interrupted."""
    reference, reference_optimizer = pair(momentum=0.9)
    for _ in range(3):
        train_natively(reference, reference_optimizer, loader())

    first, first_optimizer = pair(momentum=0.9)
    train_natively(first, first_optimizer, loader())
    model, optimizer = pair(momentum=0.9)
    trainer = trainer_for(model, optimizer)
    model.load_state_dict(first.state_dict())
    optimizer.load_state_dict(first_optimizer.state_dict())
    trainer.run(loader())

    last, last_optimizer = pair(momentum=0.9)
    last.load_state_dict(model.state_dict())
    last_optimizer.load_state_dict(optimizer.state_dict())
    train_natively(last, last_optimizer, loader())
    assert_same_weights(last, reference)


@pytest.mark.parametrize("error", [RuntimeError("handler"), KeyboardInterrupt()])
def test_an_exception_leaves_the_device_released_and_the_weights_on_the_host(error):
    """Whatever ends a run, the newest weights are on the host, the IPUs are free and the model works natively."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)

    @trainer.on(Events.ITERATION_COMPLETED(once=5))
    def fail():
        raise error

    with pytest.raises(type(error)):
        trainer.run(loader())
    assert trainer.ipu.training.executor is None
    reference, reference_optimizer = pair()
    train_natively(reference, reference_optimizer, list(loader())[:5])
    assert type(model[0].weight) is nn.Parameter
    assert_same_weights(model, reference)
    train_natively(model, torch.optim.SGD(model.parameters(), lr=0.05), loader())
    train_natively(reference, reference_optimizer, loader())
    assert_same_weights(model, reference)
    trainer.ipu.close()
    trainer_for(model, optimizer).run(loader())
    train_natively(reference, reference_optimizer, loader())
    assert_same_weights(model, reference)


def test_closing_makes_model_and_optimizer_ordinary_again():
    """After close() native PyTorch goes on where the device was, and another trainer may be made."""
    model, optimizer = pair(momentum=0.9)
    trainer = trainer_for(model, optimizer)
    trainer.run(loader())
    trainer.ipu.close()
    train_natively(model, optimizer, loader())
    reference, reference_optimizer = pair(momentum=0.9)
    for _ in range(2):
        train_natively(reference, reference_optimizer, loader())
    assert_same_weights(model, reference)
    trainer_for(model, optimizer)


def test_events_tell_what_happens():
    """Compilations, attaches and copies are Ignite events on the engines."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    evaluator = create_ipu_evaluator(model)
    seen = []
    for event in IPUEvents:
        trainer.add_event_handler(event, lambda engine, name=event.name: seen.append(name))
    seen.clear()
    trainer.run(loader())
    assert seen == ["COMPILE_STARTED", "COMPILE_COMPLETED", "DEVICE_ATTACHING", "DEVICE_ATTACHED", "WEIGHTS_TO_HOST"]
    seen.clear()
    optimizer.param_groups[0]["lr"] = 0.01
    trainer.run(loader())
    assert seen == ["OPTIMIZER_SENT", "WEIGHTS_TO_HOST"]
    seen.clear()
    evaluator.run(loader())
    assert seen == ["COMPILE_STARTED", "COMPILE_COMPLETED", "DEVICE_ATTACHING", "DEVICE_ATTACHED"]


def test_weights_survive_when_trainer_and_executor_go():
    """A function that trains and returns the model returns the trained weights."""

    def train():
        model, optimizer = pair()
        trainer_for(model, optimizer).run(loader())
        return model

    reference, reference_optimizer = pair()
    train_natively(reference, reference_optimizer, loader())
    assert_same_weights(train(), reference)


def test_sessions_that_are_closed_leave_nothing_on_the_model():
    """Neither hooks nor classes; a later evaluation uses the loaded weights."""
    model, optimizer = pair()
    before = dict(vars(model))
    x = task().tensors[0][:8]
    for _ in range(3):
        trainer = trainer_for(model, optimizer)
        trainer.run(loader())
        trainer.ipu.close()
        assert vars(model) == before and not model._load_state_dict_post_hooks
    step = ipu_evaluation_step(trainer.ipu, output_transform=lambda x, y, y_pred: y_pred)
    for factor in (1, 2):
        model.load_state_dict({name: factor * value for name, value in network().state_dict().items()})
        torch.testing.assert_close(step(None, (x, x)), model(x))


def test_optimizers_of_trainers_that_have_ended_are_freed():
    """The session, which goes on, keeps the optimizer of its newest trainer alone."""
    model, ended = network(), []
    for _ in range(3):
        optimizer = torch.optim.Adam(model.parameters())
        trainer = trainer_for(model, optimizer)
        trainer.run(loader())
        session = trainer.ipu
        session.stop_training()
        assert type(optimizer) is torch.optim.Adam
        ended.append(weakref.ref(optimizer))
        del trainer, optimizer
    gc.collect()
    assert session.training is None and [optimizer() for optimizer in ended] == [None] * 3


def test_one_session_per_model():
    """Engines over one model share its session; a second trainer is refused."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    assert create_ipu_evaluator(model).ipu is trainer.ipu is IPUSession.of(model)
    with pytest.raises(SessionError, match="has a trainer already"):
        trainer_for(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_parameter_replaced_after_compilation_is_refused():
    """The programs hold the old tensors, so going on would train something else."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    trainer.run(loader())
    model[2] = nn.Linear(8, 3)
    with pytest.raises(SessionError, match=r"2\.weight, 2\.bias of the model was replaced"):
        trainer.run(loader())


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_parameter_replaced_within_an_epoch_is_refused_in_the_next_iteration(evaluates, reported):
    """Also one that PyTorch does not report to hooks."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    engine = create_ipu_evaluator(model) if evaluates else trainer

    def replace():
        weight = nn.Parameter(torch.zeros_like(model[2].weight))
        if reported:
            model[2].weight = weight
        else:
            model[2]._parameters["weight"] = weight

    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), replace)
    with pytest.raises(SessionError, match=r"2\.weight of the model was replaced"):
        engine.run(loader())
    assert engine.state.iteration == 3


class Scaled(nn.Module):
    """A loss with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, scores, targets):
        return nn.functional.cross_entropy(scores * self.scale, targets)


def test_a_buffer_of_a_loss_that_is_replaced_within_an_epoch_is_refused():
    model, optimizer = pair()
    criterion = Scaled()
    trainer = create_ipu_trainer(model, optimizer, criterion)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: setattr(criterion, "scale", torch.zeros(1)))
    with pytest.raises(SessionError, match=r"scale of the trainer was replaced"):
        trainer.run(loader())
    assert trainer.state.iteration == 3


def test_a_model_on_another_device_is_refused():
    """PopTorch copies a model from the host's memory."""
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(SessionError, match=r"weight is on meta.*leave it on the CPU"):
        create_ipu_evaluator(model)


def test_a_model_in_shared_memory_is_refused():
    """Other processes cannot write into an IPU's weights, so that each would train a copy of its own."""
    model, optimizer = pair()
    x, y = task(8).tensors
    create_ipu_evaluator(model)
    model.share_memory()
    refusals = [
        lambda: create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss()),
        lambda: ipu_train_batch(model, optimizer, nn.CrossEntropyLoss(), x, target=y),
        lambda: create_ipu_evaluator(network().share_memory()),
    ]
    for refused in refusals:
        with pytest.raises(SessionError, match=r"0.weight is in memory that processes share.*Hogwild.*copy"):
            refused()
    alone = copy.deepcopy(model)
    ipu_train_batch(alone, torch.optim.SGD(alone.parameters(), lr=0.1), nn.CrossEntropyLoss(), x, target=y)


def test_a_whole_model_can_be_pickled_and_copied_while_it_is_trained(tmp_path, processes):
    """The copy is an ordinary model with the newest weights, and loads where this library is not."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    trainer.run(loader())
    file = tmp_path / "model.pt"
    torch.save(model, file)
    program = "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); m.load_state_dict(m.state_dict())"
    processes.run(["-c", program, file], check=True, without=("ignite", "ignite_ipu", "poptorch"))
    duplicate = copy.deepcopy(model)
    assert_same_weights(duplicate, model)
    duplicate.load_state_dict(network().state_dict())
    assert_same_weights(duplicate, network())


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("copy_that_fails", range(3))
@pytest.mark.parametrize("end", ["close", "release"])
def test_an_end_that_loses_training_says_so(end, copy_that_fails, lasting):
    """Whichever copy fails, once or from then on, the IPUs are free, and model and optimizer are those of PyTorch."""
    model, optimizer = pair(momentum=0.9)
    trainer = trainer_for(model, optimizer)
    trainer.run(loader())
    session = trainer.ipu
    for x, y in loader():
        session.train(x, y)
    with poptorch.inject_faults({}, copies={copy_that_fails: poptorch.Fault(message="no answer", lasting=lasting)}):
        with pytest.raises(SessionError, match=r"these copies failed: .*no answer.*newest checkpoint") as raised:
            getattr(session, end)()
    assert isinstance(raised.value.__cause__, poptorch.RecoverableError)
    assert session.training is None or session.training.executor is None
    session.close()
    assert type(model[0].weight) is nn.Parameter and type(optimizer) is torch.optim.SGD
    train_natively(model, optimizer, loader())
    trainer_for(model, optimizer).run(loader())


def test_an_exception_is_raised_whatever_its_release_loses(caplog):
    """Tensors that could not be copied are in the log: the exception of the run has the details."""
    trainer = trainer_for(*pair())

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def fail():
        raise RuntimeError("handler")

    with poptorch.inject_faults({}, copies={1: poptorch.Fault()}), pytest.raises(RuntimeError, match="handler"):
        trainer.run(loader())
    assert "Could not bring the newest weights to the host." in caplog.messages


def test_an_evaluator_follows_the_newest_trainer():
    """Its program and its loader have the options of the trainer there is, and its IPUs are the ones of these."""
    model, optimizer = pair()
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
    averages = create_ipu_averages_evaluator(model, {"accuracy": lambda y_pred, y: (y_pred.argmax(1) == y).float()})
    before = None
    for replicas in (1, 2, 4, 4):
        trainer = trainer_for(model, optimizer, replication_factor=replicas)
        session = trainer.ipu
        trainer.run(loader())
        for _ in range(2):
            assert evaluator.run(loader()).metrics == pytest.approx(averages.run(loader()).metrics)
        program, sums = session.evaluations
        assert program.options.replication_factor == sums.options.replication_factor == replicas
        assert program.resolved is session.inference.resolved()
        assert counts(program).device_calls == evaluator.state.iteration * (2 if program is not before else 4)
        before = program
        session.stop_training()


def test_evaluation_options_of_trainers_that_are_gone_are_not_kept():
    """Whatever memory is used again, options are derived from the trainer there is."""
    model, optimizer = pair()
    for replicas in (1, 2, 4) * 10:
        trainer = trainer_for(model, optimizer, replication_factor=replicas)
        assert trainer.ipu.inference.resolved().replicas == replicas
        trainer.ipu.stop_training()
