"""Settings decide tests if and only if the text of the file shows their values."""

from __future__ import annotations

import ast
import textwrap

import pytest

from ignite_ipu.migration.analysis.names import walk
from ignite_ipu.migration.analysis.settings import settings_of
from ignite_ipu.migration.checker import check_paths, judge_source
from ignite_ipu.migration.findings import Outcome, Severity
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Verdict

PARSER = """
parser = argparse.ArgumentParser()
parser.add_argument("--loss", type=str, default="hinge")
parser.add_argument("--hard-negatives", action="store_true")
parser.add_argument("--layers", "-l", type=int, default=2)
parser.add_argument("--mixed", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("data")
args = parser.parse_args({given})
"""
CONFIG = """
@dataclass
class Config:
    loss: str = "hinge"
    layers: int = field(default=2)
"""
# A program, a test behind it, and the result; None for one that the text does not decide.
CASES = {
    "a variable": ("loss = 'hinge'", "loss == 'hinge'", True),
    "a variable that is bound twice": ("loss = 'hinge'\nloss = 'mean'", "loss == 'hinge'", None),
    "another variable": ("loss = 'hinge'\nkind = loss", "kind in ('mean', 'l1')", False),
    "a variable with the result of a test": ("loss = 'hinge'\nhard = loss != 'mean'", "hard", True),
    "a choice by a variable": ("on = True\nloss = 'a' if on else 'b'", "loss == 'a'", True),
    "letters of another case": ("loss = 'Hinge'", "loss.lower() == 'hinge'", True),
    "a part of a name": ("loss = 'hinge_l1'", "'l1' in loss and loss.startswith('hinge')", True),
    "a name of unknown letters": ("loss = names[0]", "loss.startswith('hinge')", None),
    "a dictionary": ("config = {'loss': 'hinge'}", "config['loss'] == 'hinge'", True),
    "a dictionary within another": ("config = {'a': {'b': 1}}", "config['a']['b'] > 1", False),
    "a dictionary by keywords": ("config = dict(loss='hinge')", "config.get('loss') == 'hinge'", True),
    "a key that is missing": ("config = {'loss': 'hinge'}", "config.get('on', False)", False),
    "a dictionary with others": ("config = {**others, 'loss': 'hinge'}", "config.get('on', False)", None),
    "an element that is changed": ("config = {'loss': 'a'}\nconfig['loss'] = 'b'", "config['loss'] == 'a'", None),
    "another element that is changed": ("config = {'loss': 'a'}\nconfig['n'] = 1", "config['loss'] == 'a'", True),
    "a dictionary that is updated": (
        "config = {'loss': 'a'}\ndef change(it):\n    it.update(loss='b')\nchange(config)",
        "config['loss'] == 'a'",
        None,
    ),
    "a namespace": ("config = types.SimpleNamespace(loss='hinge')", "config.loss == 'hinge'", True),
    "a namespace of a dictionary": ("config = argparse.Namespace(**{'n': 1})", "config.n == 1", True),
    "a dictionary with attributes": ("config = EasyDict({'n': 1})", "config.n == 1", True),
    "an attribute that is assigned": ("config = argparse.Namespace(n=1)\nconfig.n = 2", "config.n == 1", None),
    "an attribute that is set by its name": (
        "config = argparse.Namespace(n=1)\nsetattr(config, x, 2)",
        "config.n",
        None,
    ),
    "a class": ("class Config:\n    loss = 'hinge'", "Config.loss == 'hinge'", True),
    "an object of a class": ("class C:\n    def __init__(self):\n        self.n = 2\nc = C()", "c.n == 2", True),
    "a field": (CONFIG + "config = Config()", "config.loss == 'hinge' and config.layers == 2", True),
    "a field that is given": (CONFIG + "config = Config('mean')", "config.loss == 'hinge'", False),
    "a field by the name in a variable": (CONFIG + "config, name = Config(), 'loss'", "getattr(config, name)", True),
    "fields that are hidden": (CONFIG + "config = Config(**given)", "config.loss == 'hinge'", None),
    "the result of a function": ("def make():\n    return {'n': 1}\nconfig = make()", "config['n'] == 1", True),
    "an unknown function": ("config = load('config.yaml')", "config['n'] == 1", None),
    "the default of an option": (PARSER.format(given=""), "args.loss == 'hinge'", True),
    "a flag that is not given": (PARSER.format(given=""), "args.hard_negatives", False),
    "a flag that is given": (PARSER.format(given="['--hard-negatives']"), "args.hard_negatives", True),
    "an option that is given": (PARSER.format(given="['-l', '3', 'x']"), "args.layers == 3", True),
    "options as a dictionary": (PARSER.format(given=""), "vars(args)['layers'] == 2", True),
    "an option that is required": (PARSER.format(given=""), "args.data == 'x'", None),
    "an option that is assigned": (PARSER.format(given="") + "args.loss = 'l1'", "args.loss == 'hinge'", None),
    "an unknown value or another": (PARSER.format(given=""), "(args.mode or 'b') == 'b'", None),
    "the first true value": ("given = None\nkind = given or 'hinge'", "kind == 'hinge'", True),
    "the last true value": ("kind = 'mean' and 'hinge'", "kind == 'hinge'", True),
    "a value of another type": ("n = 1", "n is True", False),
    "options as attributes that are updated": (PARSER.format(given="") + "vars(args).update(x)", "args.mixed", None),
    "options as a dictionary that is updated": (
        PARSER.format(given="") + "d = vars(args)\nd.update(x)",
        "args.mixed",
        None,
    ),
    "an element of options as a dictionary": (
        PARSER.format(given="") + "d = vars(args)\nd['mixed'] = 0",
        "d['mixed']",
        None,
    ),
    "options that a function updates": (
        PARSER.format(given="") + "def change(it):\n    it.update(x)\nchange(args.__dict__)",
        "args.mixed",
        None,
    ),
    "one option as an element": (PARSER.format(given="") + "args.__dict__['layers'] = 3", "args.loss == 'hinge'", True),
    "options in another object": (PARSER.format(given="namespace=others"), "args.mixed", None),
    "a default of all options": (PARSER.format(given="").replace("er()", "er(argument_default=1)"), "args.mixed", None),
    "a dictionary in front of others": ("config = {'n': 1, **others}", "config['n'] == 1", None),
    "a list behind others": ("sizes = [*others, 1, 2]", "sizes[1] == 2", None),
    "a list that is sorted": ("sizes = [2, 1]\nsizes.sort()", "sizes[0] == 2", None),
    "a dictionary that a wrapped function changes": (
        "config = {'n': 1}\n@wrap\ndef change(it):\n    it['n'] = 2\nchange(config)",
        "config['n'] == 1",
        None,
    ),
    "a function that may return nothing": ("def f():\n    if x():\n        return True\non = f()", "on", None),
    "a function that is wrapped": ("@wrap\ndef f():\n    return True\non = f()", "on", None),
    "a generator": ("def f():\n    yield\n    return 1\non = f()", "on == 1", None),
    "a function that makes attributes": ("made = load(CONFIG, on=False)", "made.on", None),
    "an attribute behind a test": (
        "class C:\n    on = False\n    def __init__(self):\n        if x:\n            self.on = True\nc = C()",
        "c.on",
        None,
    ),
    "attributes of a dictionary": (
        "class C:\n    on = False\n    def __init__(self, **given):\n        self.__dict__.update(given)\nc = C(on=1)",
        "c.on",
        None,
    ),
    "a class that is given what nothing shows": (
        "class C:\n    def __init__(self, on=False):\n        self.on = on\nc = C(**given)",
        "c.on",
        None,
    ),
    "a class that another inherits from": (
        "class C:\n    def __init__(self, on=False):\n        self.on = on\nclass D(C):\n    pass\nc, d = C(), D(True)",
        "c.on",
        None,
    ),
    "a class that others are compared with": (
        "class C:\n    def __init__(self, on=False):\n        self.on = on\nc = C()\nisinstance(c, C)",
        "c.on",
        False,
    ),
    "a class with a choice of values": ("class C:\n    n = 1\n    if x:\n        n = 2", "C.n == 1", None),
    "a field behind inherited ones": (
        CONFIG + "@dataclass\nclass More(Config):\n    n: int = 0\nmore = More('mean')",
        "more.n == 'mean'",
        None,
    ),
    "a name that an import binds, too": ("try:\n    from x import on\nexcept ImportError:\n    on = False", "on", None),
    "a name of an exception": ("on = True\ntry:\n    f()\nexcept ValueError as on:\n    pass", "on", None),
    "a parameter of a function around": ("on = True\ndef f(on):\n    def g():\n        {}\ng(x)", "on", None),
    "a parameter of a lambda": ("on = True\nf = lambda on: {}", "on", None),
    "a parameter that a function passes on to itself": (
        "def f(on):\n    {}\n    if x:\n" + "        f(on)\n" * 8 + "f(True)",
        "on",
        None,
    ),
    "the name of other parameters": ("given = {'n': 1}\ndef f(**given):\n    {}", "given['n'] == 1", None),
    "an attribute that another method sets": (
        "class C:\n    on = False\n    def enable(self):\n        self.on = True\n    def step(self):\n        {}",
        "self.on",
        None,
    ),
    "defaults from elsewhere": ("parser.set_defaults(**given)" + PARSER.format(given=""), "args.layers == 2", None),
}
PROGRAM = """
import torch
from torch import nn
{settings}

class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return torch.linalg.svd(self.fc(x)).S

def build(kind):
    {build}

model = build({kind})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4)).sum().backward()
optimizer.step()
"""
CLIPPED = """
import sys
import torch
from torch import nn
LIMIT = {limit}
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(4):
    model(torch.randn(4, 4)).sum().backward()
    if step % 2:
        {test}
            nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
"""
CLIPS = {
    "a limit": ("1.0", "if LIMIT:", Verdict.TRAINS_ON_HOST),
    "none": ("None", "if LIMIT is not None:", Verdict.TRAINS),
    "an unknown one": ("float(sys.argv[1])", "if LIMIT > 0:", Verdict.TRAINS),
    "no test": ("float(sys.argv[1])", "with torch.no_grad():", Verdict.TRAINS_ON_HOST),
}
CHOSEN = """
import sys
import torch
from torch import nn
def mean(out):
    return out.mean()
def spectral(out):
    return torch.linalg.svdvals(out).sum()
ON, UNKNOWN, LOSSES = True, bool(sys.argv[9:]), {{"mean": mean, "spectral": spectral, "changed": spectral}}
LOSSES["changed"] = mean
model = nn.Linear(4, 4)
model.to({dtype})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = LOSSES[{kind}](model(torch.randn(4, 4)))
loss.backward()
optimizer.step()
"""
# Formats and losses, and whether a run refuses one for sure.
CHOICES = [
    ("torch.bfloat16 if ON else torch.float32", "'mean'", True),
    ("torch.float32 if not ON else torch.bfloat16", "'mean'", True),
    ("torch.bfloat16 if not ON else torch.float32", "'mean'", False),
    ("torch.bfloat16 if UNKNOWN else torch.float32", "'mean'", False),
    ("torch.float32", "'spectral' if ON else 'mean'", True),
    ("torch.float32", "'mean' if ON else 'spectral'", False),
    ("torch.float32", "'spectral' if UNKNOWN else 'mean'", False),
    ("torch.float32", "'changed'", False),
]
BUILDS = {
    "a choice": "if kind == 'spectral':\n        return Spectral()\n    else:\n        return nn.Linear(4, 4)",
    "the rest": "if kind == 'linear':\n        return nn.Linear(4, 4)\n    return Spectral()",
    "a registry": "return {'linear': nn.Linear, 'spectral': Spectral}[kind]()",
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_decides_a_test(name):
    text, test, expected = CASES[name]
    imports = "import argparse, types\nfrom dataclasses import dataclass, field\n"
    text = text.replace("{}", test) if "{}" in text else f"{text}\n{test}"
    program = Program(Source("program.py", imports + text))
    expressions = (node for node in walk(program.tree) if isinstance(node, ast.expr))
    *_, asked = (node for node in expressions if program.source_of(node) == test)
    assert settings_of(program).decision(asked) is expected


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("kind", ["spectral", "linear"])
def test_the_verdict_is_about_the_model_that_a_setting_chooses(build, kind):
    text = PROGRAM.format(settings=f"KIND = {kind!r}", kind="KIND", build=BUILDS[build])
    judged = judge_source(Source("program.py", text))[2]
    assert judged.verdict is (Verdict.REFUSED if kind == "spectral" else Verdict.TRAINS)


def test_a_model_that_no_known_setting_chooses_may_be_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(settings="import os", kind="os.environ['KIND']", build=BUILDS["a choice"]))
    report = check_paths([str(script)])
    (found,) = (each for each in report.findings if each.rule == "unsupported-operator")
    assert (found.severity, found.run) == (Severity.NOTE, Outcome.OPEN)
    assert report.verdicts[str(script)] is Verdict.TRAINS


