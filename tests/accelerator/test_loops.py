"""Loops written for accelerate give accelerate's own results."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, find_executable_batch_size, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUConfig, backend
from ignite_ipu.deferred import CaptureError, captured
from ignite_ipu.deferred.accelerator import IPUAccelerator
from ignite_ipu.deferred.model.history import WATCHED
from ignite_ipu.emulator.device import faults
from ignite_ipu.errors import UnsupportedArgumentError
from tests.accelerate_state import forget
from tests.half_precision import needs_half_precision

SAMPLES = 52
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def network() -> nn.Module:
    # No bias before the normalisation: its gradient is nothing but rounding, which Adam would blow up.
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def parts(accelerator: Any, batch_size: int = 4, drop_last: bool = True) -> Tuple[Any, ...]:
    """Return model, optimizer, loaders and scheduler, prepared."""
    set_seed(3)
    model = network()
    train = DataLoader(TensorDataset(X, Y), batch_size=batch_size, shuffle=True, drop_last=drop_last)
    test = DataLoader(TensorDataset(X, Y), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
    prepared: Tuple[Any, ...] = accelerator.prepare(model, optimizer, train, test, schedule)
    return prepared


def loop(accelerator: Any, clip: float = 0.0, epochs: int = 2, **more: Any) -> Tuple[nn.Module, List[Any]]:
    """Train and evaluate in the shape of accelerate's examples; return the model and the intermediate results."""
    model, optimizer, train, test, schedule = parts(accelerator, **more)
    seen = []
    for _ in range(epochs):
        model.train()
        total = 0
        for x, y in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x.to(accelerator.device)), y)
                total = total + loss.detach().float()
                accelerator.backward(loss)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = count = 0
        for x, y in test:
            with torch.no_grad():
                scores = model(x)
            found, wanted = accelerator.gather_for_metrics((scores.argmax(-1), y))
            right += (found == wanted).sum().item()
            count += len(wanted)
        assert count == SAMPLES
        seen.append((float(total), right, schedule.get_last_lr()[0]))
    return model, seen


def compared(run: Callable[[Any], Tuple[nn.Module, Any]], steps: int = 1, **arguments: Any) -> nn.Module:
    """Run something under both accelerators and compare weights and results; return the captured model."""
    native, expected = run(Accelerator(cpu=True, gradient_accumulation_steps=steps))
    forget()
    model, found = run(IPUAccelerator(gradient_accumulation_steps=steps, **arguments))
    for mine, theirs in zip(found, expected):
        assert mine == pytest.approx(theirs, rel=1e-4)
    same(model, native)
    return model


def same(model: nn.Module, native: nn.Module, tolerance: float = 2e-5) -> None:
    states: List[Dict[str, torch.Tensor]] = [model.state_dict(), native.state_dict()]
    for name, value in states[1].items():
        if value.is_floating_point():
            torch.testing.assert_close(states[0][name], value, rtol=1e-4, atol=tolerance)


def counters(model: nn.Module) -> Any:
    capture = captured(model)
    assert capture is not None and capture.session.training is not None
    return backend.poptorch().counters(capture.session.training.executor)


def test_plain_loop() -> None:
    """Weights, losses, accuracy and learning rates are accelerate's; one compilation, one transfer per evaluation.

    The first updates keep their previous weights, for updates on the host that may follow.
    """
    model = compared(loop)
    count = counters(model)
    assert (count.compiles, count.device_calls, count.weight_downloads) == (1, 26, 2 + WATCHED - 1)


def test_accumulation_and_clipping() -> None:
    """13 batches make updates of 4, 4, 4 and 1 micro-batches, clipped, with one scheduler step each."""
    compared(lambda accelerator: loop(accelerator, clip=0.3), steps=4)


