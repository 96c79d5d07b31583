"""Parts of programs, as source text by name; the first of each table is the simplest."""

from __future__ import annotations

import dataclasses
from typing import Dict, Tuple

from torch.nn.utils import parametrizations


@dataclasses.dataclass(frozen=True)
class Model:
    """A model with three outputs.

    Attributes:
        make: The expression that makes it.
        classes: Definitions that `make` needs.
        inputs: The expression of `n` inputs.
        edits: Edits of handlers for this model alone, beside `EDITS`.
        mixes: Whether the samples of a batch have to do with each other.
        writes_buffers: Whether a call in training mode writes into buffers.
        parametrized: Whether the first layer's weight is computed.
        detaches: Whether its inputs get no gradients.
        lazy: Whether weights are made by the first call.
        evaluation_writes: Whether a call in evaluation mode writes into buffers, too.
        composed: Whether no program can run its forward, so that a loop runs it function by function.
    """

    make: str
    classes: str = ""
    inputs: str = "torch.randn(n, 4)"
    edits: Tuple[str, ...] = ()
    mixes: bool = False
    writes_buffers: bool = False
    parametrized: bool = False
    detaches: bool = False
    lazy: bool = False
    evaluation_writes: bool = False
    composed: bool = False


MODELS: Dict[str, Model] = {
    "linear": Model("nn.Linear(4, 3)"),
    "mlp": Model("nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"),
    "layer norm": Model("nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))"),
    # No bias before the normalisation: its gradient is nothing but rounding.
    "batch norm": Model(
        "nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))",
        edits=("running mean",),
        mixes=True,
        writes_buffers=True,
    ),
    "convolution": Model(
        "nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3))"
    ),
    "embedding": Model(
        "nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3))",
        inputs="torch.randint(0, 6, (n, 2))",
        detaches=True,
    ),
    "lstm": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])
""",
        inputs="torch.randn(n, 3, 2)",
    ),
    "attention": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixed = nn.Linear(4, 12)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.mixed(x).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(1, 2) / 2, dim=-1)
        return self.head((scores @ v).mean(1))
""",
        inputs="torch.randn(n, 3, 4)",
    ),
    "tied": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inside(torch.tanh(self.inside(x)))))
""",
    ),
    "buffer": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return self.linear(x) * self.scale
""",
        edits=("buffer",),
    ),
    "written buffer": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        if self.training:
            self.scale.mul_(0.9).add_(0.05)
        return self.linear(x) * self.scale.clone()
""",
        edits=("buffer",),
        writes_buffers=True,
    ),
    "attribute": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.factor = 1.0

    def forward(self, x):
        return self.factor * self.linear(x)
""",
        edits=("attribute",),
    ),
    "calls counted": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1.0)
        return self.linear(x) * (1.0 + 0.01 * self.calls.clone())
""",
        writes_buffers=True,
        evaluation_writes=True,
    ),
    "transposed": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return (self.head.weight @ torch.tanh(self.inside(x)).t()).t()
""",
    ),
    "shared": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.inside(self.embedding(x)))).mean(1)[:, :3]
""",
        inputs="torch.randint(0, 6, (n, 2))",
        detaches=True,
    ),
    "without gradients": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            features = torch.tanh(self.inside(x))
        return self.head(features)
""",
        detaches=True,
    ),
    "in place": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = 2 * self.inside(x)
        y[:, :1].add_(1.0)
        y *= 0.5
        return self.head(torch.tanh(y))
