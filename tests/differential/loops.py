"""Jobs of loops that are written for accelerate."""

from __future__ import annotations

from typing import List

from tests.differential import parts
from tests.differential.engines import edit_lines
from tests.differential.program import Program


def loop_job(program: Program) -> List[str]:
    """Return the lines of a job after its model, optimizer and schedule."""
    steps = f", gradient_accumulation_steps={program.accumulation}" if program.accumulation > 1 else ""
    scheduled = parts.SCHEDULES[program.schedule][1]
    prepared = ["model", "optimizer", "loader", *(["schedule"] if scheduled in ("iteration", "epoch") else [])]
    names = ", ".join(prepared)
    shuffle = ", shuffle=True" if program.data == "shuffled" else ""
    drops = ", drop_last=True" if parts.MODELS[program.model].mixes else ""
    lines = [
        f"loader = DataLoader(TensorDataset(x, y), batch_size={program.batch}{shuffle}{drops})",
        f"accelerator = (IPUAccelerator if device else Accelerator)(cpu=True{steps})",
        f"{names} = accelerator.prepare({names})",
    ]
    if "early state" in program.handlers:
        lines.append("early = model.state_dict()")
    lines += [*_restored(program), "done = 0"]
    lines += [f"for epoch in range({_first_epoch(program)}, {program.epochs}):", *_indented(_epoch(program))]
    lines.append('note("weights", copy.deepcopy(model.state_dict()))')
    lines.append('note("optimizer", copy.deepcopy(optimizer.state_dict()))')
    if "early state" in program.handlers:
        lines.append('note("early state", copy.deepcopy(early))')
    lines += ["accelerator.free_memory()", 'note("freed", copy.deepcopy(model.state_dict()))']
    return lines


def _first_epoch(program: Program) -> str:
    return "int(restarted)" if program.story == "restore" else "0"


def _restored(program: Program) -> List[str]:
    return ["if restarted:", '    accelerator.load_state(folder + "/state")'] if program.rebuilds else []


def _epoch(program: Program) -> List[str]:
    unit = parts.SCHEDULES[program.schedule][1]
    step = [
        f"if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), {program.clip})"
        if program.clip
        else "",
        "value = loss.item()" if "loss before step" in program.handlers and program.accumulation == 1 else "",
        "optimizer.step()",
        "schedule.step()" if unit == "iteration" else "",
        _zero(program) if "late zero" in program.handlers else "",
    ]
    body = [
        "" if "late zero" in program.handlers else _zero(program),
        "scores = model(inputs)",
        "loss = loss_fn(scores, targets)",
        "accelerator.backward(loss)",
        *step,
    ]
    after = [
        "done += 1",
        'note("loss", done, loss.item(), [group["lr"] for group in optimizer.param_groups])',
        *(
            ['note("gathered", *accelerator.gather_for_metrics((scores.argmax(-1), targets)))']
            if "gather" in program.handlers
            else []
        ),
        *_edits(program, "iteration", "done"),
    ]
    if program.story == "stop early":
        after += [f"if done == {program.at}:", "    break"]
    if program.story == "skip batches":
        after += [f"if done == {program.at} and not restarted:", '    accelerator.save_state(folder + "/state")']
        after += ["    raise Crash"]
    batches = "loader"
    lines = ["model.train()"]
    if program.story == "skip batches":
        skipped = program.at * program.accumulation
        lines.append("batches = loader")
        lines += ["if restarted and not epoch:", f"    batches = accelerator.skip_first_batches(loader, {skipped})"]
        batches = "batches"
    lines += [f"for inputs, targets in {batches}:", "    with accelerator.accumulate(model):"]
    lines += _indented(_indented("\n".join(line for line in body if line).splitlines()))
    lines += ["    if accelerator.sync_gradients:", *_indented(_indented(after))]
    if unit == "epoch":
        lines.append("schedule.step()")
    elif unit == "plateau":
        lines.append("schedule.step(loss.item())")
    lines += _edits(program, "epoch", "epoch + 1")
    if "evaluate" in program.handlers:
        lines += ["model.eval()", "with torch.no_grad():", '    note("scores", copy.deepcopy(model(x)))']
    if program.story == "restore":
        lines += ["if not restarted:", '    accelerator.save_state(folder + "/state")', "    raise Crash"]
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
