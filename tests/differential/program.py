"""`Program`: one random program, as values; drawn from a seed and a number, and nothing else."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Iterable, List, Sequence, Tuple

from tests.differential import parts
from tests.differential.ingredient import Ingredient
from tests.differential.ingredients import INGREDIENTS

FRONTS = ("engine", "step", "accelerate", "run", "ignite")
LOOPS = ("accelerate", "run")
SCRIPTS = ("run", "ignite")
UPDATES = ("auto", "device", "host")
#: How a run is interrupted, and goes on.
STORIES = {
    "engine": (
        *("once", "more epochs", "again", "terminate", "terminate epoch", "interrupt", "raise", "release"),
        *("resume", "resume at epoch", "new trainer", "from native", "to native"),
    ),
    "step": ("once", "more epochs", "again", "terminate", "interrupt", "raise", "restore"),
    "accelerate": ("once", "restore", "skip batches", "stop early"),
    "run": ("once", "restore", "stop early"),
    "ignite": ("once", "more epochs", "again", "terminate", "interrupt", "raise"),
}
# : Handlers of an engine, or code in a loop.
HANDLERS = {
    "engine": (
        *("events", "evaluate", "evaluate often", "average", "accuracy", "checkpoint", "ema", "early stopping"),
        *("early state", "share ipus", "deterministic", "step hook", "swa", "seed"),
    ),
    "step": (
        "events",
        "evaluate",
        "evaluate often",
        "average",
        "checkpoint",
        "early state",
        "predictions",
        "late zero",
    ),
    "accelerate": ("evaluate", "early state", "late zero", "loss before step", "gather", "set to none"),
    "run": ("evaluate", "early state", "late zero", "loss before step", "set to none"),
    "ignite": (
        *("events", "evaluate", "evaluate often", "average", "checkpoint", "ema", "swa", "early stopping"),
        *("early state", "late zero"),
    ),
}
DATA = ("loader", "shuffled", "generator", "list", "sampler", "iterable")
# : Edits of values that no checkpoint holds.
UNSAVED = ("freeze", "unfreeze", "attribute", "prune again")
UNSAVED_HANDLERS = ("events", "ema", "swa", "early stopping", "early state")


@dataclasses.dataclass(frozen=True)
class Edit:
    """Something that happens at a moment of the run.

    Attributes:
        what: A name in `parts.EDITS`.
        event: "iteration" or "epoch" for its end, "iteration start" or "epoch start", or "between" runs.
        number: Which of these, counted from 1.
    """

    what: str
    event: str
    number: int = 1


@dataclasses.dataclass(frozen=True)
class Program:
    """The description of one program. Every default is the simplest value.

    Attributes:
        seed: Of weights, data and shuffling.
        front: Who trains: "engine" for the factories, "step" for `ipu_step`, "accelerate"; in scripts that know nothing
            of devices "run" for a loop, and "ignite" for engines of Ignite's.
        model, loss, optimizer, groups, schedule: Names in the tables of `parts`.
        by_batch: Whether a schedule of PyTorch's is stepped after each update; after each epoch otherwise.
        data: The source of the batches.
        batch: Samples of a micro-batch.
        updates: Weight updates of one iteration (deviceIterations).
        accumulation: Micro-batches of one weight update and replica.
        inside: Whether a step accumulates within one iteration, and a loop within one epoch; over several otherwise. A
            script's engine is then that of Ignite's factory.
        update: Where a loop's weights are updated, as in `IPUConfig`.
        replicas: Replicas of the model.
        calls: Iterations of an epoch.
        rest: Samples that fill no iteration.
        epochs: Epochs.
        epoch_length: Iterations of an epoch if not all; 0 for all.
        clip: Norm that gradients are clipped to; 0 for none.
        handlers: Further handlers.
        ingredients: Additions to model, loss and loop, names in `INGREDIENTS`.
        edits: Changes on the way.
        story: How the run is interrupted.
        at: The iteration or update at which it is.
        every: Device calls between the copies of `Recovery`; 0 for no `Recovery`.
        faults: Device calls that fail.
        watched: Whether everything is looked at after each update, as `ignite-ipu parity` does. The program's own notes
            are compared otherwise: its updates wait until it runs them.
    """

    seed: int = 0
    front: str = "engine"
    model: str = "linear"
    loss: str = "mse"
    optimizer: str = "sgd"
    groups: str = "one"
    schedule: str = "none"
    by_batch: bool = True
    data: str = "loader"
    batch: int = 2
    updates: int = 1
    accumulation: int = 1
    inside: bool = False
    update: str = "auto"
    replicas: int = 1
    calls: int = 2
    rest: int = 0
    epochs: int = 1
    epoch_length: int = 0
    clip: float = 0.0
    handlers: Tuple[str, ...] = ()
    ingredients: Tuple[str, ...] = ()
    edits: Tuple[Edit, ...] = ()
    story: str = "once"
    at: int = 1
    every: int = 0
    faults: Tuple[int, ...] = ()
    watched: bool = False

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one iteration."""
        inside = self.front == "engine" or (self.front == "step" and self.inside)
        return self.updates * self.replicas * self.accumulation if inside else 1

    @property
    def samples(self) -> int:
        """Samples of the training data."""
        return self.batch * self.micro_batches * self.calls + self.rest

    @property
    def length(self) -> int:
        """Iterations that an epoch has."""
        return self.epoch_length or self.calls

    @property
    def period(self) -> int:
        """Iterations for one weight update, or more of them in one."""
        across = self.front in (*LOOPS, "ignite") or (self.front == "step" and not self.inside)
        return self.accumulation if across else 1

    @property
    def waits(self) -> bool:
        """Whether handlers or the end of an epoch may come between the losses of an update and the update."""
        batches = self.samples // self.batch if parts.MODELS[self.model].mixes else -(-self.samples // self.batch)
        over_epochs = self.front in ("step", "ignite") or (self.front == "run" and not self.inside)
        return over_epochs and self.period > 1 and (self.epoch_length or batches) % self.period > 0

    @property
    def story_ends_an_epoch(self) -> bool:
        """Whether an interruption comes with the last iteration of an epoch."""
        return self.story == "resume at epoch" or self.at % self.length == 0

    @property
    def rebuilds(self) -> bool:
        """Whether a second model takes the place of the first."""
        return self.story in ("resume", "resume at epoch", "restore", "skip batches")

    @property
    def unit(self) -> str:
        """The stepper of the schedule: "iteration", "epoch", "engine" or nothing."""
        unit = parts.SCHEDULES[self.schedule][1]
        return ("iteration" if self.by_batch else "epoch") if unit == "any" else unit

    @property
    def may_be_watched(self) -> bool:
        """Whether both sides run the same iterations: a device call may be several, a restart repeats some.

        Evaluators have the replicas of their trainer.
        """
        evaluates = any(handler.startswith("evaluate") for handler in self.handlers)
        same_calls = self.updates == 1 and not (evaluates and self.replicas > 1)
        one_side = self.story in ("resume", "resume at epoch", "from native", "to native")
        return same_calls and not one_side and not self.faults

    # Requirements of ingredients.

    @property
    def has_layers(self) -> bool:
        """Whether the model's layers are in it, to be replaced there."""
        return self.model != "linear"

    @property
    def place(self) -> str:
        """The code that trains: the front, or "ignite step" for a step of a script's engine that is written out."""
        return "ignite step" if self.front == "ignite" and not self.inside else self.front

    @property
    def on_host(self) -> bool:
        """Whether PyTorch may make updates of gradients that the device computes."""
        return self.place in (*LOOPS, "ignite step") and self.update != "device"

    @property
    def made(self) -> bool:
        """Whether the weights are there before the first call."""
        return not parts.MODELS[self.model].lazy

    @property
    def plain(self) -> bool:
        """Whether the first layer's weight is a parameter."""
        return not (parts.MODELS[self.model].parametrized or self._has_one("parametrized"))

    @property
    def copied(self) -> bool:
        """Whether a copy of the model is another model."""
        return self.model != "pruned" and self.made and all(INGREDIENTS[name].copied for name in self.ingredients)

    @property
    def copies_go_backward(self) -> bool:
        """Whether a copy of the model may be trained on the host, as in code that was ported."""
        return self.copied and self.front == "accelerate"

    @property
    def keeps_weights(self) -> bool:
        return not any(INGREDIENTS[name].replaces for name in self.ingredients)

    @property
    def writes_buffers(self) -> bool:
        """Whether a call of the model in training mode writes into buffers."""
        each = [INGREDIENTS[name].writes_buffers for name in self.ingredients]
        return parts.MODELS[self.model].writes_buffers or any(each)

    @property
    def writes_no_buffers(self) -> bool:
        return not self.writes_buffers

    @property
    def trains_alone(self) -> bool:
        """Whether an optimizer leaves out the first parameter."""
        return self.groups == "trained alone"

    @property
    def updates_each_batch(self) -> bool:
        return self.accumulation == 1

    @property
    def clips(self) -> bool:
        """Whether an ingredient may clip gradients, which nothing else does."""
        return not self.clip and parts.clips(self.optimizer) and self.trains_model_alone

    @property
    def trains_model_alone(self) -> bool:
        """Whether the optimizer has the model's parameters, and no others."""
        each = [INGREDIENTS[name] for name in self.ingredients]
        return not any(one.optimizer for one in each) and not self._has_one("optimizers")

    @property
    def starts_fresh(self) -> bool:
        return not self.rebuilds

    @property
    def remakes(self) -> bool:
        """Whether optimizer and schedule may be made anew."""
        return self.front == "run" and not self.rebuilds and not self.waits

    @property
    def calls_layers_once(self) -> bool:
        """False where PyTorch calls layers again for the gradients, and writes their buffers twice."""
        return self.model != "checkpointed"

    @property
    def trains_all(self) -> bool:
        """Whether the optimizer holds every parameter of the model, and no edit freezes one."""
        return self.groups not in ("frozen", "trained alone") and not any("freeze" in edit.what for edit in self.edits)

    @property
    def keeps_optimizer(self) -> bool:
        return not any("make_optimizer" in INGREDIENTS[name].end for name in self.ingredients)

    @property
    def schedules_by_factors(self) -> bool:
        """Whether schedules multiply the present rate, so that two go together."""
        return self.schedule in ("none", "exponential", "steps", "factors")

    @property
    def plain_loop(self) -> bool:
        """Whether updates are written out, and no library makes them."""
        return self.place in ("run", "ignite step")

    @property
    def reads_after_steps(self) -> bool:
        """Whether nothing is read between a loss and the step of its optimizer."""
        return "loss before step" not in self.handlers

    @property
    def reaches_inputs(self) -> bool:
        """Whether inputs may have gradients."""
        return not parts.MODELS[self.model].detaches

    @property
    def no_schedule(self) -> bool:
        return self.schedule == "none"

    def _has_one(self, kind: str) -> bool:
        return any(INGREDIENTS[name].once == kind != "" for name in self.ingredients)

    def size(self) -> int:
        """How much the program does beyond the simplest one."""
        return sum(
            len(getattr(self, field.name)) if isinstance(field.default, tuple) else 1
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )


def draw(seed: int, number: int) -> Program:
    """Return the program of that number in the campaign of that seed."""
    random_ = random.Random(f"differential {seed} {number}")
    front = random_.choices(FRONTS, (4, 3, 3, 5, 3))[0]

    def some(values: Sequence[str], least: float = 0.6) -> str:
        return random_.choice(values) if random_.random() < least else values[0]

    def mostly(values: Iterable[str], rare: Sequence[str]) -> str:
        takes_rare = random_.random() < 0.03 and rare
        return random_.choice(rare if takes_rare else [name for name in values if name not in rare])

    model = random_.choice(list(parts.MODELS))
    update = random_.choice(("auto", "auto", "auto", "host", "device"))
    anywhere = front in LOOPS and update != "device"
    optimizer = mostly(parts.OPTIMIZERS, () if anywhere else parts.NO_DEVICE_UPDATE)
    epochs = random_.choice((1, 2, 2, 3))
    calls = random_.choice((2, 3, 4, 5))
    program = Program(
        seed=random_.randrange(1000),
        front=front,
        model=model,
        loss=mostly(parts.LOSSES, parts.RARE_LOSSES),
        optimizer=optimizer,
        groups=some(list(parts.GROUPS), 0.5),
        schedule=some(list(parts.SCHEDULES)),
        by_batch=random_.random() < 0.6,
        data=some(DATA),
        batch=random_.choice((2, 3, 4)),
        updates=random_.choice((1, 1, 2, 3)),
        accumulation=random_.choice((1, 1, 2, 3)),
        inside=random_.random() < 0.5,
        update=update,
        replicas=random_.choice((1, 1, 1, 2)),
        calls=calls,
        rest=random_.choice((0, 0, 1, 3)),
        epochs=epochs,
        epoch_length=random_.choice((0, 0, 0, calls - 1, calls + 1)),
        clip=random_.choice((0.0, 0.0, 0.3 if anywhere or parts.clips(optimizer) or random_.random() < 0.1 else 0.0)),
        handlers=tuple(sorted(set(random_.choices(HANDLERS[front], k=random_.choice((0, 1, 2, 3)))))),
        edits=_edits(random_, model, calls, epochs),
        story=some(STORIES[front], 0.7),
        at=random_.randrange(1, calls * epochs + 1),
        every=random_.choice((0, 0, 1, 2, 50)),
        watched=random_.random() < 0.7,
    )
    calls_made = program.length * program.epochs
    faults = tuple(sorted(random_.sample(range(1, calls_made + 1), k=min(calls_made, random_.choice((1, 1, 2))))))
    program = sound(dataclasses.replace(program, faults=faults if program.every else ()))
    return sound(dataclasses.replace(program, ingredients=_ingredients(random_, program)))


