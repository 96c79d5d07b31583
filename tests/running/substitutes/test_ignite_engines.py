"""Ignite in a script: engines step through captured models; where settings ask, factories make IPU engines."""

from __future__ import annotations

import json

import pytest
import torch

from ignite_ipu import emulator
from ignite_ipu.emulator.poprun import reserved_port
from ignite_ipu.errors import RunError
from tests.half_precision import needs_half_precision

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ignite.engine import create_supervised_trainer as make_trainer, create_supervised_evaluator
from ignite.metrics import MeanSquaredError
torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Linear(3, 1).to(device)
data = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


FACTORIES = """
trainer = make_trainer(model, optimizer, nn.MSELoss(), device, True)
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError(device=device)}, device=device)
trainer.run(data, max_epochs=2)
evaluator.run(data)
print(type(trainer).__name__, type(evaluator).__name__, trainer.state.iteration, evaluator.state.iteration)
"""


def test_engines_of_ignites_factories_step_through_captured_models(run):
    before = emulator.counters()
    ran = run(HEAD + FACTORIES)
    assert ran.output == ["Engine Engine 8 4"]
    assert (emulator.counters() - before).device_calls == 12
    assert ran.became("create_supervised_trainer()") == "its step runs the captured model"


def test_settings_of_calls_turn_factories_into_ipu_engines(run):
    before = emulator.counters()
    ran = run(HEAD + FACTORIES, config={"device_iterations": 2})
    assert ran.output == ["IPUTrainer IPUEngine 4 2"]
    assert (emulator.counters() - before).device_calls == 6
    assert ran.became("create_supervised_trainer()") == "create_ipu_trainer()"


def test_replicas_are_a_matter_of_the_command_line(run):
    ran = run(
        HEAD
        + """
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
trainer.run(data, max_epochs=1)
print(trainer.state.iteration)
""",
        config={"replication_factor": 2},
    )
    assert ran.output == ["2"]