def test_clipping_beside_a_teacher() -> None:
    """The parameters of one of two prepared models are clipped as accelerate clips them, from whatever they come."""

    def run(accelerator: Any) -> Tuple[nn.Module, Any]:
        set_seed(3)
        student, teacher = nn.Linear(6, 2), nn.Linear(6, 2)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
        student, teacher, optimizer = accelerator.prepare(student, teacher, optimizer)
        losses = []
        for number in range(6):
            with torch.no_grad():
                wanted = teacher.eval()(X[:8]) * 10
            loss = F.mse_loss(student(X[:8]), wanted)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(student.parameters() if number % 2 else [*student.parameters()], 0.1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return student, losses

    compared(run)


def test_schedules_count_updates_whatever_the_replicas() -> None:
    """Two replicas change neither weights nor schedules."""

    def run(accelerator: Any) -> Tuple[nn.Module, Any]:
        model, optimizer, train, _, schedule = parts(accelerator)
        model[1].momentum = 0.0  # no statistics that differ between replicas
        model.train()
        model[1].eval()
        for number, (x, y) in enumerate(train):
            if number == 12:
                break
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return model, [schedule.get_last_lr()[0]]

    model = compared(run, steps=4, replication_factor=2)
    assert counters(model).optimizer_updates == 3


def test_incomplete_last_batch_trains() -> None:
    """Without drop_last the last 2 samples of each epoch are trained on, as accelerate does."""
    compared(lambda accelerator: loop(accelerator, batch_size=10, drop_last=False))


def test_prepare_keeps_number_and_order_and_can_be_repeated() -> None:
    """The model stays the same object."""
    accelerator = IPUAccelerator()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    prepared = accelerator.prepare(loader, optimizer, model)
    assert prepared[2] is model and prepared[1].optimizer is optimizer and isinstance(prepared[0], DataLoader)
    assert accelerator.prepare(*prepared) == prepared
    assert accelerator.prepare(model) is model and accelerator.unwrap_model(model) is model
    assert isinstance(accelerator, Accelerator) and accelerator.is_main_process and accelerator.num_processes == 1


@pytest.mark.parametrize("first", [IPUAccelerator, Accelerator])
def test_what_is_prepared_one_by_one_can_be_prepared_together(first: Any) -> None:
    """As accelerate's own optimizers, which may be wrapped again, be it by another accelerator."""

    def run(accelerator: Any) -> Tuple[nn.Module, List[float]]:
        set_seed(3)
        model = accelerator.prepare_model(network())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for each in (first() if type(accelerator) is IPUAccelerator else accelerator, accelerator, accelerator):
            optimizer = each.prepare_optimizer(optimizer)
        model, optimizer = accelerator.prepare(model, optimizer)
        schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(X), Y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.free_memory()
        return model, losses

    compared(run)


def test_prepared_losses_stay_what_they_are() -> None:
    """Scripts prepare their loss modules, too."""

    def run(accelerator: Any) -> Tuple[nn.Module, List[float]]:
        model, optimizer, train, _, _ = parts(accelerator)
        criterion = accelerator.prepare(nn.CrossEntropyLoss())
        seen = []
        for x, y in train:
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        return model, seen

    compared(run)


def test_torch_compile_is_left_out() -> None:
    """The wrapper comes back with its names around the captured module; of DataParallel over one device the module."""
    model = network()
    accelerator = IPUAccelerator()
    compiled = torch.compile(model)
    assert accelerator.prepare(compiled) is compiled and captured(model) is not None
    if "keep_torch_compile" in inspect.signature(accelerator.unwrap_model).parameters:
        assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in model.state_dict()]
    other = network()
    assert accelerator.prepare(nn.DataParallel(other)) is other and captured(other) is not None


def test_reading_a_loss_while_gradients_accumulate() -> None:
    """`loss.item()` of each micro-batch gives accelerate's numbers."""

    def run(accelerator: Any) -> Tuple[nn.Module, List[float]]:
        model, optimizer, train, _, _ = parts(accelerator)
        seen = []
        for x, y in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                seen.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
        return model, seen

    compared(run, steps=2)


def test_reading_a_loss_after_backward() -> None:
    """`loss.item()` between backward and step gives accelerate's numbers."""

    def run(accelerator: Any) -> Tuple[nn.Module, Any]:
        model, optimizer, train, _, _ = parts(accelerator)
        losses = []
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            losses.append(accelerator.gather(loss).item())
            optimizer.step()
            optimizer.zero_grad()
        return model, losses

    compared(run)


def test_gathering_training_values() -> None:
    """gather, reduce and pad_across_processes give the values once the step has run."""
    accelerator = IPUAccelerator()
    model, optimizer, train, _, _ = parts(accelerator)
    x, y = next(iter(train))
    scores = model(x)
    loss = F.cross_entropy(scores, y)
    accelerator.backward(loss)
    optimizer.step()
    assert type(accelerator.gather(loss)) is torch.Tensor
    assert accelerator.gather_for_metrics({"scores": scores})["scores"].shape == (4, 2)
    assert accelerator.reduce(loss, "mean").item() == loss.item()
    assert accelerator.pad_across_processes(scores).shape == (4, 2)