def _ingredients(random_: random.Random, program: Program) -> Tuple[str, ...]:
    fitting = {name: each for name, each in INGREDIENTS.items() if _fits(each, program)}
    number = random_.choice((0, 1, 2, 3, 4) if program.front in LOOPS else (0, 0, 1, 2))
    # Choices that fit few programs come more often in those.
    weights = [1 + 2 * len(each.needs) + (20 if "trains_alone" in each.needs else 0) for each in fitting.values()]
    return tuple(sorted(set(random_.choices(list(fitting), weights, k=number))))


def _fits(ingredient: Ingredient, program: Program) -> bool:
    if ingredient.needs_weights and not program.made:
        return False
    return program.place in ingredient.places and all(getattr(program, need) for need in ingredient.needs)


def _edits(random_: random.Random, model: str, calls: int, epochs: int) -> Tuple[Edit, ...]:
    found: List[Edit] = []
    for _ in range(random_.choice((0, 1, 1, 2, 3))):
        own = parts.MODELS[model].edits
        what = random_.choice(own) if own and random_.random() < 0.4 else random_.choice(parts.COMMON_EDITS)
        events = ("iteration", "iteration", "iteration start", "epoch", "epoch", "epoch start", "between")
        event = random_.choice(events)
        number = random_.randrange(1, (calls * epochs if "iteration" in event else epochs) + 1)
        found.append(Edit(what, event, 1 if event == "between" else number))
    return tuple(sorted(set(found), key=str))