@pytest.mark.parametrize(("dtype", "kind", "refused"), CHOICES)
def test_a_format_or_a_loss_that_is_one_of_several_is_refused_if_settings_choose_it(dtype, kind, refused):
    judged = judge_source(Source("program.py", CHOSEN.format(dtype=dtype, kind=kind)))[2]
    assert judged.verdict is (Verdict.REFUSED if refused else Verdict.TRAINS)


def test_code_that_finally_runs_counts_behind_a_return_that_a_setting_decides():
    """A handler and a `finally` follow a `try` that returns."""
    text = "def f():\n    try:\n        if ON:\n            return\n        a()\n    finally:\n        b()"
    names = Program(Source("program.py", f"ON = True\n{text}")).uses.names["f"]
    assert "b" in names and "a" not in names


@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped_on_the_host_if_a_known_test_clips_them(name):
    limit, test, expected = CLIPS[name]
    assert judge_source(Source("program.py", CLIPPED.format(limit=limit, test=test)))[2].verdict is expected


def test_the_object_of_a_method_is_no_argument_of_its_calls():
    """As where a mixin asks for an attribute that another class gives it, and is called without arguments."""
    code = """
        import torch
        from torch import nn

        class Merged:
            def train(self, mode=True):
                nn.Linear.train(self, mode)
                if mode:
                    if self.rank > 0:
                        self.weight.data -= self.update()

        class Layer(Merged, nn.Linear):
            rank = 2

        model = Layer(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    """
    assert judge_source(Source("train.py", textwrap.dedent(code)))[2].verdict is Verdict.TRAINS
