"""The page of names in training programs, from the table: `python -m tests.capabilities.training_page`."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Tuple

from ignite_ipu.capabilities import ARGUMENTS, GRADIENTS, OPTIMIZERS, PRECISION, WRAPPERS, Table

PAGE = Path(__file__).parents[2] / "docs" / "training-calls.md"
TABLES: Tuple[Tuple[str, Table], ...] = (
    ("Gradients", GRADIENTS),
    ("Number formats", PRECISION),
    ("Optimizers", OPTIMIZERS),
    ("Arguments of optimizers", ARGUMENTS),
    ("Wrappers of models", WRAPPERS),
)
_HEAD = """# Names in training programs

The tables have the treatment of names under [`ignite-ipu run`](run.md), [`import ignite_ipu.auto`](auto.md) and
`IPUAccelerator`. `ignite-ipu check` reports by the same tables. Calls to a GPU have
[a page of their own](gpu-calls.md).

- *part of the device's step*: the call is recorded, and the device does it in the step that it belongs to.
- *updates on the host*: from there on PyTorch makes the updates on the host, with gradients of the device. With
  `IPUConfig(update="device")` the call is refused.
- *done on the host*: the host does it, at the time of the call.
- *left out*: the call does nothing, or returns its argument.
- *refused*: the call ends the run.

An optimizer that is not listed has its updates on the host. The page is generated:
`python -m tests.capabilities.training_page`.
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(_tables())


def _tables() -> Iterator[str]:
    for title, table in TABLES:
        yield f"\n## {title}\n\n| Name | Treatment | Result or reason | Way out |\n|---|---|---|---|\n"
        for entry in table:
            way_out = f"{entry.remedy.rstrip('.')}." if entry.remedy else ""
            name = f'<a id="{entry.anchor}"></a>`{entry.name}`'
            yield f"| {name} | {entry.treatment.value} | {entry.sentence} | {way_out} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
