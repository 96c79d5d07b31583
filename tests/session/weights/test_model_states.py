"""A model's `state_dict()` from before the training holds the newest weights at every read, as in eager PyTorch."""

from __future__ import annotations

import copy
import io
import operator
from collections import OrderedDict

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUAccelerator, create_ipu_trainer
from tests.supervised import network, pair, task

LOADER = DataLoader(task(), batch_size=16)


def saved(state):
    """Return the contents of a file of the state, which loads as weights only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded(state):
    model = network()
    model.load_state_dict(state)
    return model.state_dict()


def popped(state):
    taken = state.copy()
    return {"2.bias": taken.pop("2.bias"), **dict([taken.popitem()])}


READERS = [
    saved,
    loaded,
    dict,
    copy.deepcopy,
    copy.copy,
    popped,
    lambda state: {**state},
    lambda state: {"0.weight": state["0.weight"]},
    lambda state: {"0.weight": state.get("0.weight")},
    lambda state: dict(state.items()),
    lambda state: dict(zip(state, state.values())),
    operator.methodcaller("copy"),
]


def read_as_it_trains(create, read):
    """Return the values of a state from before the training after every third iteration."""
    model, optimizer = pair(momentum=0.9)
    trainer = create(model, optimizer, nn.CrossEntropyLoss())
    state, told = model.state_dict(), []

    @trainer.on(Events.ITERATION_COMPLETED(every=3))
    def tell():
        told.append({name: tensor.clone() for name, tensor in read(state).items()})

    trainer.run(LOADER, max_epochs=3)
    return told


@pytest.mark.parametrize("read", READERS)
def test_what_is_read_is_the_newest(read):
    """However it is read: saved, loaded, copied or by its keys."""
    native, ipu = read_as_it_trains(create_supervised_trainer, read), read_as_it_trains(create_ipu_trainer, read)
    assert len(ipu) == 4
    torch.testing.assert_close(ipu, native, rtol=1e-5, atol=1e-6)


def test_parts_have_such_states_too():
    """An encoder's state is saved by itself, say."""

    def trained(create):
        model, optimizer = pair()
        trainer = create(model, optimizer, nn.CrossEntropyLoss())
        state = model[0].state_dict(prefix="")
        told = []
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: told.append(saved(state)))
        trainer.run(LOADER, max_epochs=1)
        return told

    torch.testing.assert_close(trained(create_ipu_trainer), trained(create_supervised_trainer))


def test_what_is_written_into_it_is_written_into_the_model():
    """Its tensors are the model's memory: the write reaches the device."""

    def trained(create):
        model, optimizer = pair()
        trainer = create(model, optimizer, nn.CrossEntropyLoss())
        state = model.state_dict()
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), lambda: state["0.weight"].mul_(0.5))
        trainer.run(LOADER, max_epochs=2)
        return saved(state)

    torch.testing.assert_close(trained(create_ipu_trainer), trained(create_supervised_trainer))


def test_a_state_that_nobody_reads_costs_nothing():
    """Nothing is downloaded for it until the run's end, when the host gets the newest weights anyway."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    state = model.state_dict()
    trainer.run(LOADER, max_epochs=3)
    counted = poptorch.counters(trainer.ipu.training.executor)
    assert counted.weight_downloads == 1
    assert set(state) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("end", ["itself", "terminate", "interrupt"])
def test_tensors_from_before_are_the_newest_when_a_run_has_ended(end):
    """Whatever ends it: training has given up control. The state is from before the trainer was made."""

    def trained(create):
        model, optimizer = pair()
        state, weight = model.state_dict(), model[0].weight.detach()
        trainer = create(model, optimizer, nn.CrossEntropyLoss())
        if end != "itself":
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=5), getattr(trainer, end))
        trainer.run(LOADER, max_epochs=2)
        return weight, state

    torch.testing.assert_close(trained(create_ipu_trainer), trained(create_supervised_trainer))


def test_copies_and_files_are_ordinary():
    """A file loads where this library is not, with the versions of the modules; so does the model's own state."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    trainer.run(LOADER)
    for state in (saved(model.state_dict()), copy.deepcopy(model.state_dict()), copy.deepcopy(model).state_dict()):
        assert type(state) is OrderedDict
        assert state._metadata[""] == {"version": 1}
        assert repr(state) == repr(model.state_dict())


def test_a_dictionary_of_ones_own_is_filled():
    """The dictionary that `state_dict` is given to fill may be of any class."""
    model, optimizer = pair()
    create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss()).run(LOADER)
    own = {}
    returned = model.state_dict(destination=own)
    assert own.keys() == returned.keys() == dict(model.named_parameters()).keys()


def test_a_closed_session_leaves_ordinary_states():
    """Tensors handed out before go on showing the model's memory."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    state = model.state_dict()
    trainer.run(LOADER)
    trainer.ipu.close()
    assert type(model.state_dict()) is OrderedDict
    with torch.no_grad():
        model[0].weight.fill_(1.5)
    assert bool((saved(state)["0.weight"] == 1.5).all())


def test_captured_loops_hand_out_such_states():
    """After every third update of a loop written for accelerate."""

    def trained(prepare):
        model, optimizer = pair()
        model, optimizer, backward = prepare(model, optimizer)
        state, told = model.state_dict(), []
        for number, (x, y) in enumerate([*LOADER, *LOADER]):
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            if number % 3 == 2:
                told.append(saved(state))
        return told

    def captured(*objects):
        accelerator = IPUAccelerator()
        return (*accelerator.prepare(*objects), accelerator.backward)

    native = trained(lambda *objects: (*objects, torch.Tensor.backward))
    torch.testing.assert_close(trained(captured), native, rtol=1e-5, atol=1e-6)
