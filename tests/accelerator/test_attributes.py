"""Every public attribute and argument of accelerate's `Accelerator` is implemented, inherited or refused by name."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import accelerate.utils
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu.deferred.accelerator import IPUAccelerator
from ignite_ipu.errors import UnsupportedArgumentError
from tests.accelerate_state import forget

IMPLEMENTED = """
    autocast backward clip_grad_norm_ end_training free_memory gather gather_for_metrics load_state log multi_device
    pad_across_processes prepare_data_loader prepare_model prepare_optimizer reduce save_state
    wait_for_everyone
"""
REFUSED = "clip_grad_value_ lomo_backward"
# Their code in accelerate was read: it asks the attributes below, and touches neither gradients nor devices.
INHERITED = """
    accumulate check_trigger clear get_state_dict get_tracker gradient_accumulation_steps init_trackers
    local_main_process_first logging_dir main_process_first on_last_process on_local_main_process on_local_process
    on_main_process on_process prepare prepare_scheduler print profile project_dir register_for_checkpointing
    register_load_state_pre_hook register_save_state_pre_hook save save_iteration save_model set_trigger
    should_save_model skip_first_batches sync_gradients unwrap_model verify_device_map
"""
# How loaders are prepared.
LOADERS = "dispatch_batches even_batches non_blocking split_batches use_seedable_sampler use_stateful_dataloader"
# They are true of processes without a GPU, of one or of several.
PROCESSES = """
    device distributed_type is_last_process is_local_main_process is_main_process join_uneven_inputs
    local_process_index mixed_precision no_sync num_processes optimizer_step_was_skipped process_index
    split_between_processes trigger_sync_in_backward unscale_gradients use_distributed
    maybe_context_parallel use_fp16
"""
# The constructor refuses the arguments for them, so they are empty, or raise accelerate's own error.
PLUGINS = """
    context_parallel_rank data_parallel_rank data_parallel_shard_rank deepspeed_plugin deepspeed_ulysses_dl_adapter
    fp8_backend is_composable_parallelism_enabled is_fsdp2 parallelism_config pipeline_parallel_rank
    tensor_parallel_rank torch_device_mesh
"""

HONOURED_ARGUMENTS = """
    cpu dataloader_config device_placement even_batches dispatch_batches gradient_accumulation_plugin
    gradient_accumulation_steps kwargs_handlers log_with logging_dir mixed_precision project_config project_dir
    rng_types split_batches step_scheduler_with_optimizer use_seedable_sampler
"""
REFUSED_ARGUMENTS = """
    deepspeed_plugin deepspeed_plugins dynamo_backend dynamo_plugin fsdp_plugin megatron_lm_plugin parallelism_config
    torch_tp_plugin
"""
X = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def test_every_attribute_has_a_decision() -> None:
    """A new attribute of accelerate's is to be read before it is inherited."""
    own = set((IMPLEMENTED + " " + REFUSED).split())
    inherited = set((INHERITED + LOADERS + PROCESSES + PLUGINS).split())
    public = {name for name in dir(Accelerator) if not name.startswith("_")}
    assert not own & inherited
    assert not public - own - inherited, "attributes of accelerate.Accelerator that nobody decided about"
    assert {name for name in public if name in vars(IPUAccelerator)} == own & public
    added = {name for name in vars(IPUAccelerator) if not name.startswith("_")}
    assert not added - own, "an attribute that accelerate does not have"


def test_the_page_lists_them() -> None:
    """Every row of its table is one of the decisions above."""
    text = (Path(__file__).parents[2] / "docs" / "accelerate.md").read_text()
    table = text.partition("## Attributes and arguments of Accelerator")[2].partition("\n## ")[0]
    listed = [set(re.findall(r"`(\w+)`", line)) for line in table.splitlines() if line.startswith("| ") and "`" in line]
    groups = (IMPLEMENTED, REFUSED, INHERITED, LOADERS, PROCESSES, PLUGINS, HONOURED_ARGUMENTS, REFUSED_ARGUMENTS)
    assert listed == [set(group.split()) for group in groups]


def test_every_argument_has_a_decision() -> None:
    """The refused ones are refused by name."""
    decided = set((HONOURED_ARGUMENTS + REFUSED_ARGUMENTS).split())
    parameters = inspect.signature(Accelerator).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    assert not names - decided, "arguments of accelerate.Accelerator that nobody decided about"
    for name in names & set(REFUSED_ARGUMENTS.split()):
        with pytest.raises(UnsupportedArgumentError, match=f"{name}='auto': "):
            IPUAccelerator(**{name: "auto"})