""",
    ),
    "checkpointed": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(checkpoint(self.inside, x, use_reentrant=False))
""",
    ),
    "lazy": Model("nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 3))", lazy=True),
    "lazy convolution": Model(
        "nn.Sequential(nn.Unflatten(1, (1, 4)), nn.LazyConv1d(3, 2), nn.Flatten(), nn.LazyLinear(3))", lazy=True
    ),
    "weight norm": Model(
        "nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3))",
        parametrized=True,
    ),
    "pruned": Model(
        "nn.Sequential(prune.l1_unstructured(nn.Linear(4, 5), 'weight', 0.4), nn.Tanh(), nn.Linear(5, 3))",
        edits=("prune again",),
        parametrized=True,
    ),
    "steps counted": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.steps, self.means = 0, []

    def forward(self, x):
        scores = self.linear(x)
        if self.training:
            self.steps += 1
            self.means = [*self.means[-2:], scores.detach().mean()]
            scores = scores + 0.01 * sum(self.means)
        return scores * (1.0 + 0.05 * min(self.steps, 4))
""",
        composed=True,
    ),
    "deciding": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = torch.tanh(self.inside(x))
        if y[0, 0] > 0:
            y = y * 0.5
        return self.head(y) / max(float(self.head.weight.norm()), 0.5)
""",
        mixes=True,
        composed=True,
    ),
    "queue": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("queue", torch.zeros(6, 4))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = torch.tanh(self.inside(x))
        scores = self.head(y + 0.1 * self.queue.mean(0))
        if self.training:
            place = int(self.pointer)
            self.queue[place] = y.detach().mean(0)
            self.pointer.copy_(torch.tensor((place + 1) % 6))
        return scores
""",
        mixes=True,
        writes_buffers=True,
        composed=True,
    ),
    "bounded weight": Model(
        "Net()",
        classes="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            for weight in self.inside.parameters():
                weight.clamp_(-0.3, 0.3)
        return self.head(torch.tanh(self.inside(x)))
""",
        writes_buffers=True,  # or weights, for which the same holds
        composed=True,
    ),
}

if not hasattr(parametrizations, "weight_norm"):
    del MODELS["weight norm"]  # PyTorch 2.1 brought it

FLOATS = "torch.randn(n, 3)"
PROBABILITIES = "torch.rand(n, 3)"
CLASSES = "torch.randint(0, 3, (n,))"

# The loss function, and the kind of its targets.
LOSSES: Dict[str, Tuple[str, str]] = {
    "mse": ("nn.MSELoss()", FLOATS),
    "cross entropy": ("nn.CrossEntropyLoss()", CLASSES),
    "label smoothing": ("nn.CrossEntropyLoss(label_smoothing=0.1)", CLASSES),
    "sum": ('nn.CrossEntropyLoss(reduction="sum")', CLASSES),
    "smooth l1": ("nn.SmoothL1Loss()", FLOATS),
    "binary": ("nn.BCEWithLogitsLoss()", PROBABILITIES),
    "function": ("lambda scores, y: 0.5 * F.cross_entropy(scores, y) + 0.01 * scores.pow(2).mean()", CLASSES),
    "likelihood": ("lambda scores, y: F.nll_loss(F.log_softmax(scores, dim=1), y)", CLASSES),
    "weighted": ('lambda scores, y: (F.mse_loss(scores, y, reduction="none") * (y.abs() + 1)).mean()', FLOATS),
    "divergence": (
        'lambda scores, y: F.kl_div(F.log_softmax(scores, dim=1), y.softmax(dim=1), reduction="batchmean")',
        FLOATS,
    ),
    "detached": ("lambda scores, y: F.mse_loss(scores.detach(), y)", FLOATS),
}
RARE_LOSSES = ("label smoothing", "detached")

