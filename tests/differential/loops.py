"""Jobs of loops that are written out: for accelerate, and for nothing, which `ignite-ipu run` runs as they are."""

from __future__ import annotations

import re
from typing import List

from tests.differential import parts
from tests.differential.engines import edit_lines
from tests.differential.ingredients import INGREDIENTS, PLAIN, in_contexts, in_words, lines_of
from tests.differential.program import Program

_ACCELERATOR = {
    "AUTOCAST": "accelerator.autocast()",
    "CLIP_VALUE": "accelerator.clip_grad_value_",
    "CLIP": "accelerator.clip_grad_norm_",
}


def loop_job(program: Program) -> List[str]:
    """Return the lines of a job after its model, optimizer and schedule."""
    shuffle = ", shuffle=True" if program.data == "shuffled" else ""
    drops = ", drop_last=True" if parts.MODELS[program.model].mixes else ""
    collates = [INGREDIENTS[name].collate for name in program.ingredients if INGREDIENTS[name].collate]
    collate = f", collate_fn={collates[0]}" if collates else ""
    lines = [f"loader = DataLoader(TensorDataset(x, y), batch_size={program.batch}{shuffle}{drops}{collate})"]
    lines += _prepared(program) if program.front == "accelerate" else []
    if "early state" in program.handlers:
        lines.append("early = model.state_dict()")
    lines += [*_bound(program), *_restored(program), "done = 0", *(["count = 0"] if _carries(program) else [])]
    lines += [f"for epoch in range({_first_epoch(program)}, {program.epochs}):", *_indented(_epoch(program))]
    lines.append('note("weights", copy.deepcopy(model.state_dict()))')
    lines.append('note("optimizer", copy.deepcopy(optimizer.state_dict()))')
    if "early state" in program.handlers:
        lines.append('note("early state", copy.deepcopy(early))')
    if program.front == "accelerate":
        lines += ["accelerator.free_memory()", 'note("freed", copy.deepcopy(model.state_dict()))']
    return _spoken(program, lines)


def _spoken(program: Program, lines: List[str]) -> List[str]:
    """Return lines in the words of who trains."""
    if program.front != "accelerate":
        return in_words(program.ingredients, lines, PLAIN)
    text = "\n".join(in_words(program.ingredients, lines, _ACCELERATOR))
    text = re.sub(r"(\w+)\.backward\(\)", r"accelerator.backward(\1)", text)
    return re.sub(r"(\w+)\.backward\((?=\w+=)", r"accelerator.backward(\1, ", text).splitlines()


def _prepared(program: Program) -> List[str]:
    steps = f", gradient_accumulation_steps={program.accumulation}" if program.accumulation > 1 else ""
    beside = [name for each in program.ingredients for name in INGREDIENTS[each].prepared]
    scheduled = program.unit and program.schedule != "plateau"
    names = ", ".join(["model", "optimizer", "loader", *(["schedule"] if scheduled else []), *beside])
    return [
        f"settings = {{'config': {{'update': '{program.update}'}}}} if device else {{}}",
        f"accelerator = (IPUAccelerator if device else Accelerator)(cpu=True{steps}, **settings)",
        f"{names} = accelerator.prepare({names})",
    ]


def _first_epoch(program: Program) -> str:
    return "int(restarted)" if program.story == "restore" else "0"


def _objects(program: Program) -> str:
    """Return the objects that a loop saves, as a list."""
    beside = [name for each in program.ingredients for name in INGREDIENTS[each].prepared]
    return ", ".join(["model", "optimizer", *(["schedule"] if program.unit else []), *beside])


def _restored(program: Program) -> List[str]:
    if not program.rebuilds:
        return []
    if program.front == "accelerate":
        return ["if restarted:", '    accelerator.load_state(folder + "/state")']
    restored = f"for each, state in zip([{_objects(program)}], torch.load(folder + '/state', weights_only=False)):"
    return ["if restarted:", f"    {restored}", "        each.load_state_dict(state)"]


def _saved(program: Program) -> str:
    if program.front == "accelerate":
        return 'accelerator.save_state(folder + "/state")'
    return f"torch.save([each.state_dict() for each in [{_objects(program)}]], folder + '/state')"


def _carries(program: Program) -> bool:
    """Return whether losses of one epoch may count in an update of the next."""
    return program.front == "run" and program.period > 1 and not program.inside


def _epoch(program: Program) -> List[str]:
    lines = ["model.train()", *lines_of(program.ingredients, "epoch")]
    batches = "loader"
    if program.story == "skip batches":
        skipped = program.at * program.accumulation
        lines.append("batches = loader")
        lines += ["if restarted and not epoch:", f"    batches = accelerator.skip_first_batches(loader, {skipped})"]
        batches = "batches"
    batch = _accelerate_batch(program) if program.front == "accelerate" else _plain_batch(program)
    counts = program.front == "run" and program.period > 1 and program.inside
    if counts:
        lines += [f"for number, (inputs, targets) in enumerate({batches}):", *_indented(batch)]
    else:
        lines += [f"for inputs, targets in {batches}:", *_indented(batch)]
    if program.unit == "epoch":
        lines.append(_scheduled(program))
    lines += [*lines_of(program.ingredients, "end"), *_edits(program, "epoch", "epoch + 1")]
    if "evaluate" in program.handlers:
        lines += ["model.eval()", "with torch.no_grad():", '    note("scores", copy.deepcopy(model(x)))']
    if program.story == "restore":
        lines += ["if not restarted:", f"    {_saved(program)}", "    raise Crash"]
    return lines