def test_clipping_may_change(caplog: pytest.LogCaptureFixture) -> None:
    """Each norm is a constant of another program; moments and weights go on as in eager PyTorch."""
    found = []
    for make in (Accelerator, IPUAccelerator):
        forget()
        accelerator: Any = make(cpu=True)
        model, optimizer, train, _, _ = parts(accelerator)
        for (x, y), norm in zip(train, (0.0, 0.3, 0.3, 0.1, 0.0)):
            accelerator.backward(F.cross_entropy(model(x), y))
            if norm:
                found.append(float(accelerator.clip_grad_norm_(model.parameters(), norm)))
            optimizer.step()
            optimizer.zero_grad()
        found += [float(each.double().sum()) for each in model.state_dict().values()]
    assert found[len(found) // 2 :] == pytest.approx(found[: len(found) // 2], rel=1e-4)
    changes = [text[14:].split(" from ")[0] for text in caplog.messages if "the step is compiled again" in text]
    assert changes == ["clipped to 0.3", "clipped to 0.1", "not clipped"]


def test_clipping_that_changes_after_a_value_made_the_update_run() -> None:
    """It ran with the clipping of the update before."""
    accelerator = IPUAccelerator(config=IPUConfig(update="device"))
    model, optimizer, train, _, _ = parts(accelerator)
    x, y = next(iter(train))
    for norm in (0.5, 0.5, 0.4):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        loss.item()
        with contextlib.nullcontext() if norm == 0.5 else pytest.raises(CaptureError, match="Its gradients were"):
            accelerator.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()


def test_clipping_while_gradients_accumulate() -> None:
    """accelerate clips the sum of every micro-batch so far, which the device refuses; with its guard both clip once."""

    def run(accelerator: Any, guarded: bool = True) -> nn.Module:
        model, optimizer, train, _, _ = parts(accelerator)
        for x, y in train:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients or not guarded:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
        return model

    compared(lambda accelerator: (run(accelerator), []), steps=2)
    forget()
    accelerator = IPUAccelerator(gradient_accumulation_steps=2, config=IPUConfig(update="device"))
    with pytest.raises(
        CaptureError, match=r"clip_grad_norm_ at .*test_loops.py.*last of the 2 .*sync_gradients:' before"
    ):
        run(accelerator, guarded=False)
    compared(lambda accelerator: (run(accelerator, guarded=False), []), steps=2)


def test_clipping_some_parameters_or_by_value_is_refused() -> None:
    """A device clips the global norm of all gradients."""
    accelerator = IPUAccelerator(config=IPUConfig(update="device"))
    model, _, _, _, _ = parts(accelerator)
    accelerator.backward(F.cross_entropy(model(X[:4]), Y[:4]))
    with pytest.raises(CaptureError, match=r"leaves out \d trained parameters"):
        accelerator.clip_grad_norm_(model[0].parameters(), 1.0)
    with pytest.raises(CaptureError, match="2-norm only"):
        accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)
    with pytest.raises(UnsupportedArgumentError, match=r"clip_grad_value_\(..., 0.5\)"):
        accelerator.clip_grad_value_(model.parameters(), 0.5)


@pytest.mark.parametrize("name", ["deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "dynamo_backend"])
def test_arguments_for_gpus_are_refused_by_name(name: str) -> None:
    """With the reason."""
    with pytest.raises(UnsupportedArgumentError, match=name):
        IPUAccelerator(**{name: "inductor"})


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_number_formats_an_ipu_lacks(precision: str) -> None:
    """They are refused by name."""
    with pytest.raises(UnsupportedArgumentError, match=f"mixed_precision='{precision}'"):
        IPUAccelerator(mixed_precision=precision)


@needs_half_precision
def test_half_precision_products() -> None:
    """fp16 computes matrix products in half precision; training stays close to float32."""
    native, _ = loop(Accelerator(cpu=True))
    forget()
    accelerator = IPUAccelerator(mixed_precision="fp16")
    assert accelerator.mixed_precision == "fp16"
    model, _ = loop(accelerator)
    difference = max(
        (mine - theirs).abs().max().item() for mine, theirs in zip(model.parameters(), native.parameters())
    )
    assert 1e-6 < difference < 0.2


_SAVES_SAFELY = "safe_serialization" in inspect.signature(Accelerator.save_state).parameters
_SAFE = pytest.mark.skipif(not _SAVES_SAFELY, reason="accelerate 0.25 brought safetensors to save_state")


def _classifier() -> Tuple[List[nn.Module], List[Any], Any]:
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 2))
    return [model], [model.parameters()], lambda model, x, y: [F.cross_entropy(model(x), y)]


