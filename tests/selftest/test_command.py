"""`ignite-ipu selftest`: its checks, its output, and its exit codes."""

from __future__ import annotations

import gc
import io
import itertools
import json
import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch

from ignite_ipu import backend
from ignite_ipu.cli.command import main
from ignite_ipu.emulator.device.machine import machine
from ignite_ipu.selftest import promises, runner
from ignite_ipu.selftest.bench import expect, network
from ignite_ipu.selftest.promises import Promise, Skipped

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _fresh_accelerators():
    """accelerate keeps a state for the whole process."""
    yield
    if "accelerate" in sys.modules:
        from tests.accelerate_state import forget

        forget()


@pytest.fixture(autouse=True)
def _ipus_that_no_other_test_holds(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def group(monkeypatch):
    """Makes the promises that are checked in a test: name, text, program, and more of `Promise`."""
    made = []
    monkeypatch.setattr("ignite_ipu.selftest.command.every_promise", lambda: made)

    def add(name, text, program, **more):
        made.append(Promise(f"made.{name}", text, "first-hour.md", program, **more))

    return add


def report_of(arguments, capsys):
    code = main(["selftest", "--format", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_everything_holds_on_the_emulator_and_every_ipu_is_given_back(tmp_path, capsys):
    """All promises, as the command checks them: none is broken, and none is skipped except for missing packages."""
    held = set(machine().users())
    file = tmp_path / "report.json"
    assert main(["selftest", "--report", str(file)]) == 0, capsys.readouterr().out
    table = capsys.readouterr().out.splitlines()
    report = json.loads(file.read_text())
    broken = {each["name"]: each["traceback"] for each in report["promises"] if each["result"] == "failed"}
    assert broken == {}
    reasons = [each["reason"] for each in report["promises"] if each["result"] == "skipped"]
    assert all("installed" in reason or "half precision" in reason for reason in reasons), reasons
    assert len(table) == len(report["promises"]) + 2 and table[-1].startswith(f"{report['results']['ok']} ok")
    assert set(machine().users()) <= held


def test_promises_are_sentences_with_a_page_in_the_documentation():
    every = promises.every_promise()
    assert len({promise.name for promise in every}) == len(every) >= 60
    for promise in every:
        assert promise.text.endswith(".") and len(promise.text.split()) > 4, promise
        assert (_DOCS / promise.page).is_file(), promise


def test_every_optimizer_of_poptorch_is_among_them():
    """Those that PopTorch offers, and those of torch that convert to them."""
    poptorch = backend.poptorch()
    base = poptorch.optim.Optimizer
    kinds = {kind for kind in vars(poptorch.optim).values() if isinstance(kind, type) and issubclass(kind, base)} - {
        base
    }
    assert len(kinds) == 5
    texts = [promise.text for promise in promises.every_promise()]
    for kind in kinds:
        name = kind.__name__
        assert any(text.startswith(f"poptorch.optim.{name} ") for text in texts), name
        assert not hasattr(torch.optim, name) or any(text.startswith(f"torch.optim.{name} ") for text in texts), name


def lose_optimizer_state(monkeypatch):
    adam = backend.poptorch().optim.Adam
    for method in ("load_state_dict", "set_state_dict"):
        monkeypatch.setattr(adam, method, lambda self, state: None)


def keep_the_first_learning_rate(monkeypatch):
    executor = backend.poptorch().PoplarExecutor
    original = executor.setOptimizer

    def set_once(self, optimizer):
        if not self.isCompiled():
            original(self, optimizer)

    monkeypatch.setattr(executor, "setOptimizer", set_once)


def never_upload(monkeypatch):
    executor = backend.poptorch().PoplarExecutor
    monkeypatch.setattr(executor, "copyWeightsToDevice", lambda self: None)


@pytest.mark.parametrize(
    ("spoil", "broken", "kept"),
    [
        (lose_optimizer_state, ["optimizers.adam", "optimizers.poptorch-adam"], "optimizers.clipping"),
        (keep_the_first_learning_rate, ["schedules.of-torch", "schedules.of-ignite"], "batching.both"),
        (never_upload, ["weights.written-weights"], "weights.copies-of-training"),
    ],
)
def test_a_backend_that_does_not_do_it_right_is_found(spoil, broken, kept, monkeypatch, capsys):
    """The promises fail by name and with exit code 1; those that it does not touch hold."""
    spoil(monkeypatch)
    code, report = report_of(["--only", kept, *broken], capsys)
    assert code == 1
    assert {each["name"]: each["result"] for each in report["promises"]} == {
        **dict.fromkeys(broken, "failed"),
        kept: "ok",
    }
    assert report["results"] == {"ok": 1, "failed": len(broken), "skipped": 0}


def test_a_broken_promise_is_said_with_its_page_and_reason(group, capsys):
    """Exit code 1; the table has the reason, and the promise stands below."""

    group("two-is-three", "Two is three, as the page says.", lambda bench: expect(False, "2 is not 3"))
    group("holds", "This one holds all the same.", lambda bench: None)
    assert main(["selftest"]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("failed  made.two-is-three") and rows[0].endswith("s  2 is not 3")
    assert rows[1].startswith("ok      made.holds")
    assert rows[3:6] == ["made.two-is-three  Two is three, as the page says.", "  docs/first-hour.md", "  2 is not 3"]
    assert rows[-1].startswith("1 ok, 1 failed in ") and rows[-1].endswith(
        "s, on emulator (PopTorch 3.3.0+emulator, IPUs: 64)"
    )


def test_whatever_is_raised_is_in_the_report_and_keeps_no_ipus(group, capsys):
    """An error in the middle of training, with its traceback; the IPUs are free for the next program."""
    poptorch = backend.poptorch()

    def train(bench, fails):
        model = network()
        trainer = bench.trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), options=poptorch.Options().useIpuId(0)
        )
        trainer.run([(torch.zeros(2, 6), torch.zeros(2, dtype=torch.long))])
        if fails:
            for name in ("ignite_ipu", "poptorch::python"):
                logging.getLogger(name).warning("something odd")
            warnings.warn("something old", DeprecationWarning, stacklevel=1)
            raise SystemExit("ended by itself")

    group("fails", "A program that ends fails.", lambda bench: train(bench, True))
    group("trains", "The next one trains.", lambda bench: train(bench, False))
    code, report = report_of([], capsys)
    assert code == 1
    failed, ok = report["promises"]
    assert (failed["result"], failed["reason"], ok["result"]) == ("failed", "SystemExit: ended by itself", "ok")
    assert 'raise SystemExit("ended by itself")' in failed["traceback"]
    assert failed["messages"] == [
        "WARNING ignite_ipu: something odd",
        "WARNING poptorch::python: something odd",
        "DeprecationWarning: something old",
    ]
    assert failed["promise"] == "A program that ends fails." and failed["page"] == "docs/first-hour.md"


def test_what_cannot_run_here_is_skipped_with_the_reason(group, monkeypatch, capsys):
    """Too few IPUs, no emulator to inject faults into, something that is not installed: exit code 0."""
    group("large", "", lambda bench: expect(False, "has run"), ipus=4)
    group("missing", "", lambda bench: raise_(Skipped("accelerate is not installed")))
    group("emulated", "", lambda bench: expect(False, "has run"), needs_emulator=True)
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "2")
    monkeypatch.setattr(runner.backend, "is_emulator", lambda: False)
    code, report = report_of([], capsys)
    assert code == 0
    assert [each["result"] for each in report["promises"]] == ["skipped"] * 3
    assert [each["reason"] for each in report["promises"]] == [
        "needs 4 IPUs at once, and there are 2",
        "accelerate is not installed",
        "only the emulator can be told to fail so",
    ]


def raise_(error):
    raise error


def test_without_any_ipu_one_promise_is_broken_and_the_others_are_skipped(monkeypatch, capsys):
    """A machine whose IPUs PopTorch does not find is no machine on which all is well."""
    monkeypatch.setattr(backend.poptorch(), "ipuHardwareIsAvailable", lambda num_ipus=1: False)
    code, report = report_of(["--only", "device"], capsys)
    assert code == 1
    assert [each["result"] for each in report["promises"]] == ["failed", "skipped"]
    assert "PopTorch finds no IPU" in report["promises"][0]["reason"]
    assert report["promises"][1]["reason"] == "needs 1 IPU at once, and there are 0"


def test_only_takes_names_and_groups(capsys):
    code, report = report_of(["--only", "schedules.of-ignite", "device"], capsys)
    assert code == 0
    names = [each["name"] for each in report["promises"]]
    assert names == ["device.available-here", "device.computes", "schedules.of-ignite"]


def test_an_unknown_name_is_refused_with_its_neighbours(capsys):
    assert main(["selftest", "--only", "optimizers.adamm"]) == 2
    assert "'optimizers.adamm'. Did you mean 'optimizers.adam'" in capsys.readouterr().err


@pytest.mark.parametrize(("chosen", "message"), [("native", "no PopTorch"), ("sdk", "no module named poptorch")])
def test_a_poptorch_that_cannot_be_had_is_the_users_error(chosen, message, monkeypatch, capsys):
    """One line with the reason and the way out: there is nothing that could be checked."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", chosen)
    assert main(["selftest"]) == 2
    assert message in capsys.readouterr().err


def test_the_list_says_what_is_promised(capsys):
    assert main(["selftest", "--list", "--only", "batching"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split("  ", 1)[0] == "batching.device-iterations"
    assert rows[0].endswith("With deviceIterations, one call makes that many updates, one after the other.")


def test_a_report_says_what_it_was_made_on(group, capsys):
    """Versions, backend and devices, as `ignite-ipu env` prints them."""
    group("holds", "This one holds all the same.", lambda bench: None)
    _, report = report_of([], capsys)
    assert report["device"]["backend"] == "emulator" and report["device"]["ipus"] == 64
    assert torch.__version__.startswith(report["environment"]["versions"]["torch"])


def test_a_report_is_there_while_programs_run(group, tmp_path, capsys):
    """After a crash of the process, the results of the earlier promises are left, and the name of the checked one."""
    file = tmp_path / "report.json"
    group("first", "The first one holds.", lambda bench: None)
    group("second", "The second one looks.", lambda bench: seen.append(json.loads(file.read_text())))
    seen = []
    assert main(["selftest", "--report", str(file)]) == 0
    assert [each["name"] for each in seen[0]["promises"]] == ["made.first"] and seen[0]["running"] == "made.second"
    assert "running" not in json.loads(file.read_text())
    assert main(["selftest", "--report", str(tmp_path / "nowhere" / "report.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_terminal_sees_what_is_running(group, monkeypatch, capsys):
    """On standard error, on a line of its own that goes away; a log gets the rows alone."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    group("first", "The first one holds.", lambda bench: None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("ignite_ipu.cli.terminal._DELAY_SECONDS", 0)
    monkeypatch.setattr("tqdm.std.time", itertools.count().__next__)
    main(["selftest"])
    assert "0/1" in terminal.getvalue()
    assert "made.first" in terminal.getvalue()
    assert terminal.getvalue().split("\r")[-2].strip() == ""
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    main(["selftest"])
    assert log.getvalue() == ""


def test_no_bar_of_a_compilation_is_drawn_over_the_rows(group, monkeypatch):
    """The maker of the options: the program, or a factory that it calls."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def compiles(bench):
        poptorch = backend.poptorch()
        poptorch.inferenceModel(network(), poptorch.Options())(torch.zeros(2, 6))
        bench.pair().trainer.run([(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))])

    group("compiles", "Programs are compiled.", compiles)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["selftest"]) == 0
    assert "Graph compilation" not in terminal.getvalue()


def test_the_process_is_left_as_it_was(group, monkeypatch):
    """Random numbers, loggers and the garbage collector."""

    def disturb(bench):
        torch.manual_seed(99)
        logging.getLogger("ignite_ipu").error("told")

    group("disturbs", "A program draws, logs and leaves garbage behind.", disturb)
    state, handlers = torch.random.get_rng_state(), list(logging.getLogger().handlers)
    was_frozen = gc.get_freeze_count() > 0
    main(["selftest"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert logging.getLogger().handlers == handlers
    assert (gc.get_freeze_count() > 0) == was_frozen
