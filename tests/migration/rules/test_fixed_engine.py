"""Changes that a trainer does not take over are reported where they come after it; others, and other objects', not."""

from __future__ import annotations

import contextlib
from unittest.mock import Mock

import pytest
import torch

from ignite_ipu.errors import OptimizerError, SessionError
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

RULE = "fixed-engine"
PROGRAM = """
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.nn.utils import prune


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(2))
        self.rate = 1.0

    def forward(self, x):
        return self.head(self.act(self.body(x))) * self.scale * self.rate


model = Net()
optimizer = torch.optim.SGD({parameters}, lr=0.1, momentum=0.9)
{before}
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
{registered}
def change(engine):
    {change}
{after}
"""
HANDLER = "@trainer.on(Events.EPOCH_COMPLETED(once=1))"
GROUP = 'optimizer.add_param_group({"params": model.body.parameters()})'


def program(change="pass", registered=HANDLER, before="", after="trainer.run(loader)", parameters="model.parameters()"):
    return PROGRAM.format(change=change, registered=registered, before=before, after=after, parameters=parameters)


REFUSED = [
    GROUP,
    'optimizer.param_groups.append({**optimizer.param_groups[0], "params": []})',
    "del optimizer.param_groups[0]",
    'for group in optimizer.param_groups: group["params"] = list(model.body.parameters())',
    'optimizer.param_groups[0]["params"].pop()',
    'optimizer.param_groups[0]["nesterov"] = True',
    'for group in optimizer.param_groups: group["weight_decay"] = 0.1',
    "optimizer.step()",
    "model.head = nn.Linear(4, 2)",
    "model.head = nn.Identity()",
    "model.head.weight = nn.Parameter(torch.ones(2, 4))",
    "model.scale = torch.zeros(2)",
    'setattr(model, "head", nn.Linear(4, 2))',
    'model.add_module("extra", nn.Linear(2, 2))',
    'model.register_buffer("more", torch.ones(2))',
    'prune.l1_unstructured(model.head, "weight", amount=0.5)',
]
TAKEN = [
    'optimizer.param_groups[0]["lr"] = 0.01',
    'optimizer.param_groups[0]["momentum"] = 0.5',
    "optimizer.zero_grad()",
    "other.add_param_group({})",
    "scheduler.step()",
    "model.act = nn.GELU()",
    "model.rate = 0.5",
    "model.head.weight.data = torch.ones(2, 4)",
    "model.body.requires_grad_(False)",
    "average.head = nn.Linear(4, 2)",
    'settings["params"] = 3',
    "model.load_state_dict(model.state_dict())",
]


@pytest.mark.parametrize("change", [*REFUSED, *TAKEN])
def test_changes_in_handlers(lines, change):
    """They are reported if create_ipu_trainer refuses them."""
    code = program(change, parameters="[*model.head.parameters()]", before="model.body.requires_grad_(False)")
    assert len(lines(RULE, code)) == (change in REFUSED)
    names = {
        "loader": [(torch.ones(2, 4), torch.ones(2, 2))],
        "settings": {},
        "other": Mock(),
        "scheduler": Mock(),
        "average": Mock(),
    }
    code = code.replace("create_supervised_trainer(", "create_ipu_trainer(").replace("run(loader)", "run(loader, 2)")
    with pytest.raises((OptimizerError, SessionError)) if change in REFUSED else contextlib.nullcontext():
        exec(f"from ignite_ipu import create_ipu_trainer\n{code}", names)


def test_weights_of_a_loss(lines):
    """Of classes or samples: they are buffers of the loss, which the program has."""
    made = "criterion = nn.MSELoss()"
    code = program("criterion.weight = torch.ones(2)", before=made).replace(", nn.MSELoss())", ", criterion)")
    assert len(lines(RULE, code)) == 1
    assert lines(RULE, code.replace("criterion.weight", "criterion.label_smoothing")) == []


def test_handlers_are_found_by_their_registration_and_their_calls(lines):
    registered = 'trainer.add_event_handler(Events.STARTED, functools.partial(change, "engine"))'
    assert len(lines(RULE, program(GROUP, "", after=registered))) == 1
    indirect = "@trainer.on(Events.STARTED)\ndef start(engine):\n    change(engine)"
    assert len(lines(RULE, program(GROUP, "", after=indirect))) == 1
    assert len(lines(RULE, program("pass", after=f"trainer.add_event_handler(Events.STARTED, lambda: {GROUP})"))) == 1
    assert lines(RULE, program(GROUP, "")) == []


