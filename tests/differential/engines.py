"""Jobs of Ignite engines: those of `create_ipu_trainer`, and hand-written steps in `ipu_step`."""

from __future__ import annotations

import textwrap
from typing import Dict, List

from tests.differential import parts
from tests.differential.ingredients import PLAIN, in_contexts, in_words, lines_of
from tests.differential.program import Edit, Program

# : Handlers attached to a trainer; `loss` stands for the loss in its output.
_HANDLERS: Dict[str, str] = {
    "events": """
        def note_event(name):
            note("event", name, trainer.state.epoch, trainer.state.iteration)

        for event in Events:
            if event is not Events.EXCEPTION_RAISED:  # with a handler, nothing is raised
                trainer.add_event_handler(event, lambda *_, name=event.name, **__: note_event(name))
    """,
    "average": """
        Average(output_transform=lambda output: LOSS).attach(trainer, "average")
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: note("average", dict(trainer.state.metrics)))
    """,
    "accuracy": """
        METRIC(output_transform=lambda output: output[:2]).attach(trainer, "training")
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: note("training", trainer.state.metrics["training"]))
    """,
    "checkpoint": """
        def save(content, name, metadata=None):
            note("checkpoint", name, copy.deepcopy(content))

        trainer.add_event_handler(
            Events.EPOCH_COMPLETED, handlers.Checkpoint({"model": model, "optimizer": optimizer}, save, n_saved=None)
        )
    """,
    "ema": """
        ema = handlers.EMAHandler(model, momentum=0.3)
        ema.attach(trainer)
        trainer.add_event_handler(Events.COMPLETED, lambda: note("ema", copy.deepcopy(ema.ema_model.state_dict())))
    """,
    "swa": """
        averaged = torch.optim.swa_utils.AveragedModel(model)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: averaged.update_parameters(model))
        trainer.add_event_handler(Events.COMPLETED, lambda: note("swa", copy.deepcopy(averaged.state_dict())))
    """,
    "early stopping": """
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED, handlers.EarlyStopping(1, lambda trainer: -LAST, trainer)
        )
    """,
    "step hook": """
        optimizer.register_step_post_hook(lambda *_: note("step"))
    """,
}
_CHOICES = ("early state", "share ipus", "deterministic", "seed", "predictions", "late zero")
_EVENTS = {
    "iteration": "ITERATION_COMPLETED",
    "iteration start": "ITERATION_STARTED",
    "epoch": "EPOCH_COMPLETED",
    "epoch start": "EPOCH_STARTED",
}


def engine_job(program: Program) -> List[str]:
    """Return the lines of a job after its model, optimizer and schedule."""
    swaps = program.story in ("new trainer", "from native", "to native")
    trainer = [*_loader(program), *_trainer(program), *_attached(program)]
    if swaps:
        trainer = ["def make(device):", *_indented([*trainer, "return trainer, loader"]), ""]
    lines = [*_loss_function(program), *_before(program), *trainer, *_story(program)]
    lines.append('note("weights", copy.deepcopy(model.state_dict()))')
    lines.append('note("optimizer", copy.deepcopy(optimizer.state_dict()))')
    if "early state" in program.handlers:
        lines.append('note("early state", copy.deepcopy(early), copy.deepcopy(early_state))')
    if program.front == "engine":
        lines += ['if device and hasattr(trainer, "ipu"):', "    trainer.ipu.close()"]
        lines.append('note("closed", copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))')
    return lines


def _loss_function(program: Program) -> List[str]:
    """Return a wrapper of loss functions that adds the terms of an engine's ingredients; metrics use none."""
    added = lines_of(program.ingredients, "loss")
    if program.front == "step" or (program.front == "ignite" and not program.inside) or not added:
        return []
    body = ["loss = loss_fn(scores, targets)", *added, "return loss"]
    return ["def whole_loss(scores, targets):", *_indented(body), ""]


def edit_lines(edit: Edit) -> List[str]:
    """Return the action of an edit, without its moment."""
    return parts.EDITS[edit.what].splitlines()


def _before(program: Program) -> List[str]:
    early = "early, early_state = model.state_dict(), optimizer.state_dict()"
    return [early] if "early state" in program.handlers else []