def test_every_handler_has_a_decision() -> None:
    """Those for processes and profiles belong to accelerate; most others configure features that an IPU lacks."""
    handlers = [
        value
        for name, value in vars(accelerate.utils).items()
        if name.endswith("Kwargs") and isinstance(value, type) and issubclass(value, accelerate.utils.KwargsHandler)
    ]
    refused = set()
    for handler in handlers:
        if handler.__name__ in ("InitProcessGroupKwargs", "ProfileKwargs", "DistributedDataParallelKwargs"):
            IPUAccelerator(kwargs_handlers=[handler()])
            continue
        value = handler.__new__(handler)
        with pytest.raises(UnsupportedArgumentError, match=f"kwargs_handlers: {handler.__name__}"):
            IPUAccelerator(kwargs_handlers=[value])
        refused.add(handler.__name__)
    assert refused >= {"GradScalerKwargs", "AutocastKwargs"} & {handler.__name__ for handler in handlers}


def test_options_of_data_parallel_processes() -> None:
    """They change nothing in one process, as for accelerate, except hooks that compress gradients of replicas."""
    kwargs = accelerate.utils.DistributedDataParallelKwargs
    IPUAccelerator(kwargs_handlers=[kwargs(find_unused_parameters=True, static_graph=True, bucket_cap_mb=8)])
    forget()
    hooks = getattr(accelerate.utils, "DDPCommunicationHookType", None)
    if hooks is None:
        pytest.skip("accelerate 0.31 brought hooks on communication")
    IPUAccelerator(kwargs_handlers=[kwargs(comm_hook=hooks.FP16)])
    forget()
    with pytest.raises(UnsupportedArgumentError, match=r"DistributedDataParallelKwargs\(comm_hook='fp16'\)"):
        IPUAccelerator(
            kwargs_handlers=[kwargs(comm_hook=hooks.FP16)], replication_factor=2, gradient_accumulation_steps=2
        )


def test_arguments_by_position() -> None:
    """They have accelerate's meaning, and are refused by their names, too."""
    names = list(inspect.signature(Accelerator).parameters)
    values = {"gradient_accumulation_steps": 3, "cpu": False, "split_batches": False}
    accelerator = IPUAccelerator(*[values.get(name) for name in names[: names.index("cpu") + 1]])
    assert accelerator.gradient_accumulation_steps == 3 and accelerator.device.type == "cpu"
    before = [None] * names.index("fsdp_plugin")
    with pytest.raises(UnsupportedArgumentError, match="fsdp_plugin='auto': FSDP shards a model over GPUs"):
        IPUAccelerator(*before, "auto")
    with pytest.raises(TypeError, match="unexpected keyword argument 'precision'"):
        IPUAccelerator(precision="fp16")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_USE_FSDP", "true"),
        ("ACCELERATE_USE_MEGATRON_LM", "true"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"),
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
    ],
)
def test_the_launchers_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Features that `accelerate launch` requests are refused as the argument is, and nothing stays behind."""
    monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedArgumentError, match=f"{name}={value}"):
        IPUAccelerator()
    monkeypatch.setenv(name, "false" if value == "true" else "no")
    IPUAccelerator(mixed_precision="fp16")


def test_the_choice_of_another_accelerator() -> None:
    """accelerate keeps one choice per process, so that of an ordinary accelerator is found and named."""
    Accelerator(cpu=True, dynamo_backend="eager")
    with pytest.raises(UnsupportedArgumentError, match=r"has chosen dynamo_backend='.*EAGER'"):
        IPUAccelerator()


def test_what_a_step_cannot_do_is_refused_by_name() -> None:
    """Updating during backward, and number formats for a part of a step."""
    accelerator = IPUAccelerator()
    with pytest.raises(UnsupportedArgumentError, match=r"lomo_backward\(\.\.\., 0\.1\)"):
        accelerator.lomo_backward(torch.ones(()), 0.1)
    if not hasattr(accelerate.utils, "AutocastKwargs"):
        pytest.skip("accelerate 0.21 brought handlers of autocast")
    with pytest.raises(UnsupportedArgumentError, match=r"autocast\(\.\.\.\) with a handler"):
        accelerator.autocast(accelerate.utils.AutocastKwargs(enabled=False))


def test_loading_from_nowhere(tmp_path: Path) -> None:
    """accelerate's own errors: neither a name nor automatic names, and a folder that is not there."""
    if "input_dir: 'str'" in str(inspect.signature(Accelerator.load_state)):
        pytest.skip("this version of accelerate has no automatic names to load from")
    accelerator = IPUAccelerator(project_dir=str(tmp_path))
    with pytest.raises(ValueError, match="automatic checkpoint naming is disabled"):
        accelerator.load_state()
    with pytest.raises(ValueError, match="folder does not exist"):
        accelerator.load_state(str(tmp_path / "none"))


