"""Ingredients between a loss and the end of its update: gradients, steps and precisions."""

from __future__ import annotations

from typing import Any, Dict

import torch

from tests.differential.ingredient import Ingredient

_IMPORTANCE = (
    "with torch.no_grad():\n    both = [(p.grad * p, p * p.grad) for p in model.parameters() if p.grad is not None]"
)

_SCALED: Dict[str, Any] = {
    "complete": "scaler.unscale_(optimizer)",
    "wording": (
        (r"(\w+)\.backward\(", r"scaler.scale(\1).backward("),
        (r"(?m)^( *)optimizer\.step\(\)$", r"\1scaler.step(optimizer)\n\1scaler.update()"),
    ),
}

GRADIENTS: Dict[str, Ingredient] = {
    # gradients
    "changing norm": Ingredient(
        gradients="CLIP(model.parameters(), 0.5 if done < 2 else 0.2)", once="clipped", needs=("clips",)
    ),
    "norm sometimes": Ingredient(
        gradients="if done % 2:\n    CLIP(model.parameters(), 0.3)", once="clipped", needs=("clips",)
    ),
    "own norm": Ingredient(
        gradients="norm = CLIP(model.parameters(), 0.5 + 0.1 * epoch)",
        step='note("norm", float(norm))',
        once="clipped",
        needs=("clips",),
    ),
    "norm alone": Ingredient(
        gradients='size = CLIP(model.parameters(), float("inf"))', step='note("size", float(size))'
    ),
    "gradients read": Ingredient(
        gradients='note("gradients", [None if p.grad is None else p.grad.clone() for p in model.parameters()])'
    ),
    "importance": Ingredient(gradients=_IMPORTANCE, step='note("importance", both)', needs=("on_host",)),
    "importance after steps": Ingredient(step=_IMPORTANCE + '\nnote("importance after", both)'),
    "gradients halved": Ingredient(
        gradients="for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)",
        needs=("on_host",),
    ),
    "values clipped": Ingredient(
        # PyTorch clips no empty list.
        gradients="if any(p.grad is not None for p in model.parameters()):\n    CLIP_VALUE(model.parameters(), 0.05)",
        needs=("on_host",),
    ),
    "layers clipped": Ingredient(
        gradients="for p in model.parameters():\n    nn.utils.clip_grad_norm_([p], 0.1 + 0.1 * (done % 2))",
        once="clipped",
        needs=("on_host",),
    ),
    "gradient left out": Ingredient(
        gradients="if done % 2:\n    parameters[-1].grad = None", needs=("on_host", "keeps_weights")
    ),
    "stepped twice": Ingredient(
        update="if done % 2:\n    optimizer.step()", needs=("on_host", "updates_each_batch"), once="steps"
    ),
    # Natively a scaler would scale the gradients of the second loss once more.
    "sharpness": Ingredient(
        gradients=(
            "with torch.no_grad():\n"
            "    before = [p.clone() for p in model.parameters()]\n"
            "    for p in model.parameters():\n"
            "        if p.grad is not None:\n"
            "            p.add_(p.grad, alpha=0.05)\n"
            "optimizer.zero_grad()\n"
            "sharp = loss_fn(model(inputs), targets)\n"
            "sharp.backward()\n"
            "with torch.no_grad():\n"
            "    for p, old in zip(model.parameters(), before):\n"
            "        p.copy_(old)"
        ),
        needs=("on_host", "updates_each_batch", "writes_no_buffers", "trains_model_alone"),
        once="steps",
    ),
    "closure": Ingredient(closure=True, once="steps", needs=("updates_each_batch", "reads_after_steps")),
    "scaler switched off": Ingredient(
        setup="scaler = torch.cuda.amp.GradScaler()", once="steps", needs=("plain_loop",), **_SCALED
    ),
    "scaler": Ingredient(
        setup='scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)',
        once="steps",
        needs=("plain_loop", "trains_model_alone"),
        **_SCALED,
    ),
    "cleared to zeros": Ingredient(step="optimizer.zero_grad(set_to_none=False)", needs=("on_host",)),
    "gradient penalty by hand": Ingredient(
        gradients=(
            "total = sum(p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None)\n"
            "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.div_(1 + total.sqrt())"
        ),
        needs=("on_host",),
    ),
    "model cleared": Ingredient(
        wording=((r"(?<!\w)optimizer\.zero_grad\(", "model.zero_grad("),), needs=("trains_model_alone", "trains_all")
    ),
    "hook on a gradient": Ingredient(
        setup="parameters[-1].register_hook(lambda gradient: gradient * 0.5)", needs=("on_host", "keeps_weights")
    ),
    "second schedule": Ingredient(
        setup="second_schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)",
        update="second_schedule.step()",
        needs=("starts_fresh", "schedules_by_factors", "keeps_optimizer"),
    ),
    # gradients of inputs
    "attacked": Ingredient(
        loss=(
            "attacked = inputs.clone().requires_grad_()\n"
            "(slope,) = torch.autograd.grad(loss_fn(model(attacked), targets), attacked, retain_graph=True)\n"
            "moved = (inputs + 0.1 * slope / (slope.norm() + 1e-2)).detach()\n"
            "loss = loss + 0.5 * loss_fn(model(moved), targets)"
        ),
        needs=("on_host", "writes_no_buffers", "reaches_inputs"),
    ),
    "attacked by backward": Ingredient(
        loss=(
            "attacked = inputs.clone().requires_grad_()\n"
            "first = 0.5 * loss_fn(model(attacked), targets)\n"
            "first.backward(retain_graph=True)\n"
            "loss = loss + 0.5 * loss_fn(model((inputs + attacked.grad).detach()), targets)"
        ),
        needs=("on_host", "writes_no_buffers", "reaches_inputs"),
        once="steps",  # natively a scaler would scale the gradients of the inputs
    ),
    "penalty on slopes": Ingredient(
        loss=(
            "probe = inputs.clone().requires_grad_()\n"
            "(slope,) = torch.autograd.grad(model(probe).sum(), probe, create_graph=True)\n"
            "loss = loss + 0.1 * slope.pow(2).mean()"
        ),
        needs=("reaches_inputs", "calls_layers_once"),
    ),
    "penalty of a copy": Ingredient(
        gradients=(
            "twin = copy.deepcopy(model)\n"
            "probe = inputs.clone().requires_grad_()\n"
            "(slope,) = torch.autograd.grad(twin(probe).sum(), probe, create_graph=True)\n"
            "slope.pow(2).mean().backward()\n"
            "for p, other in zip(model.parameters(), twin.parameters()):\n"
            "    if p.grad is not None and other.grad is not None:\n"
            "        p.grad.add_(other.grad, alpha=0.1)"
        ),
        needs=("on_host", "copies_go_backward", "trains_all", "reaches_inputs", "calls_layers_once"),
    ),
    "saliency": Ingredient(
        end=(
            "model.eval()\n"
            "probe = x[:3].clone().requires_grad_()\n"
            'note("saliency", torch.autograd.grad(model(probe).pow(2).sum(), probe)[0])\n'
            "model.train()"
        ),
        needs=("on_host", "reaches_inputs"),
    ),
    # contexts
    "autocast": Ingredient(context="AUTOCAST"),
    "anomalies detected": Ingredient(context="torch.autograd.set_detect_anomaly(True)"),
}

if not hasattr(torch.amp, "GradScaler"):
    del GRADIENTS["scaler"]  # PyTorch 2.3 brought it to CPUs
