"""Results that an engine's program would keep for other code are reported, and are not there after its run."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.errors import SessionError
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

RULE = "kept-result"
PROGRAM = """
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn

kept = {{}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 2), torch.zeros(1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        out = self.layer(x)
        {forward}
        return out


def loss_fn(prediction, target):
    loss = (prediction - target).pow(2).mean()
    {loss}
    return loss


model = Net()
{hook}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(model, optimizer, loss_fn)


@trainer.on(Events.COMPLETED)
def look(engine):
    found.append({found})


trainer.run([(torch.ones(2, 4), torch.ones(2, 2))], max_epochs=2)
"""


def program(forward="pass", loss="pass", hook="", found="kept.get('last')"):
    return PROGRAM.format(forward=forward, loss=loss, hook=hook, found=found)


KEPT = {
    "in a dictionary, by forward": program(forward='kept["last"] = out.detach()'),
    "by the loss": program(loss='kept["last"] = loss.detach()'),
    "by a hook": program(hook="model.layer.register_forward_hook(lambda *given: kept.update(last=given[2].detach()))"),
    "in an attribute": program(forward="self.seen = out.detach()", found="model.seen"),
    "in a new attribute": program(forward="self.late = out.detach()", found="model.late"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_results(lines, name):
    """create_ipu_trainer refuses them, or leaves the earlier value, so migrate writes the import."""
    assert len(lines(RULE, KEPT[name])) == 1
    native, ours = {"found": []}, {"found": []}
    exec(KEPT[name], native)
    code = KEPT[name].replace("create_supervised_trainer(", "create_ipu_trainer(")
    try:
        exec(f"from ignite_ipu import create_ipu_trainer\n{code}", ours)
    except (SessionError, AttributeError):
        pass
    else:
        assert not torch.equal(native["found"][0], ours["found"][0])
    assert migrate_source(Source("code.py", KEPT[name])).by_import


EVALUATION = """
import torch
from ignite.engine import create_supervised_evaluator
from torch import nn

kept = {}
model = nn.Linear(4, 2)
model.register_forward_hook(lambda *given: kept.update(last=given[2].detach()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).mean().backward()
optimizer.step()
create_supervised_evaluator(model).run([(torch.ones(2, 4), torch.ones(2, 2))])
"""


def test_an_evaluator(lines):
    assert lines(RULE, EVALUATION) == [7]
    with pytest.raises(SessionError):
        exec(EVALUATION.replace("ignite.engine", "ignite_ipu").replace("create_supervised", "create_ipu"), {})
    assert migrate_source(Source("code.py", EVALUATION)).by_import


@pytest.mark.parametrize(
    "code",
    [
        program(forward="rows = []\n        rows.append(out)"),
        program(forward='if "table" not in kept:\n            kept["table"] = torch.ones(2)'),
        program(forward="self.seen = out.detach()"),  # that nothing reads
        program(forward="self.scale = self.scale * 0.5", found="model.scale"),
        program(forward="self.seen = out.detach()", found="(model(torch.ones(2, 4)), model.seen)"),
        program(found="kept.update(last=1)"),
        program(forward='kept["last"] = out.detach()').replace("create_supervised_trainer", "make"),
    ],
)
def test_other_values(lines, code):
    """Variables of the call, tables that are made once, buffers, and code outside of a trainer's program."""
    assert lines(RULE, code) == []


def test_a_loop_brings_results_to_the_host(findings):
    """So does `run`; create_ipu_trainer is left as it is."""
    code = KEPT["by the loss"]
    assert [each.run for each in findings(RULE, code)] == [Outcome.HANDLED]
    ours = code.replace(", create_supervised_trainer", "").replace("create_supervised_trainer", "create_ipu_trainer")
    found = findings(RULE, f"from ignite_ipu import create_ipu_trainer\n{ours}")
    assert [each.run for each in found] == [Outcome.UNCHANGED]