def test_a_file_of_settings_is_for_trainers_and_for_evaluators_that_have_none(run, tmp_path):
    """Calls of two updates from two batches each; an evaluator takes as many batches with a trainer and without one."""
    file = tmp_path / "ipu.yaml"
    file.write_text("device_iterations: 2\ngradient_accumulation_steps: 2\nmax_grad_norm: 0.5\n")
    ran = run(
        HEAD
        + """
alone = create_supervised_evaluator(nn.Linear(3, 1), {"mse": MeanSquaredError()}, device=device)
alone.run(data)
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
trainer.run(data, max_epochs=1)
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()}, device=device)
evaluator.run(data)
print(alone.state.iteration, trainer.state.iteration, evaluator.state.iteration)
print([value for row in model.weight.tolist() for value in row])
""",
        config=file,
    )
    assert ran.output[0] == "1 1 1"
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    for rows, targets in zip(x.split(8), y.split(8)):
        model.zero_grad()
        torch.nn.functional.mse_loss(model(rows), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert json.loads(ran.output[1]) == pytest.approx(model.weight[0].tolist(), rel=1e-4)


def test_a_loop_refuses_settings_that_are_its_own_to_say(run):
    """A written-out loop decides how many batches make an update; settings that it can honour count."""
    loop = (
        HEAD
        + """
loss_fn = nn.MSELoss()
for x, y in data:
    optimizer.zero_grad()
    loss_fn(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
"""
    )
    run(loop, config={"seed": 3, "offload": ["weights"]})
    with pytest.raises(RunError, match="gradient_accumulation_steps is 2, but in a captured step the loop decides"):
        run(loop, config={"gradient_accumulation_steps": 2})


def test_accumulation_counts_iterations_and_schedules_as_ignite_does(run, monkeypatch):
    """An update every second iteration; the rest of an epoch of five batches is part of the next epoch's update."""
    script = (
        HEAD.replace("16", "18").replace("cuda", "cpu")
        + """
from ignite.engine import Events
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device, gradient_accumulation_steps=2)
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()}, device=device)
counts, rates = [], []
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=4), lambda: schedule.step())
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), lambda: counts.append(trainer.state.iteration))
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: rates.append(schedule.get_last_lr()[0]))
trainer.run(data, max_epochs=2)
print(trainer.state.iteration, counts, rates)
evaluator.run(data)
print(round(evaluator.state.metrics["mse"], 4), [round(value, 4) for value in model.weight.tolist()[0]])
"""
    )
    found = run(script).output
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == run(script).output


def test_a_smaller_last_batch_is_trained_and_evaluated(run):
    ran = run(
        HEAD.replace("16", "18")
        + """
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()}, device=device)
trainer.run(data, max_epochs=1)
evaluator.run(data)
print(trainer.state.iteration, evaluator.state.iteration)
"""
    )
    assert ran.output == ["5 5"]


def test_a_group_that_is_added_to_a_trainers_optimizer_ends_the_run(run):
    """As docs/run.md has it; the error names the line."""
    with pytest.raises(RunError, match=r":\d+: A parameter group cannot be added.*before creating the trainer"):
        run(
            HEAD
            + """
from ignite.engine import Events
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
@trainer.on(Events.EPOCH_COMPLETED)
def add():
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
trainer.run(data, max_epochs=2)
""",
            config={"device_iterations": 1},
        )


def test_a_handler_that_sets_gradients_of_a_trainers_model_ends_the_run(run):
    """They would not be used."""
    with pytest.raises(RunError, match=r"(?s)parameter.grad.*computes gradients itself"):
        run(
            HEAD
            + """
from ignite.engine import Events
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: setattr(model.weight, "grad", torch.zeros(1)))
trainer.run(data)
""",
            config={"device_iterations": 1},
        )


def test_what_looks_at_gradients_of_other_parameters_or_clears_them_runs(run):
    """PyTorch's own code may look, and a model that no trainer trains has none in eager PyTorch, too."""
    ran = run(
        HEAD
        + """
import copy
from ignite.engine import Events
model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), model)
other = nn.Linear(3, 1)
print(optimizer.param_groups[0]["params"][0].grad)
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device)
@trainer.on(Events.ITERATION_COMPLETED)
def look():
    optimizer.zero_grad()
    model.zero_grad()
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = None
    print({parameter.grad for parameter in (*other.parameters(), *copied.parameters(), *model[0].parameters())})
trainer.run([(torch.randn(4, 3), torch.randn(4, 1))])
trainer.ipu.close()
print(model[1].weight.grad)
""",
        config={"device_iterations": 1},
    )
    assert ran.output == ["None", "{None}", "None"]


@needs_half_precision
def test_a_scaler_becomes_automatic_loss_scaling(run):
    ran = run(
        HEAD
        + """
trainer = make_trainer(model, optimizer, nn.MSELoss(), device=device, amp_mode="amp", scaler=True)
trainer.run(data, max_epochs=1)
print(trainer.state.output < 10)
"""
    )
    assert ran.output == ["True"]
    assert "automatic loss scaling" in ran.became("create_supervised_trainer()")


def test_a_written_out_step_shares_its_model_with_an_evaluator(run):
    ran = run(
        HEAD
        + """
from ignite.engine import Engine
def step(engine, batch):
    model.train()
    optimizer.zero_grad()
    x, y = batch[0].to(device), batch[1].to(device)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
trainer = Engine(step)
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()}, device=device)
trainer.run(data, max_epochs=3)
evaluator.run(data)
x, y = data.dataset.tensors
weight, bias = [p.detach().clone() for p in model.parameters()]
print(abs(evaluator.state.metrics["mse"] - ((x @ weight.T + bias - y) ** 2).mean().item()) < 1e-5)
"""
    )
    assert ran.output == ["True"]


def test_a_written_out_step_accumulates_over_iterations(run, monkeypatch):
    """The weights are the native ones; handlers read in the iterations that make an update."""
    script = (
        HEAD.replace("cuda", "cpu")
        + """
from ignite.engine import Engine, Events
def step(engine, batch):
    loss = nn.functional.mse_loss(model(batch[0]), batch[1]) / 2
    loss.backward()
    if engine.state.iteration % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss.detach()}
trainer = Engine(step)
losses = []
every_second = Events.ITERATION_COMPLETED(every=2)
trainer.add_event_handler(every_second, lambda: losses.append(trainer.state.output["loss"].item()))
trainer.run(data, max_epochs=2, epoch_length=3)
print([round(value, 4) for value in (*losses, *model.weight.tolist()[0])])
"""
    )
    found = run(script).output
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == run(script).output


@pytest.mark.parametrize("config", [None, {"device_iterations": 1}], ids=["captured", "factory"])
def test_a_model_that_a_trainer_trains_may_be_called(run, config):
    ran = run(
        HEAD
        + """
trainer = make_trainer(model, optimizer, nn.MSELoss(), device)
trainer.run(data)
model.eval()
x = data.dataset.tensors[0]
with torch.no_grad():
    found = model(x)
weight, bias = [p.detach().clone() for p in model.parameters()]
print(torch.allclose(found, x @ weight.T + bias, atol=1e-6))
""",
        config=config,
    )
    assert ran.output == ["True"]
    assert "an inference program" in [each.became for each in ran.substitutions if each.original == "Linear()"]


def test_a_training_call_beside_a_factorys_trainer_is_refused(run):
    """One program trains a model."""
    script = f"{HEAD}\nmake_trainer(model, optimizer, nn.MSELoss(), device)\nmodel(torch.ones(1, 3))"
    with pytest.raises(RunError, match=r"a trainer trains this model already.* call model\.eval\(\) and use"):
        run(script, config={"device_iterations": 1})


def test_parallel_runs_in_this_process(run):
    ran = run(
        """
        import ignite.distributed as idist
        def training(rank):
            print(rank, idist.get_world_size())
        with idist.Parallel(backend="nccl") as parallel:
            parallel.run(training)
        """
    )
    assert [line for line in ran.output if line[0].isdigit()] == ["0 1"]


IN_PROCESSES = """
import sys
from pathlib import Path
import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer
from torch import nn
from torch.utils.data import TensorDataset
DATA = TensorDataset(torch.arange(24.0).view(8, 3) / 10, torch.arange(8.0)[:, None])
def training(rank, folder):
    torch.manual_seed(0)
    model = idist.auto_model(nn.Linear(3, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01))
    trainer = create_supervised_trainer(model, optimizer, nn.MSELoss(), idist.device())
    trainer.run(idist.auto_dataloader(DATA, batch_size=4, shuffle=False), max_epochs=2)
    torch.save(list(model.parameters()), Path(folder, f"{idist.get_world_size()}-{rank}.pt"))
if __name__ == "__main__":
    count = int(sys.argv[1])
    with idist.Parallel(backend="nccl", nproc_per_node=count, master_port=PORT) as parallel:
        parallel.run(training, sys.argv[2])
"""


@pytest.mark.usefixtures("forks_spawned")
def test_parallel_starts_processes_that_train_together(run, tmp_path):
    with reserved_port() as port:
        text = IN_PROCESSES.replace("PORT", str(port))
        ran = run(text, "2", str(tmp_path))
    assert ran.became("Parallel(nproc_per_node=2)") == "2 processes on gloo"
    assert ran.became("spawn(nprocs=2)") == "2 processes, each with its own IPUs"
    assert ran.became("auto_model()") == "the model, whose gradients are averaged over 2 processes"
    run(text.replace(", master_port=", ") as parallel:  # "), "1", str(tmp_path))
    expected, *found = [torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt")]
    for weights in found:
        torch.testing.assert_close(weights, expected)


def test_parallel_in_another_number_of_processes_than_launched_is_refused(run, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(RunError, match=r"Parallel\(nproc_per_node=2\).*LOCAL_WORLD_SIZE"):
        run("import ignite.distributed as idist\nidist.Parallel(backend='nccl', nproc_per_node=2)")


def test_a_main_function_in_parallel_resumes_from_its_checkpoint_as_natively(run, tmp_path, monkeypatch):
    """Of two epochs the first is saved, an error ends the second, and another call of `Parallel.run` goes on."""
    monkeypatch.chdir(tmp_path)
    text = """
        import json, torch
        import ignite.distributed as idist
        from ignite.engine import Engine, Events, create_supervised_evaluator
        from ignite.handlers import Checkpoint, DiskSaver, PiecewiseLinear
        from ignite.metrics import Accuracy, Loss
        from torch import nn
        from torch.utils.data import TensorDataset

        def training(rank, results, resume_from):
            torch.manual_seed(1)
            data = TensorDataset(torch.randn(16, 3, 4, 4), torch.randint(2, (16,)))
            loader = idist.auto_dataloader(data, batch_size=4, num_workers=0, shuffle=False)
            layers = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)
            model = idist.auto_model(nn.Sequential(*layers))
            optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True))
            loss_fn = nn.CrossEntropyLoss().to(idist.device())
            schedule = PiecewiseLinear(optimizer, "lr", [(0, 0.0), (4, 0.2), (8, 0.0)])
            scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)(enabled=False)

            def step(engine, batch):
                x, y = (part.to(idist.device(), non_blocking=True) for part in batch)
                model.train()
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                return loss.item()

            trainer = Engine(step)
            trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
            evaluator = create_supervised_evaluator(
                model, {"accuracy": Accuracy(), "loss": Loss(loss_fn)}, device=idist.device()
            )
            parts = {"trainer": trainer, "model": model, "optimizer": optimizer, "schedule": schedule}
            saver = Checkpoint(parts, DiskSaver("saved", create_dir=True, require_empty=False), n_saved=None)
            trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
            if resume_from is None:
                @trainer.on(Events.ITERATION_STARTED(once=7))
                def fail():
                    raise OSError("no power")
            else:
                Checkpoint.load_objects(parts, torch.load(resume_from, map_location="cpu", weights_only=False))

            @trainer.on(Events.EPOCH_COMPLETED)
            def evaluate():
                metrics = evaluator.run(loader).metrics
                rate = optimizer.param_groups[0]["lr"]
                results.extend([metrics["accuracy"], metrics["loss"], trainer.state.output, rate])

            try:
                trainer.run(loader, max_epochs=2)
            except OSError:
                pass

        results = []
        with idist.Parallel(backend="nccl" if torch.cuda.is_available() else None) as parallel:
            parallel.run(training, results, None)
            parallel.run(training, results, "saved/checkpoint_4.pt")
        print(json.dumps(results))
        """
    found = json.loads(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(json.loads(run(text).output[-1]), rel=1e-4, abs=1e-6)
    assert len(found) == 2 * 4


def test_parts_of_a_trained_model_are_evaluated_with_the_newest_weights(run, monkeypatch):
    """A handler that decodes, as for samples of an autoencoder, or looks at an encoder's output for a batch."""
    text = """
        import torch
        from torch import nn
        from ignite.engine import Events, create_supervised_trainer
        torch.manual_seed(0)
        class Autoencoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
            def decode(self, z):
                return torch.sigmoid(self.decoder(z))
            def forward(self, x):
                return self.decode(torch.tanh(self.encoder(x)))
        model = Autoencoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
        @trainer.on(Events.EPOCH_COMPLETED)
        def sample():
            model.eval()
            with torch.no_grad():
                print(model.decode(torch.ones(3, 2)).sum().item(), model.encoder(torch.ones(3, 4)).sum().item())
        trainer.run([(torch.rand(8, 4),) * 2 for _ in range(3)], max_epochs=2)
    """
    found = run(text).output
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = run(text).output
    assert len(set(native)) == 2
    values, expected = ([float(value) for line in lines for value in line.split()] for lines in (found, native))
    assert values == pytest.approx(expected)


SAVES_AND_THEN_DRAWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint
torch.manual_seed(0)
model = nn.Linear(3, 1)
data = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
evaluator = create_supervised_evaluator(model)
trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint({"trainer": trainer}, lambda *_: None))
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(data))
losses = []
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
trainer.run(data, max_epochs=3)
"""


def test_what_handlers_draw_after_a_checkpoint_counts_as_natively(run):
    """Epochs shuffle as in plain Ignite, whose engines go on from where an evaluation has left the generator."""
    native = {}
    exec(SAVES_AND_THEN_DRAWS, native)
    ran = run(SAVES_AND_THEN_DRAWS + "print(losses)")
    assert json.loads(ran.output[0]) == pytest.approx(native["losses"], rel=1e-5)