def _encoder_and_decoder() -> Tuple[List[nn.Module], List[Any], Any]:
    encoder, decoder = (nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 6)) for _ in range(2))
    parameters = [*encoder.parameters(), *decoder.parameters()]
    return [encoder, decoder], [parameters], lambda one, two, x, y: [F.cross_entropy(two(one(x)), y)]


def _generator_and_critic() -> Tuple[List[nn.Module], List[Any], Any]:
    generator = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3))
    critic = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 1))

    def losses(generator: Any, critic: Any, x: Any, y: Any) -> Iterator[Any]:
        made = generator(x)
        yield F.softplus(critic(made.detach())).mean() + F.softplus(-critic(x)).mean()
        yield F.softplus(-critic(made)).mean()

    return [generator, critic], [critic.parameters(), generator.parameters()], losses


def _parts_with_an_optimizer_each() -> Tuple[List[nn.Module], List[Any], Any]:
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 2))

    def losses(model: Any, x: Any, y: Any) -> Iterator[Any]:
        for _ in range(2):
            yield F.cross_entropy(model(x), y)

    return [model], [model[3].parameters(), model[1].parameters()], losses


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize(
    ("loop", "safe"),
    [
        pytest.param(_classifier, True, marks=_SAFE),
        (_classifier, False),
        (_encoder_and_decoder, False),
        (_generator_and_critic, False),
        (_parts_with_an_optimizer_each, False),
    ],
)
def test_resuming_in_the_middle_of_an_epoch_is_bit_exact(tmp_path: Path, loop: Any, safe: bool, update: Any) -> None:
    """save_state, load_state and skip_first_batches continue as if nothing had happened, dropout included.

    So does a state that is saved again as it was loaded, before a first update shows which models are trained together.
    """

    def run(stop: int, resume: bool) -> List[torch.Tensor]:
        forget()
        accelerator = IPUAccelerator(seed=7, config=IPUConfig(update=update))
        options = {"safe_serialization": safe} if _SAVES_SAFELY else {}
        set_seed(5)
        models, trained, losses = loop()
        optimizers = [torch.optim.AdamW(parameters, lr=0.05) for parameters in trained]
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8) for optimizer in optimizers]
        loader = DataLoader(TensorDataset(X, Y), batch_size=4)
        models = [accelerator.prepare(model) for model in models]
        optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
        loader, *schedules = accelerator.prepare(loader, *schedules)
        accelerator.register_for_checkpointing(*schedules)
        first = 0
        if resume:
            accelerator.load_state(str(tmp_path / "state"))
            accelerator.save_state(str(tmp_path / "again"), **options)
            accelerator.load_state(str(tmp_path / "again"))
            first = 5
        for number, (x, y) in enumerate(accelerator.skip_first_batches(loader, first), start=first):
            if number == 5 and not resume:
                accelerator.save_state(str(tmp_path / "state"), **options)
            if number == stop:
                break
            for loss, optimizer, schedule in zip(losses(*models, x, y), optimizers, schedules):
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
        return [value for model in models for value in model.state_dict().values()]

    whole, resumed = run(8, resume=False), run(8, resume=True)
    assert (tmp_path / "state" / ("model.safetensors" if safe else "pytorch_model.bin")).exists()
    for mine, theirs in zip(resumed, whole):
        assert torch.equal(mine, theirs)


def test_checkpoints_with_automatic_names(tmp_path: Path) -> None:
    """accelerate's directory names and limits hold; the newest is loaded when none is named."""
    project = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = IPUAccelerator(project_config=project)
    model, optimizer, train, _, _ = parts(accelerator)
    hooked: List[Any] = []
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: hooked.append(len(weights)))
    states = []
    for x, y in list(train)[:3]:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_1", "checkpoint_2"]
    with torch.no_grad():
        model[0].weight.zero_()
    accelerator.load_state()
    assert torch.equal(model.state_dict()["0.weight"], states[2]["0.weight"]) and hooked == [1, 1, 1]


@pytest.mark.skipif(not hasattr(Accelerator, "save_model"), reason="accelerate 0.21 brought save_model")
def test_saved_models_and_state_dicts(tmp_path: Path) -> None:
    """save_model and get_state_dict hold the trained weights."""
    accelerator = IPUAccelerator()
    model, _ = loop(accelerator, epochs=1)
    accelerator.save_model(model, str(tmp_path), safe_serialization=True)
    from safetensors.torch import load_file

    saved, state = load_file(str(tmp_path / "model.safetensors")), accelerator.get_state_dict(model)
    for name, value in model.state_dict().items():
        assert torch.equal(saved[name], value) and torch.equal(state[name], value)