def sound(program: Program) -> Program:
    """Return the program without combinations that mean nothing, or that do not compute the same by their own rules."""

    def but(**changes: Any) -> None:
        nonlocal program
        program = dataclasses.replace(program, **changes)

    if not program.made and program.front not in (*LOOPS, "ignite"):
        but(front="run")
    if program.story not in STORIES[program.front]:
        but(story="once")
    but(handlers=tuple(handler for handler in program.handlers if handler in HANDLERS[program.front]))
    if program.front != "engine":
        but(updates=1, replicas=1, every=0, faults=())
    if program.front not in LOOPS:
        but(update="auto")
    if program.front == "ignite" and program.inside:
        but(clip=0.0, handlers=tuple(each for each in program.handlers if each != "late zero"))
    if not program.made:
        but(groups="one" if program.groups in ("no decay", "frozen", "trained alone") else program.groups)
        if program.front == "accelerate" and program.rebuilds:
            but(story="once")  # accelerate loads no state into weights that are not made
        # Adagrad makes its state with the optimizer.
        but(optimizer="rmsprop" if program.optimizer == "adagrad" else program.optimizer)
        but(handlers=tuple(each for each in program.handlers if each != "early state"))
    if parts.MODELS[program.model].evaluation_writes:
        # A device's evaluator calls the model in other batches.
        kept = program.handlers if program.front in LOOPS else ()
        but(handlers=tuple(each for each in program.handlers if each in kept or not each.startswith("evaluate")))
    if program.front in LOOPS:
        but(epoch_length=0, data=program.data if program.data in ("loader", "shuffled") else "loader")
        but(inside=program.inside and program.front == "run")
        if program.schedule.startswith("ignite"):
            but(schedule="exponential")
    if program.epoch_length < 0 or program.epoch_length == program.calls:
        but(epoch_length=0)
    if parts.MODELS[program.model].mixes:
        # Statistics of two samples amplify rounding, and every replica has statistics of its own.
        but(batch=max(program.batch, 4), replicas=1)
    if program.data == "list":
        but(rest=0)
    if program.data == "iterable" and program.rebuilds:
        but(data="loader")  # Ignite resumes nothing whose length it does not know
    momentum = program.optimizer in parts.WITH_MOMENTUM
    if program.schedule == "one cycle" and not (momentum or "adam" in program.optimizer):
        but(schedule="cosine")
    if program.schedule == "ignite momentum" and not momentum:
        but(schedule="ignite cosine")
    if not program.every:
        but(faults=())
    if program.story in ("from native", "to native", "new trainer", "release") and program.epochs < 2:
        but(epochs=2)
    if "deterministic" in program.handlers and program.data == "iterable":
        but(handlers=tuple(handler for handler in program.handlers if handler != "deterministic"))
    but(ingredients=_sound_ingredients(program))
    if not program.trains_model_alone:
        but(clip=0.0)  # a device clips the norm of all
    if program.writes_buffers:
        but(replicas=1)  # every replica has buffers of its own
    if program.waits and program.writes_buffers:
        # Between its losses and the update, buffers hold their previous values: docs/loop-limits.md.
        but(rest=0, epoch_length=0, calls=program.calls * program.period)
    if not program.copied:
        edits = tuple(edit for edit in program.edits if edit.what != "copy")
        but(edits=edits, handlers=tuple(each for each in program.handlers if each not in ("ema", "swa")))
    if program.front == "ignite" and program.waits:
        but(handlers=tuple(handler for handler in program.handlers if handler != "early stopping"))  # needs a loss
    if program.schedule == "plateau" and program.waits:
        but(schedule="steps")  # which needs no loss
    random_data = program.data in ("shuffled", "sampler")
    if program.story in ("resume", "resume at epoch") and random_data and program.story_ends_an_epoch:
        # Checkpoints pin the random state of the next epoch, before an evaluation draws from it.
        but(handlers=tuple(handler for handler in program.handlers if not handler.startswith("evaluate")))
    if program.story == "skip batches":
        updates = (program.calls - 1) // program.accumulation
        but(**({"at": min(program.at, updates)} if updates else {"story": "once"}))
    if program.rebuilds:
        # Averages and scores of a handler's own are in no checkpoint here.
        but(handlers=tuple(handler for handler in program.handlers if handler not in UNSAVED_HANDLERS))
    but(at=min(program.at, program.length * program.epochs), edits=_sound_edits(program))
    but(watched=program.watched and program.may_be_watched)
    return program