def _scheduled(program: Program) -> str:
    return f"schedule.step({'loss.item()' if program.schedule == 'plateau' else ''})"


def _forward(program: Program) -> List[str]:
    scores, loss = lines_of(program.ingredients, "scores"), lines_of(program.ingredients, "loss")
    lines = ["scores = model(inputs)", *scores, "loss = loss_fn(scores, targets)", *loss]
    return in_contexts(program.ingredients, lines)


def _has_closure(program: Program) -> bool:
    return any(INGREDIENTS[name].closure for name in program.ingredients)


def _closure(program: Program) -> List[str]:
    """Return the function that computes the loss in the optimizer's step."""
    lines = [*([] if "late zero" in program.handlers else [_zero(program)]), *_forward(program), "loss.backward()"]
    lines += [*_gradients(program), "return loss"]
    return ["def closure():", f"    nonlocal {', '.join(_assigned(lines))}", *_indented(lines), ""]


def _assigned(lines: List[str]) -> List[str]:
    """Return the names that lines assign."""
    found = [re.match(r"\s*\(?(\w+(?:, \w+)*),?\)? = ", line) for line in lines]
    return list(dict.fromkeys(name for match in found if match for name in match[1].split(", ")))


def _bound(program: Program) -> List[str]:
    """Return the line that makes the names of a closure those of the job."""
    if not _has_closure(program):
        return []
    names = next(line for line in _closure(program) if line.startswith("    nonlocal ")).split(maxsplit=1)[1]
    return [f"{names.replace(', ', ' = ')} = None"]


def _update(program: Program) -> List[str]:
    step = "optimizer.step()"
    if _has_closure(program):
        # accelerate's optimizers return nothing.
        step = f"{'loss = ' if program.front == 'run' else ''}optimizer.step(closure)"
    return [
        step,
        *lines_of(program.ingredients, "update"),
        *([_scheduled(program)] if program.unit == "iteration" else []),
        *([_zero(program)] if "late zero" in program.handlers else []),
    ]


def _gradients(program: Program) -> List[str]:
    clip = [f"CLIP(model.parameters(), {program.clip})"] if program.clip else []
    return [*lines_of(program.ingredients, "complete"), *clip, *lines_of(program.ingredients, "gradients")]


def _early(program: Program) -> List[str]:
    return ["value = loss.item()"] if "loss before step" in program.handlers and program.accumulation == 1 else []


def _accelerate_batch(program: Program) -> List[str]:
    gradients = _gradients(program)
    body = [
        *([] if "late zero" in program.handlers else [_zero(program)]),
        *_forward(program),
        "loss.backward()",
        *(["if accelerator.sync_gradients:", *_indented(gradients)] if gradients else []),
        *_early(program),
        *_update(program),
    ]
    if _has_closure(program):
        body = [*_closure(program), *_update(program)]
    after = _after(program)
    if "gather" in program.handlers:
        after.insert(2, 'note("gathered", *accelerator.gather_for_metrics((scores.argmax(-1), targets)))')
    return [
        "with accelerator.accumulate(model):",
        *_indented(body),
        "if accelerator.sync_gradients:",
        *_indented(after),
    ]


def _plain_batch(program: Program) -> List[str]:
    steps, zero = program.period, [] if "late zero" in program.handlers else [_zero(program)]
    if _has_closure(program):
        return [*_closure(program), *_update(program), *_after(program)]
    update = [*_gradients(program), *_early(program), *_update(program), *_after(program)]
    if steps == 1:
        return [*zero, *_forward(program), "loss.backward()", *update]
    number = "count" if _carries(program) else "number"
    complete = "count % STEPS == 0" if _carries(program) else "(number + 1) % STEPS == 0 or number + 1 == len(loader)"
    return [
        *([f"if {number} % {steps} == 0:", *_indented(zero)] if zero else []),
        *_forward(program),
        f"loss = loss / {steps}",
        "loss.backward()",
        *(["count += 1"] if _carries(program) else []),
        f"if {complete.replace('STEPS', str(steps))}:",
        *_indented(update),
    ]


def _after(program: Program) -> List[str]:
    """Return the code after an update."""
    lines = [
        "done += 1",
        'note("loss", done, loss.item(), [group["lr"] for group in optimizer.param_groups])',
        *lines_of(program.ingredients, "step"),
        *_edits(program, "iteration", "done"),
    ]
    if program.story == "stop early":
        lines += [f"if done == {program.at}:", "    break"]
    if program.story == "skip batches":
        lines += [f"if done == {program.at} and not restarted:", f"    {_saved(program)}", "    raise Crash"]
    return lines


def _zero(program: Program) -> str:
    return "optimizer.zero_grad(set_to_none=True)" if "set to none" in program.handlers else "optimizer.zero_grad()"


def _edits(program: Program, event: str, counter: str) -> List[str]:
    lines: List[str] = []
    for edit in program.edits:
        if edit.event == event:
            lines += [f"if {counter} == {edit.number}:", *_indented(edit_lines(edit))]
    return lines


def _indented(lines: List[str]) -> List[str]:
    return [f"    {line}" if line else line for line in lines]
