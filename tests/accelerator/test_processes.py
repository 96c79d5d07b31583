"""Loops of accelerate in several processes: the numbers are those of one process with the whole batches."""

from __future__ import annotations

import importlib
import os
import random
import sys
import types

import accelerate.utils
import pytest
import torch
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUAccelerator, IPUConfig
from ignite_ipu.emulator.popdist.instances import Job
from ignite_ipu.emulator.poprun import reserved_port
from tests.accelerate_state import forget
from tests.resilience.instances import kill_one
from tests.together import become_an_instance, together

DataLoaderConfiguration = getattr(accelerate.utils, "DataLoaderConfiguration", None)
if DataLoaderConfiguration is None:
    pytest.skip("this accelerate has no DataLoaderConfiguration", allow_module_level=True)

_SCRIPTS = "accelerate.test_utils.scripts"


def train(update="auto", norm=None, accumulation=1, seed_by_process=True, batch=8, split=True, places=None, **settings):
    """Train, and return the losses of the whole batches, the weights and the wrapper's class."""
    forget()
    own = DataLoaderConfiguration(split_batches=split)
    accelerator = IPUAccelerator(
        gradient_accumulation_steps=accumulation,
        dataloader_config=own,
        config=IPUConfig(update=update, **(places or {})),
        **settings,
    )
    torch.manual_seed(3 + (accelerator.process_index if seed_by_process else 0))
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if norm is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    inner = accelerator.unwrap_model(model)
    return losses, {name: each.clone() for name, each in inner.state_dict().items()}, type(model).__name__


def assert_equal(found, expected):
    (losses, weights, _), (wanted, others, _) = found, expected
    assert losses == pytest.approx(wanted, abs=1e-6)
    for name, each in weights.items():
        torch.testing.assert_close(each, others[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("update", "count"), [("device", 4), ("host", 2)])
def test_processes_train_as_one_does_with_the_whole_batches(update, count):
    """From the weights of process 0, as in DistributedDataParallel, which the prepared model is in."""
    found = together(train, update, count=count)
    for each in found:
        assert_equal(each, train("device"))
        assert each[2] == "DistributedDataParallel"


@pytest.mark.parametrize("update", ["device", "host"])
def test_accumulated_and_clipped_gradients_are_averaged_once(update):
    expected = train("device", 0.1, 3)
    for each in together(train, update, 0.1, 3):
        assert_equal(each, expected)


def whole_run(backend, folder, loaders, handlers=(), broken=None):
    """Train on shuffled data that does not divide, evaluate, save and load; return the results that a program sees."""
    os.environ["IGNITE_IPU_BACKEND"] = backend
    accelerator = IPUAccelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(**loaders),
        kwargs_handlers=list(handlers),
        project_dir=folder,
        step_scheduler_with_optimizer=True,
    )
    set_seed(5)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(52, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(52))
    train_loader, test_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    parts = model, optimizer, train_loader, test_loader, schedule
    model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(*parts)
    seen, rates, correct, order = [], [], [], []

    def epoch():
        model.train()
        for inputs, targets, numbers in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            seen.append(accelerator.reduce(loss.detach(), "mean").item())
            rates.append(schedule.get_last_lr()[0])
            order.extend(accelerator.gather(numbers).tolist())

    def evaluate():
        model.eval()
        found = []
        for inputs, targets, numbers in test_loader:
            with torch.no_grad():
                predicted = model(inputs).argmax(1)
            pairs = accelerator.gather_for_metrics((predicted, targets, numbers))
            found += zip(*[each.tolist() for each in pairs])
        correct.append([number for predicted, target, number in found if predicted == target])
        assert sorted(number for _, _, number in found) == list(range(52))

    epoch()
    evaluate()
    accelerator.save_state(os.path.join(folder, "state"))
    accelerator.wait_for_everyone()
    files = sorted(os.listdir(os.path.join(folder, "state")))
    epoch()
    after = accelerator.unwrap_model(model).state_dict()["0.weight"].clone()
    accelerator.load_state(os.path.join(folder, "state"))
    evaluate()
    with accelerator.main_process_first():
        order.append(accelerator.process_index)
    longer = torch.ones(1 + accelerator.process_index)
    padded = accelerator.gather(accelerator.pad_across_processes(longer)).tolist()
    state = {name: each.clone() for name, each in accelerator.get_state_dict(model).items()}
    return seen, rates, correct, order, after, padded, state, files


