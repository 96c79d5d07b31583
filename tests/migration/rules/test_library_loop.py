"""Loops of installed packages are reported; a program's own modules, schedules and wrappers are not."""

from __future__ import annotations

import textwrap

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source

RULE = "library-loop"
BEGINNING = """
import torch
from torch import nn
class Net(nn.Module):
    def forward(self, x):
        return x
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAINERS = {
    "an engine": "from monai.engines import SupervisedTrainer\nSupervisedTrainer('cuda', data, model, optimizer)",
    "a function": "import pytorch_pfn_extras as ppe\nppe.training.trainer(models=model, optimizers=optimizer)",
    "fit": "import keras_like\nestimator = keras_like.Sequential(model)\nestimator.fit(model, data)",
    "a learner": "from fastai.vision.all import Learner\nLearner(data, model).fit_one_cycle(1)",
    "its own model": "from transformers import AutoModel, Trainer\nTrainer(model=AutoModel.from_pretrained('a'))",
    "a class": "from transformers import Trainer\nclass Own(Trainer):\n    pass",
    "training steps": "from lightning import LightningModule\nclass Own(LightningModule):\n"
    "    def training_step(self, batch, index):\n        return batch",
    "an optimizer made in place": "import pkg\npkg.Loop(torch.optim.Adam(model.parameters()), data)()",
}
OTHERS = {
    "a schedule": "import transformers\ntransformers.get_linear_schedule_with_warmup(optimizer, 1, 2)",
    "an optimizer that the file steps": "import pkg\npkg.watch(optimizer)\noptimizer.step()",
    "an optimizer for a scaler": "import pkg\npkg.watch(optimizer)\nscaler.step(optimizer)",
    "a wrapper that the file steps": "import pkg\nwrapped = pkg.Lookahead(optimizer)\nwrapped.step()",
    "a summary": "import torchinfo\ntorchinfo.summary(model, (2, 3))",
    "Ignite's": "import ignite.engine\nignite.engine.create_supervised_trainer(model, optimizer, nn.MSELoss())",
    "Python's": "import copy\nsaved = copy.deepcopy(optimizer)",
    "a tokenizer's": "from tokenizers.trainers import BpeTrainer\nBpeTrainer(vocab_size=8)",
}


@pytest.mark.parametrize("code", TRAINERS.values(), ids=TRAINERS)
def test_loops_of_packages_are_reported_and_captured_by_one_import(code):
    source = Source("train.py", BEGINNING + code)
    (found,) = {finding.rule for finding in check_source(source, [all_rules()[RULE]])[0]}
    assert found == RULE
    migration = migrate_source(source)
    assert "import ignite_ipu.auto" in migration.text and migration.outcome == "migrated"
    assert any("which no rewrite reaches. ignite_ipu.auto captures it" in each.message for each in migration.remarks)
    assert check_source(Source("train.py", migration.text), [all_rules()[RULE]])[0] == []


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS)
def test_calls_that_train_nothing_are_not(code, findings):
    assert findings(RULE, BEGINNING + code) == []


def test_modules_of_the_project_are_its_own(tmp_path):
    """Beside the script, beside its package, and in the project's folders above it."""
    code = textwrap.dedent(BEGINNING) + "import engine\nengine.train(model, optimizer)\n"
    (tmp_path / "pyproject.toml").touch()
    script = tmp_path / "tools" / "train.py"
    script.parent.mkdir()
    assert [each.line for each in check_source(Source(str(script), code), [all_rules()[RULE]])[0]] == [10]
    for place in ("tools/engine.py", "src/engine/__init__.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / place).touch()
        path = script.with_name(f"{len(place)}.py")
        assert check_source(Source(str(path), code), [all_rules()[RULE]])[0] == []
        (tmp_path / place).unlink()
