"""`render`: a program as the source text of a script, the same text for both sides."""

from __future__ import annotations

import re
import textwrap
from typing import Iterator, List, Tuple

from tests.differential import parts
from tests.differential.engines import engine_job
from tests.differential.loops import loop_job
from tests.differential.program import Program

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
    run(sys.argv[1] == "device", lambda *values: print(*values, sep="\\n    "))
'''

# Modules, and what is imported from them where a script uses it; an empty string separates blocks.
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
    loop = program.front == "accelerate"
    job = [*_data(program), *(loop_job(program) if loop else engine_job(program))]
    classes = parts.MODELS[program.model].classes + (_STREAM if program.data == "iterable" else "")
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
        "parameters = list(model.parameters())",
    ]
    if program.groups in ("frozen", "trained alone"):
        lines.append("parameters[0].requires_grad_(False)")
    lines += [f"loss_fn = {loss}", f"optimizer = {optimizer}"]
    schedule, _ = parts.SCHEDULES[program.schedule]
    if schedule:
        lines.append(f"schedule = {schedule}")
    return lines
