"""Programs of several files: verdicts of `check`, and the way in which `migrate` moves them."""

from __future__ import annotations

import re
from typing import Dict

import pytest

from ignite_ipu.migration.checker import check_paths
from ignite_ipu.migration.code_base import decide_together
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.discovery import discover
from ignite_ipu.migration.source.file import read_source
from ignite_ipu.migration.verdict import Verdict

NETS = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, x):
        return self.layer(x)
class Asking(Net):
    def forward(self, x):
        return torch.autograd.grad(self.layer(x).sum(), x, create_graph=True)[0]
"""
TRAIN = """\
import torch
from nets import {name}
model = {made}.cuda()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
for x in batches:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""
CHOOSING = """\
def make(kind):
    if kind == "asking":
        return Asking()
    return Net()
"""
AUTO = "import ignite_ipu.auto  # captures the models and optimizers of this program for IPUs\n"


def train(made: str = "Net()", optimizer: str = "SGD") -> str:
    return TRAIN.format(name=re.split(r"\W", made)[0], made=made, optimizer=optimizer)


@pytest.fixture
def code_base(tmp_path):
    """Write files, and return the path of a file by its name."""

    def write(**files: str) -> Dict[str, str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        return {name: str(tmp_path / f"{name}.py") for name in files}

    return write


def migrated(tmp_path) -> Dict[str, str]:
    files = discover([str(tmp_path)]).files
    migrations, _ = decide_together([migrate_source(read_source(path)) for path, _ in files])
    return {each.source.path: each.text for each in migrations if each.changed}


@pytest.mark.parametrize(
    ("nets", "script", "verdict"),
    [
        (NETS, train("Net()"), Verdict.TRAINS),
        (NETS, train("Net()", "Adagrad"), Verdict.TRAINS_ON_HOST),
        (NETS, train("Asking()"), Verdict.REFUSED),
        (f"{NETS}def make():\n    return Asking()\n", train("make()"), Verdict.REFUSED),
        (f"{NETS}KINDS = {{'net': Net, 'asking': Asking}}\n", train("KINDS[name]()"), Verdict.TRAINS),
        (f"{NETS}{CHOOSING}", train("make(kind)"), Verdict.TRAINS),
        (f"{NETS}if __name__ == '__main__':\n    Asking()\n", train("Net()"), Verdict.TRAINS),
    ],
    ids=["plain", "host", "used", "by a function", "registry", "choice", "demo"],
)
def test_code_of_imported_files_counts_where_the_program_uses_it(nets, script, verdict, code_base, tmp_path):
    paths = code_base(nets=nets, train=script)
    assert check_paths([str(tmp_path)]).verdicts[paths["train"]] is verdict


COUNTER = "calls = 0\ndef tick():\n    global calls\n    calls += 1\n    return calls\n"


@pytest.mark.parametrize(
    ("line", "script", "verdict"),
    [
        ("return self.layer(x) / tick()", "", Verdict.TRAINS_BY_FUNCTION),
        ("return self.layer(x) / counter.tick()", "", Verdict.TRAINS_BY_FUNCTION),
        ("if self.slow: x = x / tick()\n        return self.layer(x)", "", Verdict.TRAINS),
        ("return self.layer(x)", "from counter import tick\ntick()\n", Verdict.TRAINS),
    ],
)
def test_a_counter_in_another_module_counts_where_traced_code_calls_it(line, script, verdict, code_base, tmp_path):
    """Its line is reported."""
    nets = "import counter\nfrom counter import tick\n" + NETS.replace("return self.layer(x)", line)
    paths = code_base(counter=COUNTER, nets=nets, train=script + train())
    report = check_paths([str(tmp_path)])
    assert report.verdicts[paths["train"]] is verdict
    found = [(each.path, each.line) for each in report.findings if each.rule == "mutated-python-state"]
    assert found == ([(paths["counter"], 4)] if verdict is Verdict.TRAINS_BY_FUNCTION else [])
    migrations = [migrate_source(read_source(path)) for path in paths.values()]
    decided, _ = decide_together(migrations)
    outcomes = {each.source.path: each.outcome for each in decided}
    assert outcomes[paths["train"]] == "migrated"


READS = """\
import torch
def scale_of(x):
    return x.abs().max().item()
def clipped(x):
    return x * 0 if x.mean() > 3 else x
def kept(x):
    return x[x.sigmoid() > 0.5]
def size_of(x):
    return x.shape[0]
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return self.layer(x) / scale_of(x)", 3),
        ("return clipped(self.layer(x))", 5),
        ("return kept(self.layer(x))", 7),
        ("return self.layer(x) / size_of(x)", None),
        ("return self.layer(x) / scale_of(torch.ones(3))", None),
        ("if self.slow: x = x / scale_of(x)\n        return self.layer(x)", None),
    ],
)
def test_a_function_of_another_module_that_reads_values_counts_where_traced_code_gives_it_some(
    line, found, code_base, tmp_path
):
    """Of constants a trace has values."""
    nets = "import torch\nfrom reads import clipped, kept, scale_of, size_of\n" + NETS.replace(
        "return self.layer(x)", line
    )
    paths = code_base(reads=READS, nets=nets, train=train())
    report = check_paths([str(tmp_path)])
    assert report.verdicts[paths["train"]] is (Verdict.TRAINS if found is None else Verdict.TRAINS_BY_FUNCTION)
    lines = [each.line for each in report.findings if each.path == paths["reads"] and each.run is Outcome.BY_FUNCTION]
    assert lines == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("optimizer", "verdict"),
    [("SGD({}, 0.1, momentum=0.9)", Verdict.TRAINS_ON_HOST), ("SGD({}, 0.1)", Verdict.TRAINS)],
)
def test_gradients_that_another_file_clips_for_momentum_are_clipped_on_the_host(
    optimizer, verdict, code_base, tmp_path
):
    step = (
        "from torch.nn.utils import clip_grad_norm_\ndef step(model, optimizer, x):\n    model(x).mean().backward()\n"
        "    clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    script = (
        "import torch\nfrom nets import Net\nfrom steps import step\nmodel = Net()\n"
        f"optimizer = torch.optim.{optimizer.format('model.parameters()')}\nfor x in batches:\n"
        "    step(model, optimizer, x)\n"
    )
    paths = code_base(nets=NETS, steps=step, train=script)
    assert check_paths([str(tmp_path)]).verdicts[paths["train"]] is verdict


def test_code_in_strings_is_a_part_of_the_program(code_base, tmp_path):
    """It is found at the line that executes it, and captured by the import."""
    head, _, loop = train().partition("for x in batches")
    script = f'{head}LOOP = """for x in batches{loop}"""\nexec(compile(LOOP, \'loop\', \'exec\'))\n'
    paths = code_base(nets=NETS, train=script, idle="exec('print(1)')\n")
    report = check_paths([str(tmp_path)])
    assert report.verdicts == {paths["train"]: Verdict.TRAINS}
    assert {each.line for each in report.findings if each.rule == "hand-written-step"} == {script.count("\n")}
    assert migrated(tmp_path) == {paths["train"]: AUTO + script}


def test_a_script_whose_modules_train_is_judged_by_them(code_base, tmp_path):
    paths = code_base(
        nets=NETS, engine=f"def fit():\n{train()}".replace("\n", "\n    "), main="import engine\nengine.fit()\n"
    )
    verdicts = check_paths([str(tmp_path)]).verdicts
    assert verdicts == {paths["engine"]: Verdict.TRAINS, paths["main"]: Verdict.TRAINS}


def test_a_class_that_cannot_be_mapped_stops_its_own_program(code_base, tmp_path):
    """The others import `ignite_ipu.auto`, and the files that both use stay as they are."""
    nets = NETS.replace("return self.layer(x)", "return self.layer(x.cuda())")
    paths = code_base(nets=nets, good=train("Net()"), bad=train("Asking()"))
    assert migrated(tmp_path) == {paths["good"]: AUTO + train("Net()")}


def test_only_the_script_imports_the_line_for_a_step_in_another_module(code_base, tmp_path):
    step = "def step(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"
    script = train().replace("import torch\n", "import torch\nfrom steps import step\n")
    script = script.replace("model(x).mean().backward()\n    optimizer.step()", "step(model(x).mean(), optimizer)")
    paths = code_base(nets=NETS, steps=step, train=script)
    changed = migrated(tmp_path)
    assert changed == {paths["train"]: AUTO + script}
    (tmp_path / "train.py").write_text(changed[paths["train"]])
    findings = check_paths([str(tmp_path)]).findings
    assert not [each for each in findings if each.run in (Outcome.HANDLED, Outcome.ON_HOST)]
    assert migrated(tmp_path) == {}