def prepared(accelerator: Any) -> Tuple[Any, ...]:
    """Return model, optimizer, schedule and loader, each prepared by its own method, in an order of no use."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    optimizer = accelerator.prepare_optimizer(optimizer)
    schedule = accelerator.prepare_scheduler(schedule)
    loader = accelerator.prepare_data_loader(DataLoader(TensorDataset(X, Y), batch_size=4))
    return accelerator.prepare_model(model), optimizer, schedule, loader


def by_hand(accelerator: Any) -> Tuple[nn.Module, List[Any]]:
    """Accumulate two micro-batches without `accumulate`, inside every context that has nothing to do."""
    model, optimizer, schedule, loader = prepared(accelerator)
    seen = []
    with accelerator.join_uneven_inputs([model], even_batches=False), accelerator.autocast():
        for number, (x, y) in enumerate(loader):
            if number % 2 == 0:
                with accelerator.no_sync(model):
                    accelerator.backward(F.cross_entropy(model(x), y) / 2)
                continue
            loss = F.cross_entropy(model(x), y)
            # Older versions need no trigger where no_sync has ended.
            with getattr(accelerator, "trigger_sync_in_backward", contextlib.nullcontext)(model):
                accelerator.backward(loss / 2)
            accelerator.unscale_gradients()
            optimizer.step()
            assert not accelerator.optimizer_step_was_skipped
            schedule.step()
            optimizer.zero_grad()
            with accelerator.split_between_processes([loss, 0]) as mine:
                seen.append(mine[0].item())
    return model, [*seen, schedule.get_last_lr()[0]]


def accumulating_across_epochs(accelerator: Any) -> Tuple[nn.Module, List[Any]]:
    """Five micro-batches in an epoch, three in an update, whatever an epoch's end is."""
    model, optimizer, schedule, loader = prepared(accelerator)
    updates, losses = [], []
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                updates.append(accelerator.sync_gradients)
    return model, [*updates, schedule.get_last_lr()[0], *map(float, losses)]


def _plugin(**arguments: Any) -> Dict[str, Any]:
    return {"gradient_accumulation_plugin": accelerate.utils.GradientAccumulationPlugin(num_steps=3, **arguments)}


_ACROSS_EPOCHS = pytest.mark.skipif(
    "sync_with_dataloader" not in inspect.signature(accelerate.utils.GradientAccumulationPlugin).parameters,
    reason="accelerate 0.22 brought accumulation across epochs",
)


@pytest.mark.parametrize(
    ("run", "arguments"),
    [
        (by_hand, dict),
        (by_hand, lambda: {"step_scheduler_with_optimizer": False, "rng_types": ["torch", "generator"]}),
        (by_hand, lambda: {"device_placement": False, "split_batches": True}),
        (accumulating_across_epochs, _plugin),
        pytest.param(
            accumulating_across_epochs,
            lambda: _plugin(sync_with_dataloader=False, adjust_scheduler=True),
            marks=_ACROSS_EPOCHS,
        ),
        pytest.param(
            accumulating_across_epochs,
            lambda: _plugin(sync_with_dataloader=False, adjust_scheduler=False),
            marks=_ACROSS_EPOCHS,
        ),
    ],
)
def test_results_are_accelerates(
    run: Callable[[Any], Tuple[nn.Module, List[Any]]], arguments: Callable[[], Dict[str, Any]]
) -> None:
    """Whatever is passed and inherited, weights, losses, updates and learning rates are those of accelerate's own."""
    native, expected = run(Accelerator(cpu=True, **arguments()))
    forget()
    model, found = run(IPUAccelerator(**arguments()))
    assert found == pytest.approx(expected, rel=1e-4)
    for mine, theirs in zip(model.parameters(), native.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # by PyTorch 2.0's own loading
def test_values_of_a_step_in_a_file(tmp_path: Path) -> None:
    """A checkpoint with the loss itself in it needs nothing of this library's when it is loaded."""
    accelerator = IPUAccelerator()
    model, optimizer, _, loader = prepared(accelerator)
    x, y = next(iter(loader))
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    accelerator.save({"loss": loss, "model": accelerator.get_state_dict(model)}, tmp_path / "all.bin")
    loaded = torch.load(tmp_path / "all.bin", weights_only=True)
    assert type(loaded["loss"]) is torch.Tensor and loaded["loss"].item() == loss.item()
    torch.testing.assert_close(loaded["model"]["0.weight"], model[0].weight.detach())


def test_native_runs_have_accelerates_own(monkeypatch):
    """Without settings of an IPU's program; clipping, which the loop would have to do, is refused."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    accelerator = IPUAccelerator(
        gradient_accumulation_steps=2, replication_factor=2, config={"variable": ["weight_decay"]}
    )
    assert type(accelerator) is accelerate.Accelerator
    assert accelerator.gradient_accumulation_steps == 2
    with pytest.raises(ValueError, match=r"max_grad_norm=1.0: this run is native .*Call accelerator.clip_grad_norm_"):
        IPUAccelerator(max_grad_norm=1.0)
