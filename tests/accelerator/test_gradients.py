"""Gradients of a prepared model exist on the device alone: using them on the host is an error, never a silent no-op."""

from __future__ import annotations

import copy
import inspect
import io
from pathlib import Path
from typing import Any, Callable, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.accelerator import IPUAccelerator
from ignite_ipu.deferred import CaptureError

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
Use = Callable[[nn.Module], Any]


def trained(updates: int) -> Tuple[IPUAccelerator, Any, Any]:
    """Return accelerator, model and optimizer after some updates and one more backward."""
    torch.manual_seed(0)
    accelerator = IPUAccelerator()
    model: Any = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(updates):
        optimizer.zero_grad()
        backward(accelerator, model)
        optimizer.step()
    backward(accelerator, model)
    return accelerator, model, optimizer


def backward(accelerator: IPUAccelerator, model: nn.Module) -> None:
    accelerator.backward(F.cross_entropy(model(X), Y))


def scale_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 0.5


USES = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip_grad_norm_ foreach": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True),
    "clip_grad_value_": lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "get_total_norm": lambda model: nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]),
    "norm": lambda model: [p.grad.norm() for p in model.parameters() if p.grad is not None],
    "data": lambda model: next(model.parameters()).grad.data,
    "foreach": lambda model: torch._foreach_mul_([p.grad for p in model.parameters()], 0.5),
    "out": lambda model: torch.mul(torch.ones(()), 0.5, out=model[0].weight.grad),
    "item": lambda model: model[2].bias.grad[0].item(),
    "in place": scale_by_hand,
}


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", [name for name in USES if name != "get_total_norm" or hasattr(nn.utils, name)])
def test_using_gradients_is_refused(name: str, updates: int) -> None:
    """In the first update and in later ones, with the line and the remedy; nothing is trained by mistake."""
    _, model, _ = trained(updates)
    use: Use = USES[name]
    with pytest.raises(CaptureError, match=r"use accelerator\.clip_grad_norm_.*or IPUAccelerator\(max") as error:
        use(model)
    lines, first = inspect.getsourcelines(use)
    named = int(str(error.value).split(f"{__file__}:")[1].split(",")[0])
    assert first <= named < first + len(lines)


@pytest.mark.parametrize("read", [False, True])
def test_clipping_after_a_read_loss_or_an_evaluation_is_refused(read: bool) -> None:
    """What compiles a program in the middle of an update leaves no moment in which clipping does nothing."""
    accelerator, model, optimizer = trained(1)
    optimizer.step()
    loss = F.cross_entropy(model(X), Y)
    accelerator.backward(loss)
    if read:
        loss.item()
    else:
        model.eval()(X)
        model.train()
    with pytest.raises(CaptureError, match=r"clip_grad_norm_\(model\.parameters\(\)"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_clearing_gradients_by_hand_does_not_make_clipping_silent() -> None:
    """`parameter.grad = None` holds until the next backward, as in PyTorch."""
    accelerator, model, optimizer = trained(1)
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    backward(accelerator, model)
    with pytest.raises(CaptureError, match="exist on the device alone"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@pytest.mark.parametrize(
    "clear", [lambda model, optimizer: optimizer.zero_grad(), lambda model, optimizer: model.zero_grad()]
)
def test_clearing_gradients_keeps_clipping_refused(clear: Callable[[nn.Module, Any], None]) -> None:
    """Both ways of clearing keep what stands for gradients, and cost no loop over parameters."""
    accelerator, model, optimizer = trained(1)
    stand_in = model[0].weight.grad
    clear(model, optimizer)
    backward(accelerator, model)
    assert model[0].weight.grad is stand_in


def test_gradients_can_be_described() -> None:
    """Shape and type are those of the parameter; a debugger can show them."""
    _, model, _ = trained(1)
    gradient: Any = model[0].weight.grad
    assert (gradient.shape, gradient.dtype, gradient.dim(), gradient.device.type) == ((16, 6), torch.float32, 2, "cpu")
    assert repr(gradient) == "DeviceGradient(on the device alone)"


def test_copies_and_files_have_no_gradients(tmp_path: Path) -> None:
    """Copies of the model, averaged weights, pickles and states are made as ever, with the newest weights."""
    accelerator, model, optimizer = trained(2)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    file = io.BytesIO()
    torch.save(copy.deepcopy(list(model.parameters())), file)
    file.seek(0)
    loaded = torch.load(file)
    for others in (copy.deepcopy(model).parameters(), averaged.module.parameters(), loaded):
        for mine, theirs in zip(model.parameters(), others):
            assert theirs.grad is None and torch.equal(mine, theirs)
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    optimizer.step()


def test_moving_a_model_to_where_it_is() -> None:
    """`model.to(device)`, `float()` and `cpu()` leave a prepared model as it is."""
    accelerator, model, optimizer = trained(1)
    assert model.to(accelerator.device).float().cpu() is model
    assert model[0].to("cpu") is model[0]
    optimizer.step()


def test_a_freed_model_trains_on_the_host() -> None:
    """What stood for gradients is gone, and PyTorch's own take their place."""
    accelerator, model, _ = trained(1)
    accelerator.free_memory()
    assert all(parameter.grad is None for parameter in model.parameters())
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0


def test_frozen_parameters_have_none() -> None:
    """As in PyTorch."""
    accelerator = IPUAccelerator()
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    model, _ = accelerator.prepare(model, optimizer)
    backward(accelerator, model)
    assert [parameter.grad is None for parameter in model.parameters()] == [True, True, False, False]


def test_compilers_find_no_gradients() -> None:
    """Whatever PopTorch does with parameters that it traces, it meets none of our tensors."""
    seen = []

    class Watching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "ipu":
                with torch._C.DisableTorchFunction():
                    seen.append([gradient_of(parameter) for parameter in parameters])
            return super().forward(x)

    gradient_of = vars(torch._C.TensorBase)["grad"].__get__
    accelerator = IPUAccelerator()
    layer = Watching(6, 2)
    parameters = list(layer.parameters())
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    for rows in (4, 8):
        accelerator.backward(F.cross_entropy(model(X[:rows]), Y[:rows]))
        model.eval()(X[:rows, None])
        model.train()
        optimizer.step()
    assert [[gradient is None for gradient in each] for each in seen] == [[True, True]] * 4
