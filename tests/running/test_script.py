"""A script runs as a program of its own, and leaves no trace in the process."""

from __future__ import annotations

import io
import sys

import ignite.engine
import pytest
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.emulator.device import device
from ignite_ipu.errors import RunError, UserError
from ignite_ipu.running import run_script
from ignite_ipu.running.program import imports, module_program, script_program


def test_a_script_is_the_main_program_with_its_own_arguments(run):
    ran = run("import sys; print(__name__, sys.argv[1:], len(sys.path[0]) > 0)", "--lr", "0.1")
    assert ran.output == ["__main__ ['--lr', '0.1'] True"]


def test_modules_beside_the_script_belong_to_it(run, tmp_path):
    (tmp_path / "beside_the_script.py").write_text("import torch\nAVAILABLE = torch.cuda.is_available()\n")
    ran = run("import beside_the_script; print(beside_the_script.AVAILABLE)")
    sys.modules.pop("beside_the_script")
    assert ran.output == ["True"]


def test_exit_codes_and_exceptions_are_the_scripts_own(run):
    with pytest.raises(SystemExit) as ended:
        run("raise SystemExit(3)")
    assert ended.value.code == 3
    with pytest.raises(KeyError):
        run("{}['missing']")


def test_exit_with_a_text_and_interrupts_are_the_scripts_own(run):
    with pytest.raises(SystemExit) as ended:
        run("import sys; sys.exit('no data')")
    assert ended.value.code == "no data"
    with pytest.raises(KeyboardInterrupt):
        run("raise KeyboardInterrupt")


def test_a_script_reads_its_input_knows_its_file_and_writes_where_it_was_started(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("three lines\n"))
    ran = run("import os, sys; print(os.path.basename(__file__), sys.stdin.read()); open('written', 'w').close()")
    assert ran.output == ["script.py three lines", ""]
    assert (tmp_path / "written").exists()


def test_whole_models_of_the_scripts_own_classes_are_saved_and_train_on(run, tmp_path, monkeypatch):
    """A file of `torch.save(model)` after two updates goes on as the model itself does, and as in eager PyTorch."""
    monkeypatch.chdir(tmp_path)
    text = """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def forward(self, x):
                return self.layer(x)
        def fit(model, optimizer):
            for _ in range(2):
                optimizer.zero_grad()
                loss = (model(x) - 1).pow(2).mean()
                loss.backward()
                optimizer.step()
            print(f"{loss.item():.5f}")
        torch.manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x = torch.randn(8, 4, device=device)
        model = Net().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        fit(model, optimizer)
        torch.save([model, optimizer.state_dict()], "model.pt")
        fit(model, optimizer)
        loaded, state = torch.load("model.pt", weights_only=False)
        optimizer = torch.optim.Adam(loaded.parameters(), lr=0.1)
        optimizer.load_state_dict(state)
        print(type(loaded) is Net)
        fit(loaded, optimizer)
        """
    found = run(text).output
    assert found[1] == found[3] != found[0] and found[2] == "True"
    monkeypatch.setenv(backend.VARIABLE, "native")
    assert run(text).output == found


@pytest.mark.usefixtures("forks_spawned")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_may_have_worker_processes(run, method):
    """Spawned ones import the script again, under another name."""
    ran = run(
        """
        import sys, torch
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, i):
                return torch.full((3,), float(i)), torch.full((1,), float(i * i))
        if __name__ == "__main__":
            model = torch.nn.Linear(3, 1, bias=False).cuda()
            torch.nn.init.zeros_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(Squares(), 2, num_workers=1, pin_memory=True, multiprocessing_context=sys.argv[1])
            for x, y in loader:
                loss = (model(x.cuda()) - y.cuda()).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"{loss.item():.4f}")
        """,
        method,
    )
    # Means of squared errors: 0 and 1 with no weights; then 4 and 9 with 0.1 * (2 * 1 / 2) in each of three.
    assert ran.output == [f"{(0 + 1) / 2:.4f}", f"{((4 - 0.6) ** 2 + (9 - 0.9) ** 2) / 2:.4f}"]


def attributes():
    """Return everything in PyTorch and Ignite that a run replaces."""
    owners = (
        torch.cuda,
        torch,
        torch.Tensor,
        nn.Module,
        nn.utils,
        nn.utils.clip_grad,
        torch.optim.Optimizer,
        torch.distributed,
        torch.autograd,
        ignite.engine,
        ignite.engine.Engine,
        torch.utils.data.DataLoader,
        torch.autocast,
        getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler),
    )
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]