def _loader(program: Program) -> List[str]:
    batch, whole = program.batch, program.batch * program.micro_batches
    if program.data == "list":
        return [f"loader = [(x[i : i + {whole}], y[i : i + {whole}]) for i in range(0, n, {whole})]"]
    size = f"{batch} if device else {whole}" if program.front == "engine" and batch != whole else str(whole)
    dataset = "Stream(x, y)" if program.data == "iterable" else "TensorDataset(x, y)"
    more = {
        "shuffled": ", shuffle=True",
        "generator": f", shuffle=True, generator=torch.Generator().manual_seed({program.seed})",
        "sampler": ", sampler=WeightedRandomSampler(torch.arange(1.0, n + 1), n)",
    }.get(program.data, "")
    # The factories' training drops samples that do not fill a call; parts of a step have one size.
    drops = program.front == "engine" or program.micro_batches > 1 or parts.MODELS[program.model].mixes
    return [f"loader = DataLoader({dataset}, batch_size={size}{more}{', drop_last=True' if drops else ''})"]


def _trainer(program: Program) -> List[str]:
    if program.front == "ignite" and program.inside:
        steps = f", gradient_accumulation_steps={program.accumulation}" if program.accumulation > 1 else ""
        loss = "whole_loss" if lines_of(program.ingredients, "loss") else "loss_fn"
        return [f"trainer = create_supervised_trainer(model, optimizer, {loss}{steps})"]
    return _factory_trainer(program) if program.front == "engine" else _step_trainer(program)


def _factory_trainer(program: Program) -> List[str]:
    predictions = "accuracy" in program.handlers
    loss = "whole_loss" if lines_of(program.ingredients, "loss") else "loss_fn"
    both = ["output_transform=lambda x, y, y_pred, loss: (y_pred, y, loss.item())"] if predictions else []
    if "deterministic" in program.handlers:
        both.append("deterministic=True")
    own = [
        f"{name}={value}"
        for name, value, least in (
            ("gradient_accumulation_steps", program.accumulation, 1),
            ("device_iterations", program.updates, 1),
            ("replication_factor", program.replicas, 1),
            ("max_grad_norm", program.clip, 0.0),
        )
        if value != least
    ]
    if "share ipus" in program.handlers:
        own.append("config={'share_ipus': True}")
    if "seed" in program.handlers:
        own.append("seed=5")
    lines = ["if device:", f"    trainer = {_call('create_ipu_trainer', loss, [*both, *own])}"]
    if program.every:
        lines.append(f'    Recovery(folder + "/recovery", every={program.every}, backoff=0.0).attach(trainer)')
    lines.append("else:")
    if "seed" in program.handlers:
        lines.append("    torch.manual_seed(5)")
    if program.micro_batches == 1 and not program.clip:
        return [*lines, f"    trainer = {_call('create_supervised_trainer', loss, both)}"]
    return [*lines, *_indented(_native_step(program, loss, predictions)), ""]


def _call(factory: str, loss: str, arguments: List[str]) -> str:
    return f"{factory}({', '.join(['model', 'optimizer', loss, *arguments])})"


def _native_step(program: Program, loss: str, predictions: bool) -> List[str]:
    """Return a step in plain PyTorch that computes the same as one device call."""
    of_one = program.accumulation * program.replicas
    start, update = ["optimizer.zero_grad()"], [*_clipped(program), "optimizer.step()"]
    if of_one > 1:
        start = [f"if number % {of_one} == 0:", *_indented(start)]
        update = [f"if number % {of_one} == {of_one - 1}:", *_indented(update)]
    loop = [
        *start,
        "scores = model(inputs)",
        f"loss = {loss}(scores, targets)",
        f"(loss / {of_one}).backward()" if of_one > 1 else "loss.backward()",
        "losses.append(loss.item())",
        *(["outputs.append(scores.detach())"] if predictions else []),
        *update,
    ]
    body = [
        "model.train()",
        f"losses{', outputs = [], []' if predictions else ' = []'}",
        f"parts = zip(*(part.split({program.batch}) for part in batch))",
        f"for {'number, (inputs, targets) in enumerate(parts)' if of_one > 1 else 'inputs, targets in parts'}:",
        *_indented(loop),
        "mean = sum(losses) / len(losses)",
        f"return {'torch.cat(outputs), batch[1], mean' if predictions else 'mean'}",
    ]
    engine = "DeterministicEngine" if "deterministic" in program.handlers else "Engine"
    return ["def native_step(engine, batch):", *_indented(body), "", f"trainer = {engine}(native_step)"]


def _clipped(program: Program) -> List[str]:
    return [f"nn.utils.clip_grad_norm_(model.parameters(), {program.clip})"] if program.clip else []


