"""Bad input gets an error that names the value, the rule and the way out, and nothing is lost."""

from __future__ import annotations

import gc
import os
import signal

import pytest
import torch
from ignite.engine import Events
from ignite.handlers import TerminateOnNan
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu import (
    BatchError,
    ConstantAttributeError,
    LoaderError,
    LossError,
    OptimizerError,
    OptionsError,
    OutputError,
    UnsupportedArgumentError,
    create_ipu_evaluator,
    create_ipu_trainer,
)
from tests.supervised import network, pair, task

CROSS_ENTROPY = nn.CrossEntropyLoss()


def trainer_for(model=None, optimizer=None, loss_fn=CROSS_ENTROPY, **settings):
    if model is None:
        model, optimizer = pair()
    elif optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return create_ipu_trainer(model, optimizer, loss_fn, **settings)


def loader(**settings):
    return DataLoader(task(), **{"batch_size": 8, **settings})


def test_a_ready_batch_that_does_not_divide():
    """The message has the factors, their product and the rows."""
    trainer = trainer_for(device_iterations=3)
    x, y = task().tensors
    with pytest.raises(BatchError, match=r"(?s)64.*3"):
        trainer.run([(x, y)])


def test_a_data_set_smaller_than_one_global_batch():
    """The arithmetic is explained before anything runs."""
    with pytest.raises(LoaderError, match=r"(?s)64.*256"):
        trainer_for(device_iterations=32).run(loader())


def test_no_loss():
    """A model without a loss function must return a loss."""
    with pytest.raises(LossError, match="loss"):
        trainer_for(loss_fn=None).run(loader())


def test_a_loss_that_is_no_scalar():
    """Losses that eager PyTorch refuses in backward() are refused while compiling."""
    with pytest.raises(LossError, match=r"(?s)scalar|shape"):
        trainer_for(loss_fn=nn.CrossEntropyLoss(reduction="none")).run(loader())


def test_a_model_without_a_tensor_in_its_output():
    """Nothing could come back from the device."""

    class Silent(nn.Linear):
        def forward(self, x):
            return {"answer": 42}

    with pytest.raises(OutputError, match="no tensor"):
        create_ipu_evaluator(Silent(6, 3)).run(loader())


def test_a_loss_that_becomes_nan():
    """Ignite's TerminateOnNan sees the loss and stops."""
    trainer = trainer_for(loss_fn=lambda y_pred, y: CROSS_ENTROPY(y_pred, y) / 0.0 * 0.0)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    trainer.run(loader(), max_epochs=5)
    assert trainer.state.iteration == 1


def test_an_optimizer_over_other_parameters():
    """Foreign and missing parameters are named."""
    model = network()
    with pytest.raises(OptimizerError, match="not the model's"):
        trainer_for(model, torch.optim.SGD(network().parameters(), lr=0.1))
    with pytest.raises(OptimizerError, match=r"2\.weight"):
        trainer_for(model, torch.optim.SGD(model[0].parameters(), lr=0.1))


def test_ipus_that_are_no_power_of_two():
    """Machines hand out powers of two."""
    with pytest.raises(OptionsError, match=r"3.*power of two"):
        trainer_for(replication_factor=3)


def test_accumulation_on_inference_options():
    """There are no gradients to accumulate; the way out is more device iterations."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    with pytest.raises(OptionsError, match=r"gradientAccumulation 4.*deviceIterations\(4\)"):
        create_ipu_evaluator(network(), options=options).run(loader())


def test_a_constant_attribute_that_changes():
    """The message names the attribute and how to make it variable; going on with the old value works."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer, config={"constant": ["lr"]})

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def change():
        optimizer.param_groups[0]["lr"] = 0.5

    with pytest.raises(ConstantAttributeError, match=r"lr.*variable") as caught:
        trainer.run(loader())
    assert caught.value.attribute == "lr"


class _Dying(Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 20 and self.how == "raise":
            raise ValueError("bad sample 20")
        if index == 20 and self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(6), torch.tensor(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's iterator over a dead worker
@pytest.mark.parametrize(("how", "error"), [("raise", ValueError), ("die", RuntimeError)])
def test_a_loader_worker_that_fails(how, error):
    """A worker that raises or dies ends the run with an error about it."""
    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    data = DataLoader(_Dying(how), batch_size=8, num_workers=1)
    with pytest.raises(error, match="bad sample 20" if how == "raise" else "(?i)worker"):
        trainer.run(data)
    gc.collect()
    assert not trainer.ipu.training.ready  # torch's signal handler may strike at any moment, a compilation included


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's memory of a lost batch
def test_a_loader_worker_that_is_about_to_die(monkeypatch):
    """Its batches lie in memory that it hands over; PyTorch says of a lost connection only that it is lost."""

    def lost(*args, **kwargs):
        raise ConnectionResetError(104, "Connection reset by peer")

    model, optimizer = pair()
    trainer = trainer_for(model, optimizer)
    monkeypatch.setattr("multiprocessing.connection.Client", lost)
    with pytest.raises(LoaderError, match=r"A worker process of the loader died: .*reset by peer"):
        trainer.run(DataLoader(_Dying("never"), batch_size=8, num_workers=1))
    gc.collect()


class _Empty(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.filterwarnings("ignore:Data iterator can not provide data")
@pytest.mark.parametrize("data", [[], DataLoader(_Empty(), batch_size=2), TensorDataset(torch.zeros(0, 6))])
def test_a_loader_that_yields_nothing(data):
    """Nothing to run on is an error, not an epoch of no iterations."""
    if isinstance(data, TensorDataset):
        data = DataLoader(data, batch_size=2)
    with pytest.raises(LoaderError):
        trainer_for().run(data)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"device": "cuda"}, "device='cuda'"),
        ({"amp_mode": "apex"}, "amp_mode='apex'"),
        ({"amp_mode": "amp", "scaler": "dynamic"}, "loss_scaling"),
        ({"scaler": True}, 'Pass amp_mode="amp"'),
    ],
)
def test_arguments_that_mean_nothing_on_an_ipu(argument, message):
    """They are refused by name with the way out."""
    with pytest.raises(UnsupportedArgumentError, match=message):
        trainer_for(**argument)


def test_an_unknown_loader_mode_is_refused_when_the_engine_is_made():
    """With the modes there are, by trainer and evaluator; the model may then get a trainer."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedArgumentError, match=r"'async'.*Did you mean 'Async'"):
        trainer_for(model, optimizer, config={"loader_mode": "async"})
    with pytest.raises(UnsupportedArgumentError, match="loader_mode='async'"):
        create_ipu_evaluator(model, config={"loader_mode": "async"})
    trainer_for(model, optimizer, config={"loader_mode": poptorch.DataLoaderMode.Sync}).run(loader())