@pytest.mark.parametrize("ending", ["", "raise ValueError", "torch.cuda.get_rng_state()"])
def test_everything_is_put_back(run, ending):
    """Whether the script ends, fails or is refused."""
    run("import torch; torch.optim.SGD([torch.zeros(1)], 0.1)")  # PyTorch patches its optimizers' classes itself
    before = attributes()
    text = f"import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n{ending}"
    if ending:
        with pytest.raises((ValueError, RunError)):
            run(text)
    else:
        run(text)
    assert attributes() == before


def test_models_and_optimizers_are_ordinary_again_with_the_newest_weights(run, monkeypatch):
    kept = {}
    monkeypatch.setattr(sys, "kept_by_the_test", kept, raising=False)
    run(
        """
        import sys, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        before = model.weight.detach().clone()
        loss = model(torch.ones(4, 2)).mean()
        loss.backward()
        optimizer.step()
        sys.kept_by_the_test.update(model=model, optimizer=optimizer, before=before)
        """
    )
    model, optimizer = kept["model"], kept["optimizer"]
    assert type(model) is nn.Linear and type(optimizer) is torch.optim.SGD
    torch.testing.assert_close(model.weight, kept["before"] - 0.5)
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), kept["before"] - 1.0)


CAUGHT = {
    "get_rng_state": """
        import torch
        try:
            torch.cuda.get_rng_state()
        except Exception:
            pass
        """,
    "multi_margin_loss": """
        import torch
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            torch.nn.functional.multi_margin_loss(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
            optimizer.step()
        except Exception:
            pass
        """,
    "create_graph=True": """
        import torch
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            model(torch.ones(2, 4)).mean().backward(create_graph=True)
        except Exception:
            pass
        """,
    "MultiMarginLoss|multi_margin_loss": """
        import torch
        from ignite.engine import Events, create_supervised_trainer
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = create_supervised_trainer(model, optimizer, torch.nn.MultiMarginLoss())
        trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)
        trainer.run([(torch.ones(2, 4), torch.tensor([0, 1]))])
        """,
}


@pytest.mark.parametrize("named", CAUGHT)
def test_a_script_that_catches_a_refusal_is_refused_at_its_end(run, named):
    with pytest.raises(RunError, match=rf"script\.py:\d+: [\s\S]*{named}"):
        run(CAUGHT[named])


def test_poptorch_scripts_run_on_the_emulator_as_they_are(run):
    ran = run("import poptorch; print(poptorch.__name__, poptorch.Options().deviceIterations(3).device_iterations)")
    assert ran.output == ["poptorch 3"] and not ran.substitutions
    assert "poptorch" not in sys.modules


def test_poptorch_is_found_in_modules_beside_the_script(tmp_path):
    (tmp_path / "inner.py").write_text("def go():\n    from poptorch import Options\n")
    script = tmp_path / "script.py"
    script.write_text("import inner\n")
    program = script_program(str(script))
    assert imports(program, "poptorch")
    (tmp_path / "inner.py").write_text("poptorch = None\n")
    assert not imports(program, "poptorch")


@pytest.mark.parametrize("text", ["from ..data import load", "from .. import data", "import packed.data"])
def test_poptorch_is_found_through_the_imports_within_a_package(tmp_path, monkeypatch, text):
    (tmp_path / "packed" / "jobs").mkdir(parents=True)
    (tmp_path / "packed" / "data.py").write_text("import poptorch\n")
    (tmp_path / "packed" / "jobs" / "train.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imports(module_program("packed.jobs.train"), "poptorch")


def test_a_native_run_substitutes_nothing(run, monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "native")
    ran = run("import torch; print(type(torch.nn.Linear(2, 2)(torch.ones(1, 2)).grad_fn).__name__)")
    assert ran.output == ["AddmmBackward0"] and not ran.substitutions


def test_a_missing_script_is_the_users_error():
    with pytest.raises(UserError, match=r"no script 'nowhere\.py'"):
        run_script("nowhere.py")


def test_threads_of_a_script_run_to_their_end_on_the_device(run):
    """In Python the interpreter waits for them; a pool's idle ones it ends itself."""
    before = device.counters()
    ran = run(
        """
        import concurrent.futures, threading, time, torch
        model = torch.nn.Linear(2, 1).to("cuda" if torch.cuda.is_available() else "cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(steps):
            time.sleep(0.2)
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.ones(4, 2).cuda()).pow(2).mean().backward()
                optimizer.step()
            print("trained")
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(print, "pooled").result()
        threading.Thread(target=train, args=(3,)).start()
        """
    )
    assert ran.output == ["pooled", "trained"]
    assert (device.counters() - before).optimizer_updates == 3
