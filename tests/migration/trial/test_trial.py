"""A model compiled on the emulator: every refusal is found in one go, at its line, and everything is put back."""

from __future__ import annotations

import contextlib
import os
import random
import sys

import pytest
import torch

from ignite_ipu import backend
from ignite_ipu.errors import UserError
from ignite_ipu.migration.trial.notes import Notes
from ignite_ipu.migration.trial.python_state import watched_lines
from ignite_ipu.migration.trial.survey import Answers, Survey
from ignite_ipu.migration.trial.trial import try_out

MODEL = """
import random

import numpy as np
import torch
from torch import nn


class Inner(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = Inner()
        self.table = torch.arange(4.0)
        self.history = []
        self.register_buffer("running", torch.zeros(4))

    def forward(self, x):
        x = self.layer(x)
        if x.sum() > 0:
            x = x + 1
        x = x - x.mean().item()
        x = x + self.table
        x = x * (1 + random.random())
        x = x + np.random.rand()
        x = x + self.inner(x)
        x = x * torch.linalg.svd(x)[1]
        x = x * torch.norm(x, 0)
        y = x.detach().cpu().numpy()
        self.history.append(1)
        self.running = x.mean(0)
        print(x.shape)
        return x + float(y.max())


def make():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, optimizer, nn.CrossEntropyLoss(), [(torch.randn(4, 4), torch.randint(4, (4,)))]
"""

EXPECTED = [
    (10, "dynamic-shape"),
    (24, "data-dependent-control-flow"),
    (26, "host-value-in-forward"),
    (28, "python-randomness"),
    (29, "python-randomness"),
    (31, "unsupported-operator"),
    (32, "restricted-operator"),
    (33, "host-value-in-forward"),
    (34, "mutated-python-state"),
    (35, "rebound-buffer"),
    (36, "print-in-forward"),
]


def test_everything_that_is_refused_is_found_in_one_run(traced):
    """PyTorch reads a new tensor's elements as it did before: a tensor is no sequence for it."""
    assert traced(MODEL) == EXPECTED
    if not torch.__version__.startswith("2.0."):
        assert torch.tensor([torch.tensor(0.5), 2.0]).tolist() == [0.5, 2.0]


def test_what_a_line_breaks_is_said_where_it_is_silenced(traced):
    assert traced(MODEL.replace("if x.sum() > 0:", "if x.sum() > 0:  # ignite-ipu: ignore")) == [
        pair for pair in EXPECTED if pair[0] != 24
    ]


def write(tmp_path, code):
    path = tmp_path / "code.py"
    path.write_text(code)
    return f"{path}:make"


def test_only_the_caller_sees_what_is_left_behind(tmp_path, monkeypatch, capsys):
    """Output for people goes to standard error; classes, trace functions and the environment are as they were."""
    monkeypatch.setenv(backend.VARIABLE, "native")
    before = sys.gettrace()
    try_out(write(tmp_path, MODEL))
    assert sys.gettrace() is before
    assert os.environ[backend.VARIABLE] == "native"
    assert capsys.readouterr().out == ""
    assert "__getattribute__" not in vars(torch.nn.Linear)
    assert "__getitem__" not in vars(torch.Tensor)


PLAIN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def make():
    model = Net()
    {returns}
"""


def test_a_move_to_the_host_is_left_out_in_a_folder_of_any_name(tmp_path):
    """As trainers and captured loops leave it out: everything stays on the device."""
    folder = tmp_path / "cuda"
    folder.mkdir()
    code = PLAIN.replace("self.layer(x)", 'self.layer(x).to("cpu")').format(returns="return model, (torch.ones(4, 4),)")
    assert [note.rule for note in try_out(write(folder, code)).notes] == []


@pytest.mark.parametrize(
    ("returns", "compiled"),
    [
        (
            "return model, torch.optim.SGD(model.parameters(), lr=1), nn.MSELoss(), "
            "[(torch.ones(4, 4), torch.ones(4, 2))]",
            ["training", "inference"],
        ),
        (
            "return {'model': model, 'optimizer': torch.optim.SGD(model.parameters(), lr=1), 'loss_fn': nn.MSELoss(), "
            "'batches': [(torch.ones(4, 4), torch.ones(4, 2))]}",
            ["training", "inference"],
        ),
        ("return model, torch.ones(4, 4)", ["inference"]),
        ("return model, (torch.ones(4, 4),)", ["inference"]),
        ("return model, {'x': torch.ones(4, 4)}", ["inference"]),
    ],
)
def test_factories(returns, compiled, tmp_path):
    """Setups of `parity`, and those of `plan`."""
    trial = try_out(write(tmp_path, PLAIN.replace("{returns}", returns)))
    assert (trial.notes, trial.compiled, trial.tried) == ([], compiled, compiled)


def test_models_that_take_everything_by_keyword_and_return_their_loss(tmp_path):
    transformers = pytest.importorskip("transformers")
    assert transformers
    code = """
import torch
from transformers import BertConfig, BertForSequenceClassification


def make():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=9, **sizes))
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long), "labels": torch.ones(2, dtype=torch.long)}
    return model, torch.optim.AdamW(model.parameters()), None, [batch]