# Each `eps` is above rounding: the bias of attention's keys has gradients that are rounding alone.
OPTIMIZERS: Dict[str, str] = {
    "sgd": "torch.optim.SGD({groups}, lr=0.1)",
    "momentum": "torch.optim.SGD({groups}, lr=0.1, momentum=0.9)",
    "nesterov": "torch.optim.SGD({groups}, lr=0.1, momentum=0.8, nesterov=True)",
    "sgd with decay": "torch.optim.SGD({groups}, lr=0.1, weight_decay=0.1)",
    "momentum with decay": "torch.optim.SGD({groups}, lr=0.1, momentum=0.9, weight_decay=0.1)",
    "adam": "torch.optim.Adam({groups}, lr=0.02, eps=1e-5)",
    "adam with decay": "torch.optim.Adam({groups}, lr=0.02, eps=1e-5, weight_decay=0.1)",
    "adamw": "torch.optim.AdamW({groups}, lr=0.02, eps=1e-5, weight_decay=0.1)",
    "rmsprop": "torch.optim.RMSprop({groups}, lr=0.01, eps=1e-3)",
    "rmsprop with momentum": "torch.optim.RMSprop({groups}, lr=0.01, eps=1e-3, momentum=0.5)",
    "centered": "torch.optim.RMSprop({groups}, lr=0.01, eps=1e-2, centered=True, weight_decay=0.01)",
    "dampening": "torch.optim.SGD({groups}, lr=0.1, momentum=0.9, dampening=0.1)",
    "amsgrad": "torch.optim.Adam({groups}, lr=0.02, eps=1e-5, amsgrad=True)",
    "maximize": "torch.optim.SGD({groups}, lr=0.1, maximize=True)",
    "adagrad": "torch.optim.Adagrad({groups}, lr=0.1, eps=1e-5)",
    "nadam": "torch.optim.NAdam({groups}, lr=0.02, eps=1e-5)",
    "adadelta": "torch.optim.Adadelta({groups}, lr=0.5, eps=1e-3)",
}
NO_DEVICE_UPDATE = ("dampening", "amsgrad", "adagrad", "nadam", "adadelta")
WITH_MOMENTUM = ("momentum", "nesterov", "momentum with decay", "rmsprop with momentum")


def clips(optimizer: str) -> bool:
    """Return whether a device clips gradients for an optimizer."""
    return not (optimizer in WITH_MOMENTUM or optimizer in NO_DEVICE_UPDATE or "RMSprop" in OPTIMIZERS[optimizer])


GROUPS: Dict[str, str] = {
    "one": "model.parameters()",
    "rates": '[{"params": parameters[:1], "lr": 0.03}, {"params": parameters[1:]}]',
    "decays": '[{"params": parameters[:1], "weight_decay": 0.2}, {"params": parameters[1:], "weight_decay": 0.05}]',
    "no decay": (
        '[{"params": [p for p in parameters if p.dim() > 1]}, '
        '{"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]'
    ),
    "frozen": "parameters",
    "trained alone": "parameters[1:]",
}

# The schedule, and the unit that steps it: "any" if batches and epochs may; those of Ignite are attached to an engine.
_RATES = "torch.optim.lr_scheduler"
SCHEDULES: Dict[str, Tuple[str, str]] = {
    "none": ("", ""),
    "exponential": (f"{_RATES}.ExponentialLR(optimizer, 0.8)", "any"),
    "steps": (f"{_RATES}.StepLR(optimizer, 2, gamma=0.5)", "any"),
    "milestones": (f"{_RATES}.MultiStepLR(optimizer, [1, 5], gamma=0.5)", "any"),
    "constant": (f"{_RATES}.ConstantLR(optimizer, 0.5, total_iters=2)", "any"),
    "linear": (f"{_RATES}.LinearLR(optimizer, 0.3, total_iters=4)", "any"),
    "polynomial": (f"{_RATES}.PolynomialLR(optimizer, 5)", "any"),
    "cosine": (f"{_RATES}.CosineAnnealingLR(optimizer, 7)", "any"),
    "restarts": (f"{_RATES}.CosineAnnealingWarmRestarts(optimizer, 3)", "any"),
    "function": (f"{_RATES}.LambdaLR(optimizer, lambda step: 1 / (1 + step))", "any"),
    "factors": (f"{_RATES}.MultiplicativeLR(optimizer, lambda step: 0.9)", "any"),
    "chained": (
        f"{_RATES}.ChainedScheduler([{_RATES}.ConstantLR(optimizer, 0.2, total_iters=2), "
        f"{_RATES}.ExponentialLR(optimizer, 0.9)])",
        "any",
    ),
    "warm-up": (
        f"{_RATES}.SequentialLR(optimizer, [{_RATES}.LinearLR(optimizer, 0.2, total_iters=3), "
        f"{_RATES}.ExponentialLR(optimizer, 0.9)], [3])",
        "any",
    ),
    "one cycle": (f"{_RATES}.OneCycleLR(optimizer, 0.2, total_steps=400)", "any"),
    "cyclic": (f"{_RATES}.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, cycle_momentum=False)", "any"),
    "plateau": (f"{_RATES}.ReduceLROnPlateau(optimizer, patience=0)", "any"),
    "averaging": ("torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)", "any"),
    "ignite cosine": ('handlers.CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.01, 6)', "engine"),
    "ignite piecewise": (
        'handlers.PiecewiseLinear(optimizer, "lr", milestones_values=[(0, 0.01), (3, 0.1), (8, 0.02)])',
        "engine",
    ),
    "ignite momentum": ('handlers.LinearCyclicalScheduler(optimizer, "momentum", 0.9, 0.5, 6)', "engine"),
}

