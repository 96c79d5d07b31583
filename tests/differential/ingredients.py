"""Ingredients of loops and models beyond the simplest, by name."""

from __future__ import annotations

import re
import textwrap
from typing import Dict, List, Mapping, Sequence

from tests.differential.gradients import GRADIENTS
from tests.differential.ingredient import Ingredient

PLAIN = {
    "AUTOCAST": 'torch.autocast("cuda", dtype=torch.float16)',  # without a GPU PyTorch switches it off
    "CLIP_VALUE": "nn.utils.clip_grad_value_",
    "CLIP": "nn.utils.clip_grad_norm_",
}
"""The calls that words of ingredients stand for, in plain PyTorch."""

_SWAP = """
def swap(model, old, new):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
    return new
"""

_LORA = """
class Lora(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))
"""

_WATCHED = """
class Watched(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(x)
        self.balance = y.pow(2).mean()
        return y
"""

_BOUNDED = """
class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, weight):
        return self.scale * torch.tanh(weight)
"""

_COLLATE = """
def collate(items):
    inputs, targets = torch.utils.data.default_collate(items)
    order = inputs.flatten(1).float().sum(1).argsort(descending=bool(inputs.float().mean() > 0))
    return inputs[order], targets[order]
"""

_AVERAGE = """
with torch.no_grad():
    for mean, new in zip(NAME.parameters(), model.parameters()):
        mean.mul_(0.9).add_(new.detach(), alpha=0.1)
    for mean, new in zip(NAME.buffers(), model.buffers()):
        mean.copy_(new)
"""

_REMADE = """
parameters = list(model.parameters())
optimizer = make_optimizer()
schedule = make_schedule()
"""


def _first_epoch(lines: str) -> str:
    return "if epoch == 0:\n" + textwrap.indent(lines.strip(), "    ")


def _evaluated(context: str, mode: str = "eval") -> str:
    return f'model.{mode}()\nwith {context}:\n    note("scores", model(x).detach().clone())\nmodel.train()\n'


