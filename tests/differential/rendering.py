"""`render`: a program as the source text of a script, the same text for both sides."""

from __future__ import annotations

import re
import textwrap
from typing import Iterator, List, Tuple

from tests.differential import parts
from tests.differential.engines import engine_job
from tests.differential.ingredients import INGREDIENTS, lines_of
from tests.differential.loops import loop_job
from tests.differential.program import LOOPS, Program

_HEADER = '''
"""`python FILE native` and `python FILE device` print what must be the same but for rounding."""

{imports}

{classes}
def job(device, folder, note, restarted=False):
{job}


def run(device, note):
    with tempfile.TemporaryDirectory() as folder:
{run}


if __name__ == "__main__":
    torch.set_printoptions(precision=5)
    run(sys.argv[1] == "device", lambda *values: print(*values, sep={separator!r}))
'''
SEPARATOR = "\n    "
"""The text that `print` puts between the values of a note."""

# Modules, and the names imported from them if a script uses them; an empty string separates blocks.
_IMPORTS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    *((module, ()) for module in ("contextlib", "copy", "gc", "sys", "tempfile")),
    ("", ()),
    ("torch", ()),
    ("torch.nn.functional as F", ()),
    ("accelerate", ("Accelerator",)),
    ("ignite", ("handlers",)),
    ("ignite.engine", ("Engine", "Events", "create_supervised_evaluator", "create_supervised_trainer")),
    ("ignite.engine.deterministic", ("DeterministicEngine",)),
    ("ignite.metrics", ("Accuracy", "Average", "Loss", "MeanSquaredError", "RunningAverage")),
    ("torch", ("nn",)),
    ("torch.nn.utils", ("prune",)),
    ("torch.utils.checkpoint", ("checkpoint",)),
    ("torch.utils.data", ("DataLoader", "IterableDataset", "TensorDataset", "WeightedRandomSampler")),
    ("", ()),
    ("ignite_ipu", ("IPUAccelerator", "create_ipu_evaluator", "create_ipu_trainer", "ipu_step")),
    ("ignite_ipu.checkpoints", ("resume_from",)),
    ("ignite_ipu.emulator", ("Fault", "inject_faults")),
    ("ignite_ipu.handlers", ("Recovery",)),
)

_CRASH = '''
class Crash(Exception):
    """An end of training that is not planned."""
'''

_STREAM = """
class Stream(IterableDataset):
    def __init__(self, *tensors):
        self.tensors = tensors

    def __iter__(self):
        return zip(*self.tensors)
"""


def render(program: Program) -> str:
    """Return the script's source text; its `run(device, note)` calls `note` with everything that is compared."""
    job = _without_unused([*_data(program), *(loop_job(program) if program.front in LOOPS else engine_job(program))])
    definitions = [parts.MODELS[program.model].classes, *(INGREDIENTS[name].classes for name in program.ingredients)]
    classes = "".join(dict.fromkeys(definitions)) + (_STREAM if program.data == "iterable" else "")
    if program.story in ("resume", "resume at epoch"):
        run = """
            if device:
                try:
                    job(device, folder, note)
                except Crash:
                    gc.collect()
                torch.manual_seed(4321)  # another process
            job(device, folder, note, restarted=device)
        """
    elif program.rebuilds:
        run = """
            try:
                job(device, folder, note)
            except Crash:
                gc.collect()
            job(device, folder, note, restarted=True)
        """
    else:
        run = "job(device, folder, note)"
    if program.rebuilds or program.story == "raise":
        classes = f"{_CRASH}\n{classes}"
    text = _HEADER.format(
        imports="IMPORTS",
        separator=SEPARATOR,
        classes=f"\n{classes.strip()}\n\n" if classes else "",
        job=textwrap.indent("\n".join(job), "    "),
        run=textwrap.indent(textwrap.dedent(run).strip(), "        "),
    )
    return text.strip().replace("IMPORTS", "\n".join(_imports(text)), 1) + "\n"


def _imports(text: str) -> Iterator[str]:
    """Yield the imports that a script needs."""

    def used(name: str) -> bool:
        return bool(re.search(rf"(?<![.\w]){name}\b", text))

    for module, names in _IMPORTS:
        if not module:
            yield ""
        elif names:
            found = [name for name in names if used(name)]
            if found:
                yield f"from {module} import {', '.join(found)}"
        elif used(module.split(" as ")[-1]):
            yield f"import {module}"


def _data(program: Program) -> List[str]:
    """Return the lines that make data, model, loss, optimizer and schedule."""
    model = parts.MODELS[program.model]
    loss, targets = parts.LOSSES[program.loss]
    optimizer = parts.OPTIMIZERS[program.optimizer].format(groups=parts.GROUPS[program.groups])
    lines = [
        f"torch.manual_seed({program.seed})",
        f"n = {program.samples}",
        f"x, y = {model.inputs}, {targets}",
        f"model = {model.make}",
        "layer = next(module for module in model.modules() if isinstance(module, nn.Linear))",
        *lines_of(program.ingredients, "model"),
        "parameters = list(model.parameters())",
    ]
    if program.groups in ("frozen", "trained alone"):
        lines.append("parameters[0].requires_grad_(False)")
    schedule, _ = parts.SCHEDULES[program.schedule]
    lines.append(f"loss_fn = {loss}")
    optimizers = [f"optimizer = {optimizer}", *lines_of(program.ingredients, "optimizer")]
    if any("make_optimizer" in INGREDIENTS[name].end for name in program.ingredients):
        lines += ["def make_optimizer():", *(f"    {line}" for line in [*optimizers, "return optimizer"])]
        lines += ["def make_schedule():", f"    return {schedule or None}"]
        optimizers, schedule = ["optimizer = make_optimizer()"], schedule and "make_schedule()"
    lines += [*optimizers, *([f"schedule = {schedule}"] if schedule else []), *lines_of(program.ingredients, "setup")]
    return lines


def _without_unused(lines: List[str]) -> List[str]:
    """Return a job without the name of its first layer if nothing uses it."""
    uses = [line for line in lines if re.search(r"\blayer\b", line)]
    return [line for line in lines if len(uses) > 1 or line not in uses]
