"""Attributes of modules are restored after a trace: hooks and forward set tensors that have no values afterwards."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from ignite_ipu import SessionError, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from tests.supervised import task


class Keeps(nn.Module):
    """Keeps its results, in the ways in which models do, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.table, self.features, self.seen, self.built = None, {}, [], False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.built:
            self.table, self.built = torch.arange(3.0, device=x.device), True
        self.late = out = self.layer(x) + self.table
        self.features["out"] = out
        self.seen.append(out)
        return out


def pruned() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return model


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))


def trainer_of(make: Any, model: nn.Module) -> Engine:
    return make(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())


def loader() -> DataLoader[Any]:
    return DataLoader(task(), batch_size=16)


@pytest.mark.filterwarnings("ignore:.*weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("make", [pruned, normalised, Keeps])
def test_models_train_are_evaluated_and_run_on_the_host_afterwards(make, caplog):
    """Two programs are traced, one after the other, and the weights are those of a native training."""
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    native = make()
    trainer = trainer_of(create_ipu_trainer, model)
    before = {name: value for each in model.modules() for name, value in vars(each).items() if name[0] != "_"}
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        trainer.run(loader(), max_epochs=2)
    after = {name: value for each in model.modules() for name, value in vars(each).items() if name[0] != "_"}
    assert after.keys() == before.keys()
    trainer_of(create_supervised_trainer, native).run(loader(), max_epochs=2)
    # Values that depend on inputs are not brought back; weights that hooks compute are those of the last forward.
    assert ("are restored, and are not the newest" in caplog.text) == (make is Keeps)
    if make is Keeps:
        assert all(after[name] is value for name, value in before.items())
    else:
        torch.testing.assert_close(model[0].weight, native[0].weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dict(model.state_dict()), dict(native.state_dict()), rtol=1e-5, atol=1e-6)
    x = torch.randn(4, 6)
    found = create_ipu_evaluator(model).run([(x, torch.zeros(4, dtype=torch.long))]).output[0]
    torch.testing.assert_close(found, native(x).detach(), rtol=1e-5, atol=1e-6)
    trainer.ipu.close()
    torch.testing.assert_close(model(x), native(x), rtol=1e-5, atol=1e-6)


def test_nothing_is_said_of_lists_of_weights(caplog):
    """A recurrent layer keeps one: it shows the weights themselves, which are the newest whenever they are read."""

    class Recurrent(nn.LSTM):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x[:, None])[0][:, 0]

    model, looped = Recurrent(6, 3), Recurrent(6, 3)
    optimizer = ipu_prepare(torch.optim.SGD(looped.parameters(), lr=0.1), looped, config={"update": "auto"})
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        trainer_of(create_ipu_trainer, model).run(loader())
        for _ in range(2):
            looped(torch.ones(2, 6)).sum().backward()
            looped.weight_hh_l0.grad.mul_(0.5)  # from here on the host makes the updates, with twins of the weights
            optimizer.step()
    assert "are restored" not in caplog.text
    assert all(map(torch.equal, model._flat_weights, model.parameters()))
    assert all(map(torch.equal, looped._flat_weights, looped.parameters()))


def test_collections_are_emptied_again():
    model = Keeps()
    trainer = trainer_of(create_ipu_trainer, model)
    trainer.run(loader(), max_epochs=1)
    assert (model.table, model.features, model.seen, model.built) == (None, {}, [], False)
    assert not hasattr(model, "late")
    trainer.ipu.close()


def test_pruning_again_is_refused_by_name_and_goes_on_with_new_engines():
    """The mask is another tensor, which the compiled program does not have."""
    model = pruned()
    trainer = trainer_of(create_ipu_trainer, model)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: prune.l1_unstructured(model[0], "weight", amount=0.3))
    with pytest.raises(SessionError, match=r"0\.weight_mask of the model was replaced"):
        trainer.run(loader(), max_epochs=2)
    trainer.ipu.close()
    assert (model[0].weight_mask == 0).sum() > 0.3 * 48 + 1
    native = pruned()
    native.load_state_dict(copy.deepcopy(model.state_dict()))
    for make, each in ((create_ipu_trainer, model), (create_supervised_trainer, native)):
        trainer_of(make, each).run(loader(), max_epochs=1)
    torch.testing.assert_close(dict(model.state_dict()), dict(native.state_dict()), rtol=1e-5, atol=1e-6)