def _step_trainer(program: Program) -> List[str]:
    steps = program.accumulation
    returned = '{"loss": LOSS, "scores": scores.detach()}' if "predictions" in program.handlers else "LOSS"
    clip = ["if not device:", *_indented(_clipped(program))] if program.clip else []
    if program.front == "ignite":
        added = lines_of(program.ingredients, "gradients")
        clip = [*lines_of(program.ingredients, "complete"), *_clipped(program), *added]
    zero = ["optimizer.zero_grad()"]
    first, last = ([], zero) if "late zero" in program.handlers else (zero, [])
    more = lines_of(program.ingredients, "scores"), lines_of(program.ingredients, "loss")
    forward = ["scores = model(inputs)", *more[0], "loss = loss_fn(scores, targets)", *more[1]]
    forward = in_contexts(program.ingredients, forward)
    if program.period > 1:
        body = [
            *(["if engine.state.iteration % STEPS == 1:", *_indented(first)] if first else []),
            *forward,
            "loss = loss / STEPS",
            "loss.backward()",
            "if engine.state.iteration % STEPS == 0:",
            *_indented([*clip, "optimizer.step()", *last]),
            f"return {returned.replace('LOSS', 'loss.detach()')}",
        ]
    elif steps > 1:
        body = [
            *first,
            "total = 0.0",
            f"for inputs, targets in zip(inputs.split({program.batch}), targets.split({program.batch})):",
            *_indented([*forward, "loss = loss / STEPS", "loss.backward()", "total = total + loss.detach()"]),
            *clip,
            "optimizer.step()",
            *last,
            f"return {returned.replace('LOSS', 'total.item()')}",
        ]
    else:
        body = [*first, *forward, "loss.backward()", *clip, "optimizer.step()", *last]
        body.append(f"return {returned.replace('LOSS', 'loss.item()')}")
    text = "\n".join(body).replace("STEPS", str(steps))
    wrapped = f"ipu_step(train_step{f', max_grad_norm={program.clip}' if program.clip else ''})"
    return [
        "def train_step(engine, batch):",
        *_indented(
            ["model.train()", "inputs, targets = batch", *in_words(program.ingredients, text.splitlines(), PLAIN)]
        ),
        "",
        "trainer = Engine(train_step)"
        if program.front == "ignite"
        else f"trainer = Engine({wrapped} if device else train_step)",
    ]


def _loss(program: Program) -> str:
    if "accuracy" in program.handlers:
        return "trainer.state.output[2]"
    return 'trainer.state.output["loss"]' if "predictions" in program.handlers else "trainer.state.output"


def _last_loss(program: Program) -> str:
    return "trainer.state.last_loss" if program.period > 1 else _loss(program)


def _attached(program: Program) -> List[str]:
    every = f"(every={program.period})" if program.period > 1 else ""
    loss, metric = _loss(program), "Accuracy" if _classifies(program) else "MeanSquaredError"
    rates = '[group["lr"] for group in optimizer.param_groups]'
    lines = [
        "",
        f"@trainer.on(Events.ITERATION_COMPLETED{every})",
        "def note_loss():",
        f'    note("loss", trainer.state.iteration, float({loss}), {rates})',
        *([f"    trainer.state.last_loss = float({loss})"] if program.period > 1 else []),
        "",
    ]
    for handler in program.handlers:
        if handler in _HANDLERS:
            text = _HANDLERS[handler].replace("LOSS", loss.replace("trainer.state.output", "output"))
            text = text.replace("METRIC", metric).replace("LAST", _last_loss(program))
            lines += textwrap.dedent(text).strip().splitlines()
    for number, edit in enumerate(program.edits):
        if edit.event != "between":
            lines += ["", f"@trainer.on({_moment(edit, program)})", f"def edit_{number}():"]
            lines += [*_indented(edit_lines(edit)), ""]
    return [*lines, *_scheduled(program, every), *_evaluator(program)]


def _moment(edit: Edit, program: Program) -> str:
    number = edit.number
    if edit.event == "iteration":
        number *= program.period
    elif edit.event == "iteration start":
        number = (number - 1) * program.period + 1
    return f"Events.{_EVENTS[edit.event]}(once={number})"


def _scheduled(program: Program, every: str) -> List[str]:
    if program.unit == "engine":
        return ["trainer.add_event_handler(Events.ITERATION_STARTED, schedule)"]
    if not program.unit:
        return []
    event = f"ITERATION_COMPLETED{every}" if program.unit == "iteration" else "EPOCH_COMPLETED"
    of = _last_loss(program) if program.schedule == "plateau" else ""
    return [f"trainer.add_event_handler(Events.{event}, lambda: schedule.step({of}))"]


def _classifies(program: Program) -> bool:
    return parts.LOSSES[program.loss][1] == parts.CLASSES