@pytest.mark.skipif(
    "reduce_batch_size_fn" not in inspect.signature(find_executable_batch_size).parameters,
    reason="accelerate 1.1 brought other sizes than halves",
)
def test_batch_size_found_after_running_out_of_memory() -> None:
    """accelerate's own retry works, and a variant keeps the batch of an update by accumulating more."""
    accelerator = IPUAccelerator()
    tried = []

    def halve() -> int:
        return tried[-1] // 2

    @find_executable_batch_size(starting_batch_size=26, reduce_batch_size_fn=halve)
    def train(batch_size: int) -> nn.Module:
        tried.append(batch_size)
        accelerator.free_memory()
        accelerator.gradient_accumulation_steps = 26 // batch_size
        model, optimizer, loader, _, _ = parts(accelerator, batch_size=batch_size)
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        return model

    fault = faults.Fault(None, "Out of memory: 700 KiB needed on tile 4")
    with faults.inject_faults({0: fault}):
        model = train()
    assert tried == [26, 13]
    assert counters(model).optimizer_updates == 2


@pytest.mark.skipif(not hasattr(Accelerator, "set_trigger"), reason="accelerate 0.23 brought triggers")
def test_early_stopping_trigger_and_trackers(tmp_path: Path) -> None:
    """set_trigger, trackers and printing see values that the step settled."""
    logged: List[Any] = []

    from accelerate.tracking import GeneralTracker

    class Tracker(GeneralTracker):  # type: ignore[misc]
        name = "kept"
        requires_logging_directory = False
        tracker = None

        def store_init_configuration(self, values: Any) -> None:
            logged.append(values)

        def log(self, values: Any, step: Any = None, **kwargs: Any) -> None:
            logged.append((step, values))

    accelerator = IPUAccelerator(log_with=Tracker("run"))
    accelerator.init_trackers("run", config={"lr": 0.1})
    model, optimizer, train, _, _ = parts(accelerator)
    for number, (x, y) in enumerate(train):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=number)
        if number == 2:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            break
    accelerator.end_training()
    assert [entry[0] for entry in logged[1:]] == [0, 1, 2]
    assert all(type(entry[1]["loss"]) is torch.Tensor for entry in logged[1:])
    assert not accelerator.optimizer_step_was_skipped
    capture = captured(model)
    assert capture is not None and capture.session.training.executor is None  # type: ignore[union-attr]


def test_freed_models_are_ordinary() -> None:
    """free_memory gives IPUs back and releases prepared objects."""
    accelerator = IPUAccelerator()
    model, _ = loop(accelerator, epochs=1)
    accelerator.free_memory()
    assert captured(model) is None and accelerator._models == []
    assert type(model(X)) is torch.Tensor


def test_loaders_of_poptorch_are_refused() -> None:
    """The captured step joins micro-batches itself."""
    poptorch = backend.poptorch()
    loader = poptorch.DataLoader(poptorch.Options(), TensorDataset(X, Y), batch_size=4)
    with pytest.raises(UnsupportedArgumentError, match=r"Prepare a torch\.utils\.data\.DataLoader"):
        IPUAccelerator().prepare(loader)


@pytest.mark.skipif(not hasattr(Accelerator, "profile"), reason="accelerate 0.33 brought profile")
def test_autocast_and_profile_are_accelerates_own() -> None:
    """Their contexts surround a loop; `mixed_precision` decides on the device's types."""
    accelerator = IPUAccelerator()
    model, optimizer = accelerator.prepare(*_plain_pair())
    with accelerator.profile() as profile, accelerator.autocast():
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2))
        accelerator.backward(loss)
        optimizer.step()
    assert loss.item() > 0
    assert profile is not None


@pytest.mark.parametrize("train", [True, False])
def test_a_call_under_pytorchs_autocast_is_refused(train: bool) -> None:
    """PyTorch would compute in bfloat16, and the device does not."""
    accelerator = IPUAccelerator()
    model, _ = accelerator.prepare(*_plain_pair())
    model.train(train)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(CaptureError, match=r"Linear was.*torch\.autocast"):
        model(torch.ones(4, 3))
    with torch.autocast("cpu", enabled=False):
        assert model(torch.ones(4, 3)).dtype is torch.float32


def _plain_pair() -> tuple:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_without_trackers() -> None:
    """Logged values are dropped, and training ends."""
    accelerator = IPUAccelerator()
    model, optimizer, train, _, _ = parts(accelerator)
    for x, y in train:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss})
    accelerator.end_training()
    assert torch.isfinite(loss)