"""
    trial = try_out(write(tmp_path, code))
    assert (trial.notes, trial.compiled) == ([], ["training", "inference"])


@pytest.mark.parametrize(
    "batch", ["(x, y)", "[x, y]", "{'x': x, 'y': y}", "((x, y), y)"], ids=["pair", "list", "mapping", "nested"]
)
def test_models_that_take_everything_and_return_their_loss(batch, tmp_path):
    """As for `parity`; a tuple of inputs is several arguments where forward does not take it as one."""
    code = f"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, y):
        logits = self.layer(x)
        return logits, nn.functional.cross_entropy(logits, y)


def make():
    model, x, y = Net(), torch.ones(4, 4), torch.ones(4, dtype=torch.long)
    return model, torch.optim.SGD(model.parameters(), lr=1), {{loss}}, [{batch}]
"""
    loss = "lambda output, y: output[1]" if batch == "((x, y), y)" else "None"
    trial = try_out(write(tmp_path, code.replace("{loss}", loss)))
    assert (trial.notes, trial.compiled) == ([], ["training", "inference"])


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        ("torch.optim.Adagrad(model.parameters())", "unsupported-optimizer"),
        ("torch.optim.Adam(model.parameters(), amsgrad=True)", "unsupported-optimizer-argument"),
    ],
)
def test_optimizers(optimizer, rule, tmp_path):
    returns = f"return model, {optimizer}, nn.MSELoss(), [(torch.ones(4, 4), torch.ones(4, 2))]"
    trial = try_out(write(tmp_path, PLAIN.replace("{returns}", returns)))
    assert [note.rule for note in trial.notes] == [rule]
    assert trial.compiled == ["inference"]


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("return model", "it must return"),
        ("raise ValueError('no data')", "ValueError: no data"),
        (
            "return model, torch.optim.SGD(model.parameters(), lr=1), nn.MSELoss(), []",
            "batches are empty",
        ),
    ],
)
def test_factories_that_give_nothing_to_compile(returns, message, tmp_path):
    with pytest.raises(UserError, match=message):
        try_out(write(tmp_path, PLAIN.replace("{returns}", returns)))


@pytest.mark.parametrize(
    ("target", "message"),
    [("nothing", "not of the form"), ("nothing.py:make", "no file"), ("no_such_module:make", "no module")],
)
def test_targets_that_are_not_there(target, message):
    with pytest.raises(UserError, match=message):
        try_out(target)


def test_a_module_that_ends_the_process_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="exit code 3"):
        try_out(write(tmp_path, "import sys\nsys.exit(3)\n"))


def test_a_module_that_reads_the_command_line_sees_no_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ignite-ipu", "check", "--run", "x"])
    code = "import sys\nassert len(sys.argv) == 1\n" + PLAIN.replace("{returns}", "return model, torch.ones(4, 4)")
    assert try_out(write(tmp_path, code)).compiled == ["inference"]
    assert sys.argv[1] == "check"


def test_a_module_that_fails_to_import_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="ZeroDivisionError"):
        try_out(write(tmp_path, "1 / 0\n"))


def test_random_states_are_those_that_the_code_leaves(tmp_path):
    """A model that draws nothing leaves Python's generator alone."""
    state = random.getstate()
    try_out(write(tmp_path, PLAIN.replace("{returns}", "return model, torch.ones(4, 4)")))
    assert random.getstate() == state


def test_a_loss_that_cannot_be_compiled(tmp_path):
    """Inference does without it."""
    returns = (
        "return model, torch.optim.SGD(model.parameters(), lr=1), nn.MultiMarginLoss(), "
        "[(torch.ones(4, 4), torch.ones(4).long())]"
    )
    trial = try_out(write(tmp_path, PLAIN.replace("{returns}", returns)))
    assert [(note.rule, note.place) for note in trial.notes] == [("unsupported-operator", None)]
    assert trial.compiled == ["inference"]


def test_what_a_librarys_module_does_is_placed_at_the_factory(tmp_path, capsys):
    """No line of the user's runs then, and the caller's are none. Refused code does not count as compiled."""
    layer = "torch.nn.Embedding(4, 4, scale_grad_by_freq=True)"
    code = f"import torch\n\n\ndef make():\n    return {layer}, torch.ones(8, 2).long()\n"
    trial = try_out(write(tmp_path, code))
    assert [(note.rule, note.place) for note in trial.notes] == [("restricted-operator", None)]
    assert (trial.compiled, trial.tried) == ([], ["inference"])
    assert trial.factory is not None and trial.factory.line == 4
    assert capsys.readouterr().err == ""


def test_operators_are_reported_by_the_table(traced):
    """Doubtful operators are noted, unused or constant ones are not, and each note names its line."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                x = self.layer(x) * torch.ones(4, 4).tril()
                torch.lgamma(x)
                x = x * torch.norm(x, 0)
                x = torch.cummax(x, 1).values
                return torch.erfinv(x)

        def make():
            return Net(), torch.ones(4, 4)
    """
    assert traced(code) == [
        (12, "restricted-operator"),
        (13, "unsupported-operator"),
        (14, "unsupported-operator"),
    ]


GENERATOR = """
def numbers():
    yield 1
    yield 2
    yield 3
"""


@pytest.mark.parametrize("runs", [False, True], ids=["a generator of other code", "code of the model"])
def test_lines_count_while_the_code_of_the_model_runs(runs, tmp_path):
    """The garbage collector may end generators while parameters are replaced for a trace."""
    path = tmp_path / "own.py"
    path.write_text(GENERATOR)
    names = {}
    exec(compile(GENERATOR, str(path), "exec"), names)
    model, notes = torch.nn.Linear(2, 2), Notes()
    survey = Survey(notes, Answers())
    with watched_lines(model, survey), survey if runs else contextlib.nullcontext():
        numbers = names["numbers"]()
        next(numbers)
        model.weight = torch.nn.Parameter(torch.zeros(2, 2))
        next(numbers)
    assert [note.rule for note in notes.found] == (["rebound-buffer"] if runs else [])