@pytest.mark.parametrize(
    "loaders",
    [
        {"use_seedable_sampler": True, "split_batches": True},
        {"dispatch_batches": True},
    ],
    ids=" ".join,
)
def test_whole_runs_are_those_of_accelerate_on_cpus(tmp_path, loaders):
    """Losses, learning rates, order and shares of data, evaluations, states: all that a process sees."""
    forget()
    expected = together(whole_run, "native", str(tmp_path / "native"), loaders)
    found = together(whole_run, "emulator", str(tmp_path / "ipu"), loaders)
    for own, native in zip(found, expected):
        seen, rates, correct, order, after, padded, state, files = own
        assert seen == pytest.approx(native[0], abs=1e-5)
        assert (rates, correct, order, padded) == (native[1], native[2], native[3], native[5])
        torch.testing.assert_close(after, native[4], rtol=1e-3, atol=1e-5)
        for name, each in state.items():
            torch.testing.assert_close(each, native[6][name], rtol=1e-3, atol=1e-5)
        assert set(files) - set(native[7]) == {"ipu_config.json", "ipu_random_states.json", "ipu_random_states_1.json"}
        assert not set(native[7]) - set(files)


def differing(update, what):
    """Train in processes that do different things; return the gradients, weights and the error."""
    os.environ["IGNITE_IPU_BACKEND"] = "native" if update == "native" else "emulator"
    config = None if update == "native" else IPUConfig(update=update)
    handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = IPUAccelerator(cpu=True, config=config, kwargs_handlers=[handler])
    rank = accelerator.process_index
    set_seed(1)
    model = nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Linear(3, 3)})
    model.forward = types.MethodType(_choose, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen = []
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(5 + rank if what == "shape" else 5, 3)
        loss = model(x, "second" if what == "graph" and rank else "first").square().mean() + (rank == what)
        accelerator.backward(loss)
        if what == "reads" and rank == 1 and step == 2:
            seen.append(accelerator.unwrap_model(model)["first"].weight.grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    seen += [each.detach().clone() for each in accelerator.unwrap_model(model).parameters()]
    return seen


def _choose(self, x, name):
    return self["first"](x) + (self["second"](x) if name == "second" else 0)


@pytest.mark.parametrize("what", ["graph", "reads"])
def test_processes_that_do_different_things_go_on_on_the_host(what):
    """With the numbers of DistributedDataParallel, which averages any gradients."""
    forget()
    for own, native in zip(together(differing, "auto", what), together(differing, "native", what)):
        for each, expected in zip(own, native):
            torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-6)


def test_updates_on_the_device_alone_name_the_difference():
    with pytest.raises(AssertionError) as found:
        together(differing, "device", "shape")
    assert str(found.value).count("CaptureError: The processes make different updates") == 2
    assert "process 0: 1 micro-batches, 4 operations, inputs of 5x3; process 1: 1 micro-batches" in str(found.value)


def in_poprun(instances, replicas, *args):
    """Train in an instance that PopRun has started, which describes it to PopTorch alone."""
    become_an_instance(Job(instances, replicas))
    return train(*args)


def test_instances_of_poprun_are_found_without_a_flag():
    """Two replicas in each share the micro-batches of an update."""
    expected = train("device", None, 2)
    for each in together(in_poprun, 2, 4, "device", None, 2):
        assert_equal(each, expected)


def over_two_ipus(launched, update, accumulation, places):
    """Train in a process whose launcher gives it so many IPUs."""
    if launched:
        os.environ.update(Job(2, 2, launched).variables(int(os.environ["RANK"])))
    return train(update, None, accumulation, places={"pipeline": ["0", "2"], **places})


@pytest.mark.parametrize(
    ("launched", "update", "accumulation", "places"),
    [
        (2, "device", 3, {}),
        (2, "host", 1, {"execution": "sharded"}),
        (None, "device", 1, {"split_batch": 4}),
        (None, "device", 1, {"split_batch": 4, "execution": "sharded", "replication_factor": 2}),
    ],
)
def test_processes_train_a_model_over_two_ipus_each(launched, update, accumulation, places):
    """Pipelined or sharded, in replicas, under a launcher that hands out the IPUs or not."""
    expected = train("device", None, accumulation)
    for each in together(over_two_ipus, launched, update, accumulation, places):
        assert_equal(each, expected)


def test_a_launcher_has_to_give_the_ipus_that_a_model_takes():
    with pytest.raises(AssertionError, match=r"takes 2 IPUs, and PopRun gives each 1.*--ipus-per-replica=2"):
        together(over_two_ipus, 1, "device", 3, {})


def go_on(folder, count):
    """Train one epoch and save it, or load that and train the next; returns the weights."""
    forget()
    own = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = IPUAccelerator(dataloader_config=own, cpu=True)
    set_seed(4)
    model = nn.Linear(4, 2)
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=12, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1), loader)
    for epoch in range(count):
        if epoch == count - 1 and os.path.exists(folder):
            accelerator.load_state(folder)
        loader.set_epoch(epoch)
        for inputs, targets in loader if epoch == count - 1 else ():
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.wait_for_everyone()
    accelerator.save_state(folder)
    return accelerator.unwrap_model(model).weight.detach().clone()


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """With batches split over processes and a seeded sampler the order of the data stays, and so do the numbers."""
    folder = str(tmp_path / "changing")
    together(go_on, folder, 1, count=2)
    together(go_on, folder, 2, count=3)
    found = go_on(folder, 3)
    folder = str(tmp_path / "alone")
    for epochs in (1, 2, 3):
        expected = go_on(folder, epochs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_others_end_with_the_name_of_a_killed_process():
    """Within seconds, wherever it is killed; `python -m tests.resilience instances` kills many."""
    for seed in range(2):
        kill_one(random.Random(seed))


SCRIPTS = {
    "test_script": {"is_bf16_available": lambda *_: False},
    "test_sync": {},
    "test_distributed_data_loop": {},
    "test_ops": {},
    "external_deps.test_metrics": {},
}


def run_script(name, update):
    """Run a test script of accelerate's in this process, with an accelerator for IPUs."""
    if name.endswith("test_metrics"):
        # Its parts for GPUs alone need these, and its imports.
        for library in ("datasets", "evaluate"):
            sys.modules[library] = types.ModuleType(library)
        levels = types.SimpleNamespace(set_verbosity_warning=lambda: None, set_verbosity_error=lambda: None)
        sys.modules["datasets"].load_dataset = None
        sys.modules["datasets"].utils = types.SimpleNamespace(logging=levels)
    module = importlib.import_module(f"{_SCRIPTS}.{name}")
    for library in ("datasets", "evaluate"):
        if getattr(sys.modules.get(library), "__spec__", library) is None:
            del sys.modules[library]

    def create(*args, **kwargs):
        return IPUAccelerator(*args, **kwargs, config=IPUConfig(update=update))

    module.Accelerator = create
    # An IPU has no bfloat16.
    vars(module).update(SCRIPTS[name])
    if name == "test_ops":
        create()  # whose processes its state describes
    if name == "test_distributed_data_loop" and not importlib.util.find_spec("torchdata"):
        module.test_stateful_dataloader = module.test_stateful_dataloader_save_state = lambda accelerator: None
    if name == "test_sync":
        # Parts that its main() leaves to GPUs.
        for split, dispatch, each_batch in ((True, False, False), (False, True, True), (False, False, True)):
            module.test_gradient_accumulation(split, dispatch, each_batch)
            module.test_gradient_accumulation_with_opt_and_scheduler(split, dispatch, each_batch)
    if name == "test_script" and os.environ["WORLD_SIZE"] != "2":
        module.test_split_between_processes_tensor = lambda: None  # it has two rows
    sys.argv = [name]
    module.main()


@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 2) for name in SCRIPTS), ("test_script", 4), ("test_ops", 4)],
)
def test_scripts_of_accelerate_pass(name, count):
    """Except parts for GPUs alone, and, in four processes, parts for two."""
    together(run_script, name, "auto", count=count)


