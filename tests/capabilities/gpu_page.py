"""The page of GPU calls, from the table of capabilities: `python -m tests.capabilities.gpu_page`."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from ignite_ipu.capabilities import Capability, Treatment, gpu_functions
from ignite_ipu.capabilities.gpu import ACCELERATOR, CUDA

PAGE = Path(__file__).parents[2] / "docs" / "gpu-calls.md"
_HEAD = """# Calls to a GPU

Under [`ignite-ipu run`](run.md) and [`import ignite_ipu.auto`](auto.md), a program finds one device. The table has
the treatment of its calls, by which `ignite-ipu check` reports, too. A function of `torch.cuda` that is not listed is
refused.

The page is generated: `python -m tests.capabilities.gpu_page`.

| Call | Becomes |
|---|---|
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(_rows())


def _rows() -> Iterator[str]:
    for module in (CUDA, ACCELERATOR):
        for entry in gpu_functions(module, *Treatment):
            yield f'| <a id="{entry.anchor}"></a>`{entry.name}` | {_became(entry)} |\n'


def _became(entry: Capability) -> str:
    if entry.treatment is Treatment.ANSWERED:
        plain = isinstance(entry.answer, (bool, int, str, tuple, list))
        return f"`{entry.answer!r}`" if plain else "the properties of an IPU"
    if entry.treatment is Treatment.FIGURE:
        return "0 or nothing, with one note: " + entry.sentence
    if entry.treatment is Treatment.REFUSED:
        return f"refused: {entry.sentence}"
    return entry.sentence or entry.treatment.value


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