def _evaluator(program: Program) -> List[str]:
    found = [handler for handler in program.handlers if handler.startswith("evaluate")]
    if not found:
        return []
    metric = "Accuracy" if _classifies(program) else "MeanSquaredError"
    inputs, targets = parts.MODELS[program.model].inputs, parts.LOSSES[program.loss][1]
    # A sum over a batch depends on the size of a batch.
    averaged = "" if program.loss == "sum" else ', "loss": Loss(loss_fn)'
    often = f"ITERATION_COMPLETED(every={2 * program.period})"
    lines = [
        "def held_out(n):",
        f"    return {inputs}, {targets}",
        "",
        "with torch.random.fork_rng():",
        "    validation = DataLoader(TensorDataset(*held_out(7)), batch_size=2 if device else 4)",
        f'metrics = {{"{metric}": {metric}(){averaged}}}',
    ]
    if program.front == "ignite":
        lines.append("evaluator = create_supervised_evaluator(model, metrics)")
    else:
        lines += [
            *("if device:", "    evaluator = create_ipu_evaluator(model, metrics, device_iterations=2)"),
            *("else:", "    evaluator = create_supervised_evaluator(model, metrics)"),
        ]
    for handler in found:
        event = "EPOCH_COMPLETED" if handler == "evaluate" else often
        lines += ["", f"@trainer.on(Events.{event})", f"def {handler.replace(' ', '_')}():"]
        lines += ['    note("metrics", dict(evaluator.run(validation).metrics))', ""]
    return lines


def _story(program: Program) -> List[str]:
    length = f", epoch_length={program.epoch_length}" if program.epoch_length else ""
    whole = f"trainer.run(loader, max_epochs={program.epochs}{length})"
    one = f"trainer.run(loader, max_epochs=1{length})"
    between = [line for edit in program.edits if edit.event == "between" for line in edit_lines(edit)]
    lines = _story_lines(program, whole, one, between)
    if program.every and program.faults:
        faults = ", ".join(f'{call}: Fault("IPU_RESET")' for call in program.faults)
        condition = f"with inject_faults({{{faults}}}) if device else contextlib.nullcontext():"
        lines = [condition, *_indented(lines)]
    return [*lines, 'note("end", trainer.state.iteration, trainer.state.epoch)']


def _story_lines(program: Program, whole: str, one: str, between: List[str]) -> List[str]:
    story, at = program.story, program.at * program.period
    if story == "more epochs":
        return [one, *between, whole]
    if story == "again":
        return [whole, *between, whole]
    if story == "release":
        return [one, "if device:", "    trainer.ipu.release()", *between, whole]
    if story in ("terminate", "terminate epoch", "interrupt"):
        stop = f"trainer.{story.replace(' ', '_')}()"
        return [f"trainer.add_event_handler(Events.ITERATION_COMPLETED(once={at}), lambda: {stop})", whole, whole]
    if story == "raise":
        return [
            'failures = ["on purpose"]',
            "",
            f"@trainer.on(Events.ITERATION_COMPLETED(once={at}))",
            "def fail():",
            "    if failures:",
            "        raise Crash(failures.pop())",
            "",
            "for _ in range(3):  # a run may end before it fails",
            "    try:",
            f"        {whole}",
            "    except Crash as error:",
            '        note("raised", str(error))',
        ]
    if story in ("new trainer", "from native", "to native"):
        first = "False" if story == "from native" else "device"
        second = "False" if story == "to native" else "device"
        close = ["if device:", "    trainer.ipu.close()"] if story != "from native" else []
        return [
            f"trainer, loader = make({first})",
            one,
            *close,
            *between,
            f"trainer, loader = make({second})",
            whole,
        ]
    if program.rebuilds:
        return _restart(program, whole, at)
    return [whole]


def _restart(program: Program, whole: str, at: int) -> List[str]:
    event = "EPOCH_COMPLETED" if program.story == "resume at epoch" else "ITERATION_COMPLETED"
    if event == "EPOCH_COMPLETED":
        at = 1 + at % program.epochs
    schedule = ', "schedule": schedule' if program.schedule != "none" else ""
    objects = f'{{"model": model, "optimizer": optimizer, "trainer": trainer{schedule}}}'
    return [
        f"objects = {objects}",
        "if restarted:",
        '    resume_from(folder + "/checkpoints", objects)',
        "elif device:" if program.story != "restore" else "else:",
        '    saver = handlers.DiskSaver(folder + "/checkpoints")',
        f"    trainer.add_event_handler(Events.{event}(once={at}), handlers.Checkpoint(objects, saver))",
        "",
        f"    @trainer.on(Events.{event}(once={at}))",
        "    def crash():",
        "        raise Crash",
        "",
        whole,
    ]


def _indented(lines: List[str]) -> List[str]:
    return [f"    {line}" if line else line for line in lines]