def test_code_in_front_of_the_trainer_and_behind_its_last_run_is_left_alone(lines):
    assert lines(RULE, program(before=f"{GROUP}\nmodel.head = nn.Linear(4, 2)", registered="")) == []
    assert lines(RULE, program(after="trainer.run(loader)\nmodel.head = nn.Identity()\nprint(model(x))")) == []
    assert lines(RULE, program(after=f"{GROUP}\ntrainer.run(loader)")) != []
    assert lines(RULE, program(after=f"trainer.run(loader)\n{GROUP}\ntrainer.run(loader)")) != []
    assert lines(RULE, program(after=f"for _ in range(2):\n    trainer.run(loader)\n    {GROUP}")) != []
    # Hyper-parameters may be set until the first run.
    late = 'optimizer.param_groups[0]["weight_decay"] = 0.1'
    assert lines(RULE, program(after=f"{late}\ntrainer.run(loader)")) == []
    assert lines(RULE, program(after=f"trainer.run(loader)\n{late}\ntrainer.run(loader)")) != []


def test_methods_are_handlers_too(lines):
    code = """
        from ignite.engine import Events, create_supervised_trainer
        class Experiment:
            def __init__(self):
                self.optimizer.add_param_group(first)
                self.trainer = create_supervised_trainer(self.model, self.optimizer, loss_fn)
                self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.on_epoch)
            def on_epoch(self):
                self.unfreeze()
            def unfreeze(self):
                self.optimizer.add_param_group(second)
            def fit(self):
                self.trainer.run(loader)
    """
    assert lines(RULE, code) == [10]


def test_optimizers_of_a_part(lines):
    """As long as nothing is frozen."""
    assert len(lines(RULE, program(parameters="model.head.parameters()"))) == 1
    frozen = "model.body.requires_grad_(False)"
    assert lines(RULE, program(parameters="model.head.parameters()", before=frozen)) == []


def test_a_second_trainer_of_a_model(lines):
    second = "second = create_supervised_trainer(model, optimizer, nn.L1Loss())"
    assert len(lines(RULE, program(after=second))) == 1
    assert lines(RULE, program(after=f"trainer.ipu.close()\n{second}")) == []
    assert lines(RULE, program(after=f"session = trainer.ipu\nsession.close()\n{second}")) == []
    assert len(lines(RULE, program(after=f"writer.close()\n{second}"))) == 1
    assert lines(RULE, program(after=f"model = Net()\n{second}")) == []
    phases = """
        from ignite.engine import create_supervised_trainer
        def phase(model, lr):
            trainer = create_supervised_trainer(model, make(model, lr), loss_fn)
            trainer.run(loader)
        net = Net()
        phase(net, 0.1)
        phase(net, 0.01)
    """
    assert lines(RULE, phases) == [3]
    fold = "for fold in folds:\n    net = Net()\n    create_supervised_trainer(net, make(net), loss_fn)"
    assert lines(RULE, f"from ignite.engine import create_supervised_trainer\n{fold}") == []


def test_programs_are_migrated_by_the_import(findings):
    """`run` trains them; a program that calls create_ipu_trainer is refused."""
    code = program(GROUP)
    migration = migrate_source(Source("code.py", code))
    assert migration.by_import and "another parameter group" in migration.remarks[0].message
    assert findings(RULE, code)[0].run is Outcome.HANDLED
    ours = code.replace("ignite.engine import Events, create_supervised_trainer", "ignite.engine import Events")
    ours = ours.replace("create_supervised_trainer", "create_ipu_trainer")
    assert findings(RULE, f"from ignite_ipu import create_ipu_trainer\n{ours}")[0].run is Outcome.REFUSED


TUNING = """
def tune({parameters}):
    optimizer.zero_grad()
    {called}(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("parameters", "called", "after", "reported"),
    [
        ("engine, batch", "model", "Engine(tune).run(loader)", 1),
        ("batch, net", "net", "tune(batch, model)", 1),
        ("batch, net", "net", "tune(batch, critic)", 0),
        ("batch, model", "model", "tune(batch, critic)", 0),
        ("batch", "critic", "tune(batch)", 0),
    ],
)
def test_a_loop_over_the_model_of_a_trainer(lines, parameters, called, after, reported):
    code = program(after=TUNING.format(parameters=parameters, called=called) + after)
    assert len(lines(RULE, code)) == reported