NOTEBOOK = """
import sys
import torch
from accelerate import debug_launcher, notebook_launcher
from torch import nn
from ignite_ipu import IPUAccelerator
def training():
    accelerator = IPUAccelerator()
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 1), torch.arange(12.0).view(4, 3) / 10, torch.arange(4.0)[:, None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    rank, size = accelerator.process_index, accelerator.num_processes
    accelerator.backward(nn.functional.mse_loss(model(x[rank::size]), y[rank::size]))
    optimizer.step()
    sys.stdout.write(f"{size} {accelerator.unwrap_model(model).weight[0].tolist()}\\n")
notebook_launcher(training, num_processes=2, use_port=sys.argv[1])
debug_launcher(training, num_processes=2)
notebook_launcher(training, num_processes=1)
"""


def test_launchers_of_accelerate_start_the_processes_of_a_notebook(processes, tmp_path):
    path = tmp_path / "notebook.py"
    path.write_text(NOTEBOOK)
    with reserved_port() as port:
        done = processes.run([path, port], check=True)
    lines = [line for line in done.stdout.splitlines() if line[1:3] == " ["]
    alone, *others = (line.split(" ", 1) for line in sorted(lines))
    assert alone[0] == "1" and [count for count, _ in others] == ["2"] * 4
    for _, weights in others:
        torch.testing.assert_close(torch.tensor(eval(weights)), torch.tensor(eval(alone[1])))
