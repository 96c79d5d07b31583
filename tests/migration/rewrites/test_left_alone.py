"""Code that is not fully understood stays as it is, byte for byte, but for one import if it trains under `run`."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

PIECES = {
    "no torch": """\
x = 1
y = [ 1,2 ]   # kept as it is
""",
    "a trainer of another precision": """\
from ignite.engine import create_supervised_trainer
trainer = create_supervised_trainer(model, optimizer, loss, amp_mode="apex")
""",
    "a model that processes share": """\
import torch
from ignite.engine import create_supervised_trainer
model.share_memory()
optimizer = torch.optim.Adam(model.parameters())
trainer = create_supervised_trainer(model, optimizer, loss, device="cuda")
""",
    "a name of the user's own": """\
import torch
def host_device(): ...
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
""",
    "a move with arguments of its own": "model.cuda(memory_format=format)\n",
}

# Programs that train: one line captures them when they run.
CAPTURED = {
    "an optimizer that an IPU lacks": """\
import torch
from ignite.engine import create_supervised_trainer
optimizer = torch.optim.LBFGS(model.parameters())
trainer = create_supervised_trainer(model, optimizer, loss, device="cuda")
""",
    "arguments that are not written out": """\
from ignite.engine import create_supervised_trainer
trainer = create_supervised_trainer(*parts, **options)
""",
    "an optimizer whose models are not in sight": """\
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.SGD(parameters, lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = compute_loss(x.to(device), y)
    loss.backward()
    optimizer.step()
""",
    "statements that share a line": """\
import torch
def train_batch(model, optimizer, x):
    model.train(); loss = model(x.cuda()).mean()
    loss.backward()
    optimizer.step()
""",
    "a library's trainer": """\
import torch
from transformers import Seq2SeqTrainer as Trainer
model = make().cuda()
Trainer(model=model, args=args, train_dataset=data).train()
""",
    "a trainer that extends a library's": """\
import transformers
class Weighted(transformers.Trainer):
    def compute_loss(self, model, inputs): ...
Weighted(model=model, args=args, train_dataset=data).train()
""",
}


@pytest.mark.parametrize("text", PIECES.values(), ids=PIECES)
def test_text_is_unchanged(text):
    migration = migrate_source(Source("code.py", text))
    assert migration.text == text
    assert not migration.changed


@pytest.mark.parametrize("text", [text for name, text in PIECES.items() if name != "no torch"])
def test_the_reason_is_given_at_a_line(text):
    migration = migrate_source(Source("code.py", text))
    assert migration.blocked
    assert migration.remarks
    assert all(1 <= remark.line <= text.count("\n") for remark in migration.remarks)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_everything_but_the_change_is_kept(newline):
    """Odd spacing, comments, tabs and line ends survive a rewrite elsewhere in the file."""
    before = (
        "import torch\n# above\nx   =  {  'a':1 }  # beside\n\n\n\n"
        "if x :\n\ty=( 1 ,\n\t  2)\nmodel . cuda( )  # moved\n"
    ).replace("\n", newline)
    after = migrate_source(Source("code.py", before)).text
    expected = before.replace("model . cuda( )", "model . to( host_device())")
    assert after.replace(f"from ignite_ipu import host_device{newline}", "") == expected


@pytest.mark.parametrize("text", CAPTURED.values(), ids=CAPTURED)
def test_programs_that_train_get_one_line(text):
    migration = migrate_source(Source("code.py", text))
    assert migration.applied == ["auto"] and not migration.blocked
    line = "import ignite_ipu.auto  # captures the models and optimizers of this program for IPUs\n"
    assert migration.text == line + text
    assert migration.remarks and all(1 <= remark.line <= text.count("\n") for remark in migration.remarks)
    assert migrate_source(Source("code.py", migration.text)).text == migration.text


@pytest.mark.parametrize(
    "demand",
    [
        "assert torch.cuda.is_available(), 'a GPU'",
        "if not torch.cuda.is_available():\n    raise RuntimeError('a GPU')",
        "if torch.cuda.is_available():\n    print('GPU')\nelse:\n    sys.exit(1)",
    ],
)
def test_a_demand_for_a_gpu_is_left_to_the_import_which_answers_it(demand):
    text = f"import sys\nimport torch\n{demand}\nmodel = torch.nn.Linear(2, 1).cuda()\n"
    text += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    migration = migrate_source(Source("code.py", text))
    assert (
        migration.text
        == f"import ignite_ipu.auto  # captures the models and optimizers of this program for IPUs\n{text}"
    )
    (remark,) = migration.remarks
    assert (remark.line, remark.message) == (3, "it ends on a machine without a GPU. ignite_ipu.auto captures it")