INGREDIENTS: Dict[str, Ingredient] = {
    # models
    "spectral norm": Ingredient(
        model="nn.utils.parametrizations.spectral_norm(layer)",
        once="parametrized",
        writes_buffers=True,
        needs=("calls_layers_once",),
    ),
    "spectral norm by hooks": Ingredient(
        model="nn.utils.spectral_norm(layer)",
        once="parametrized",
        writes_buffers=True,
        copied=False,
        needs=("calls_layers_once",),
    ),
    "weight norm by hooks": Ingredient(model="nn.utils.weight_norm(layer)", once="parametrized", copied=False),
    "parametrized": Ingredient(
        classes=_BOUNDED,
        model='nn.utils.parametrize.register_parametrization(layer, "weight", Bounded())',
        once="parametrized",
    ),
    "lora": Ingredient(
        classes=_SWAP + _LORA, model="swap(model, layer, Lora(layer))", needs=("has_layers",), once="wrapped"
    ),
    # tensors that a call leaves behind
    "features": Ingredient(
        model=(
            "features = {}\nlayer.register_forward_hook(lambda module, inputs, output: features.update(last=output))"
        ),
        loss='loss = loss + 0.1 * features["last"].abs().mean()',
        copied=False,
    ),
    "balance": Ingredient(
        classes=_SWAP + _WATCHED,
        model="watched = swap(model, layer, Watched(layer))",
        loss="loss = loss + 0.1 * watched.balance",
        needs=("has_layers",),
        once="wrapped",
        copied=False,
    ),
    "features read": Ingredient(
        model=(
            "seen = {}\nlayer.register_forward_hook(lambda module, inputs, output: seen.update(mean=output.mean()))"
        ),
        step='note("seen", seen["mean"].item())',
        copied=False,
    ),
    "outputs kept": Ingredient(
        model=(
            "kept = []\nlayer.register_forward_hook(lambda module, inputs, output: kept.append(output.pow(2).mean()))"
        ),
        epoch="kept.clear()",
        loss="loss = loss + 0.1 * sum(kept)",
        cleanup="kept.clear()",
        step="kept.clear()",
        copied=False,
    ),
    # data
    "collated by value": Ingredient(classes=_COLLATE, collate="collate"),
    # losses
    "weights in loss": Ingredient(loss="loss = loss + 0.01 * sum(p.abs().sum() for p in model.parameters())"),
    "annealed": Ingredient(loss="loss = loss * (1.0 - 0.05 * done) + 0.01 * done * scores.pow(2).mean()"),
    "by classes": Ingredient(loss="loss = loss + 0.1 * (scores[:, :1] * scores[:, 1:]).pow(2).mean().sqrt()"),
    "two backwards": Ingredient(loss="extra = 0.1 * scores.pow(2).mean()\nextra.backward(retain_graph=True)"),
    "second call": Ingredient(
        loss="loss = loss + 0.1 * F.mse_loss(model(inputs.flip(0)), scores.flip(0).detach() + 0.1)",
        needs=("writes_no_buffers",),
    ),
    "loss read early": Ingredient(loss='note("early", loss.item())'),
    "running total": Ingredient(
        epoch="total = 0.0", loss="total = total + loss.detach()", end='note("total", float(total))'
    ),
    "temperature": Ingredient(
        model="temperature = nn.Parameter(torch.ones(()))",
        optimizer='optimizer.add_param_group({"params": [temperature]})',
        scores="scores = scores * temperature.exp() / 2.7",
    ),
    # several models
    "second model": Ingredient(
        model="second = nn.Sequential(nn.Linear(3, 3), nn.Tanh())",
        optimizer='optimizer.add_param_group({"params": list(second.parameters())})',
        scores="scores = scores + second(scores)",
        prepared=("second",),
    ),
    "second optimizer": Ingredient(
        model="aside = nn.Linear(3, 3)",
        setup="aside_optimizer = torch.optim.SGD(aside.parameters(), lr=0.05)",
        scores="scores = scores + aside(scores)",
        update="aside_optimizer.step()",
        step='aside_optimizer.zero_grad()\nnote("aside", float(aside.weight.norm()))',
        prepared=("aside", "aside_optimizer"),
        once="optimizers",
    ),
    "parts": Ingredient(
        setup="parameters[0].requires_grad_(True)\npart_optimizer = torch.optim.Adam(parameters[:1], eps=1e-4)",
        update="part_optimizer.step()",
        step="part_optimizer.zero_grad()",
        prepared=("part_optimizer",),
        once="optimizers",
        needs=("trains_alone",),
    ),
    "critic": Ingredient(
        model="critic = nn.Linear(3, 1)",
        setup="critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)",
        scores=(
            "critic_optimizer.zero_grad()\n"
            "critic_loss = (critic(scores.detach()) - 1).pow(2).mean()\n"
            "critic_loss.backward()\n"
            "critic_optimizer.step()\n"
            'note("critic", critic_loss.item())'
        ),
        loss="loss = loss + 0.1 * critic(scores).pow(2).mean()",
        prepared=("critic", "critic_optimizer"),
        once="optimizers",
        needs=("updates_each_batch",),
    ),
    "teacher": Ingredient(
        setup="teacher = copy.deepcopy(model).requires_grad_(False).eval()",
        loss="with torch.no_grad():\n    wanted = teacher(inputs)\nloss = loss + 0.1 * F.mse_loss(scores, wanted)",
        step=_AVERAGE.replace("NAME", "teacher"),
        needs=("copied", "keeps_weights"),
    ),
    "ema": Ingredient(
        setup="ema = copy.deepcopy(model)",
        step=_AVERAGE.replace("NAME", "ema"),
        end='ema.eval()\nwith torch.no_grad():\n    note("ema", ema(x).clone())',
        needs=("copied", "keeps_weights"),
    ),
    "swa": Ingredient(
        setup="averaged = torch.optim.swa_utils.AveragedModel(model)",
        end=(
            "averaged.update_parameters(model)\n"
            "torch.optim.swa_utils.update_bn([x], averaged)\n"
            'averaged.eval()\nwith torch.no_grad():\n    note("swa", averaged(x).clone())'
        ),
        needs=("copied", "keeps_weights"),
    ),
    "exponential swa": Ingredient(
        setup=(
            "moving = torch.optim.swa_utils.AveragedModel("
            "model, avg_fn=lambda before, now, times: 0.9 * before + 0.1 * now)"
        ),
        step="moving.update_parameters(model)",
        end='note("moving", copy.deepcopy(moving.module.state_dict()))',
        needs=("copied", "keeps_weights"),
    ),
    **GRADIENTS,
    # weights between updates
    "projected": Ingredient(step="with torch.no_grad():\n    parameters[-1].clamp_(-0.3, 0.3)"),
    "lookahead": Ingredient(
        setup="slow = [p.detach().clone() for p in model.parameters()]",
        step=(
            "if done % 2 == 0:\n"
            "    with torch.no_grad():\n"
            "        for p, s in zip(model.parameters(), slow):\n"
            "            s.lerp_(p, 0.5)\n"
            "            p.copy_(s)"
        ),
        needs=("keeps_weights",),
    ),
    "best kept": Ingredient(
        setup="best = None",
        step=(
            "if done == 1:\n"
            "    best = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())\n"
            "if done == 3:\n"
            "    model.load_state_dict(best[0])\n"
            "    optimizer.load_state_dict(best[1])"
        ),
        needs=("starts_fresh", "keeps_weights"),
    ),
    "saved and loaded": Ingredient(
        end=(
            'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/all.pt")\n'
            'saved = torch.load(folder + "/all.pt")\n'
            'model.load_state_dict(saved["model"])\n'
            'optimizer.load_state_dict(saved["optimizer"])'
        ),
    ),
    # other weights during training
    "new optimizer": Ingredient(end="optimizer.zero_grad()" + _REMADE, needs=("remakes",), once="optimizers"),
    "new head": Ingredient(
        classes=_SWAP,
        end=_first_epoch(
            "head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]\n"
            "torch.manual_seed(1)\n"
            "swap(model, head, nn.Linear(head.in_features, 3))" + _REMADE
        ),
        needs=("remakes", "has_layers"),
        once="optimizers",
        replaces=True,
    ),
    "lora later": Ingredient(
        classes=_SWAP + _LORA,
        end=_first_epoch("torch.manual_seed(1)\nswap(model, layer, Lora(layer))" + _REMADE),
        needs=("remakes", "has_layers"),
        once="optimizers",
        replaces=True,
    ),
    "pruned later": Ingredient(
        end=_first_epoch('prune.l1_unstructured(layer, "weight", 0.4)'),
        needs=("starts_fresh",),
        once="parametrized",
        copied=False,
        replaces=True,
    ),
    "pruned for good": Ingredient(
        end='prune.l1_unstructured(layer, "weight", 0.2)\nprune.remove(layer, "weight")',
        once="parametrized",
        replaces=True,
    ),
    "unfrozen later": Ingredient(
        end=_first_epoch('parameters[0].requires_grad_(True)\noptimizer.add_param_group({"params": parameters[:1]})'),
        needs=("trains_alone", "no_schedule", "starts_fresh"),
        once="optimizers",
    ),
    "module added later": Ingredient(
        model="late = nn.Linear(3, 3)\nlate.requires_grad_(False)",
        scores="scores = scores + late(scores)",
        end=_first_epoch("late.requires_grad_(True)\noptimizer.add_param_group({'params': list(late.parameters())})"),
        prepared=("late",),
        needs=("no_schedule", "starts_fresh"),
        once="optimizers",
    ),
    "layer wrapped later": Ingredient(
        classes=_SWAP,
        end=_first_epoch("swap(model, layer, nn.Sequential(layer, nn.Tanh()))"),
        needs=("has_layers", "starts_fresh"),
        copied=False,
        replaces=True,
    ),
    # evaluations
    "evaluated": Ingredient(end=_evaluated("torch.no_grad()")),
    "strides": Ingredient(
        scores="flat = (scores.t() * 2.0).t()",
        step=(
            "results = scores, flat, scores.t()\n"
            "sizes = [[(s, n) for s, n in zip(each.stride(), each.shape) if n > 1] for each in results]\n"
            'note("strides", sizes, flat.detach())'
        ),
    ),
    "noise like results": Ingredient(
        end=(
            "model.eval()\n"
            "with torch.no_grad():\n"
            "    found = model(x)\n"
            'note("noise", list(found.stride()), torch.randn_like(found), torch.rand_like(found.t()))\n'
            "model.train()"
        )
    ),
    "evaluated often": Ingredient(step=_evaluated("torch.no_grad()")),
    "inference mode": Ingredient(step=_evaluated("torch.inference_mode()")),
    "evaluated with gradients": Ingredient(end=_evaluated("contextlib.nullcontext()")),
    "evaluated in training": Ingredient(end=_evaluated("torch.no_grad()", "train"), needs=("writes_no_buffers",)),
    "layer evaluated": Ingredient(
        end='model.eval()\nwith torch.no_grad():\n    note("layer", layer(torch.ones(2, layer.in_features)).clone())'
    ),
    "frozen batch statistics": Ingredient(
        epoch="for module in model.modules():\n    if isinstance(module, nn.BatchNorm1d):\n        module.eval()"
    ),
    "modes of a layer": Ingredient(epoch="layer.train(epoch % 2 == 0)", needs=("has_layers",)),
}


def lines_of(names: Sequence[str], place: str) -> List[str]:
    """Return the lines of ingredients for a place of the script."""
    places = ("loss", "cleanup") if place == "loss" else (place,)
    return [line for each in places for name in names for line in getattr(INGREDIENTS[name], each).strip().splitlines()]


def in_contexts(names: Sequence[str], lines: List[str]) -> List[str]:
    """Return lines in the contexts of ingredients."""
    for context in lines_of(names, "context"):
        lines = [f"with {context}:", *textwrap.indent("\n".join(lines), "    ").splitlines()]
    return lines


def in_words(names: Sequence[str], lines: List[str], calls: Mapping[str, str]) -> List[str]:
    """Return lines in the wording of ingredients, and with the calls that their words stand for."""
    text = "\n".join(lines)
    for pattern, words in (each for name in names for each in INGREDIENTS[name].wording):
        text = re.sub(pattern, words, text)
    for word, call in calls.items():
        text = re.sub(rf"\b{word}\b", call, text)
    return text.splitlines()