def _sound_ingredients(program: Program) -> Tuple[str, ...]:
    """Return the ingredients that a program may have, each looked at with those before it."""
    kept: Tuple[str, ...] = ()
    for name in program.ingredients:
        found, so_far = INGREDIENTS[name], dataclasses.replace(program, ingredients=kept)
        taken = not so_far.plain if found.once == "parametrized" else so_far._has_one(found.once)
        together = dataclasses.replace(program, ingredients=(*kept, name))
        if not taken and all(_fits(INGREDIENTS[each], together) for each in together.ingredients):
            kept = together.ingredients
    return kept


def _sound_edits(program: Program) -> Tuple[Edit, ...]:
    own = parts.MODELS[program.model].edits
    edits = [edit for edit in program.edits if edit.what in own or edit.what in parts.COMMON_EDITS]
    if program.optimizer not in parts.WITH_MOMENTUM:
        edits = [edit for edit in edits if edit.what not in ("momentum", "no momentum")]
    if "adam" not in program.optimizer:
        edits = [edit for edit in edits if edit.what != "betas"]
    if program.groups == "trained alone":
        edits = [edit for edit in edits if edit.what != "unfreeze"]
    if program.rebuilds:
        # Ignite begins a resumed epoch with its EPOCH_STARTED, again.
        events = ("between", "epoch start")
        edits = [edit for edit in edits if edit.what not in UNSAVED and edit.event not in events]
    if program.front in LOOPS or program.story not in ("more epochs", "again", "release", "new trainer"):
        edits = [edit for edit in edits if edit.event != "between"]
    if program.front in LOOPS or not program.made:
        edits = [edit for edit in edits if edit.event not in ("iteration start", "epoch start")]
    return tuple(edits)