# The action of a handler, or of a loop between its steps; `model`, `optimizer`, `parameters` and `x` are in scope.
EDITS: Dict[str, str] = {
    "read weights": 'note("norms", [float(p.norm()) for p in model.parameters()])',
    "read state": 'note("state", copy.deepcopy(optimizer.state_dict()))',
    "copy": 'note("copy", {name: value.clone() for name, value in copy.deepcopy(model).state_dict().items()})',
    "clamp": "with torch.no_grad():\n    for p in model.parameters():\n        p.clamp_(-0.2, 0.2)",
    "clamp data": "for p in model.parameters():\n    p.data.clamp_(-0.2, 0.2)",
    "init": "nn.init.constant_(parameters[0], 0.05)",
    "replace data": "parameters[0].data = torch.full_like(parameters[0], 0.05)",
    "load": (
        "halves = {k: v * 0.5 if v.is_floating_point() else v for k, v in model.state_dict().items()}\n"
        "model.load_state_dict(halves)"
    ),
    "learning rate": 'for group in optimizer.param_groups:\n    group["lr"] *= 0.5',
    "one rate": 'optimizer.param_groups[-1]["lr"] = 0.03',
    "decay": 'for group in optimizer.param_groups:\n    group["weight_decay"] *= 0.5',
    "momentum": 'for group in optimizer.param_groups:\n    group["momentum"] = 0.6',
    "no momentum": 'for group in optimizer.param_groups:\n    group["momentum"] = 0.0',
    "betas": 'for group in optimizer.param_groups:\n    group["betas"] = (0.8, 0.95)',
    "load optimizer": "optimizer.load_state_dict(optimizer.state_dict())",
    "reset moments": (
        "state = optimizer.state_dict()\n"
        'for slots in state["state"].values():\n'
        "    for name, value in slots.items():\n"
        '        if value is not None and name != "step":\n'
        "            slots[name] = torch.zeros_like(value)\n"
        "optimizer.load_state_dict(state)"
    ),
    "freeze": "parameters[0].requires_grad_(False)",
    "unfreeze": "parameters[0].requires_grad_(True)",
    "evaluation mode": "model.eval()",
    "running mean": "model[1].running_mean.mul_(0.5)",
    "buffer": "model.scale.mul_(0.5)",
    "attribute": "model.factor *= 0.5",
    "prune again": "prune.l1_unstructured(layer, 'weight', 0.3)",
}
MODEL_EDITS = {edit for model in MODELS.values() for edit in model.edits}
COMMON_EDITS = tuple(edit for edit in EDITS if edit not in MODEL_EDITS)
