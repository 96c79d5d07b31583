"""The page of operators, written from the table: `python -m tests.operators.page`."""

from __future__ import annotations

import sys
from typing import Any, Iterator, List, Mapping

from torch.overrides import resolve_name

from ignite_ipu.operators import table as operator_table
from ignite_ipu.operators.table import Restriction
from ignite_ipu.program.forward.equivalents import EQUIVALENTS
from ignite_ipu.program.forward.exact import EXACT_VALUES

_HEAD = """\
# Operators

This page lists the operators of PyTorch 2.0 that PopTorch 3.3 compiles. PopTorch 3.3 is built for that version. The
emulator, `ignite-ipu check` and `check --run` use this table. `python -m tests.operators.page` writes
the page.

- Functions, methods and layers of PyTorch that consist of these operators compile as well.
- Results that depend on constants alone are computed during the compilation, by any operator. `torch.ones(n, n).tril()`
  compiles, `x.tril()` does not. In bodies of `for_loop` and `cond` this does not hold.
- Operators whose results are not used may be any.
- Integers and floats of 64 bits become those of 32 bits.

Lines marked *doubted* follow PopTorch's sources; its tests do not cover them. The emulator accepts them with a warning
and returns PyTorch's result.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_compiled(), *_refused(), *_arguments(), *_values(), *_equivalents()])


def _compiled() -> Iterator[str]:
    yield "## Compiled operators\n"
    yield "| Group | Operators |"
    yield "|---|---|"
    for group, names in operator_table.GROUPS.items():
        yield f"| {group[:1].upper()}{group[1:]} | {_code(names)} |"
    yield ""


def _refused() -> Iterator[str]:
    untraceable = operator_table.UNTRACEABLE
    yield "## Refused operators\n"
    yield "A model with such operators fails when it is compiled, unless the row has another time.\n"
    yield "| Operator | Also in | Instead |"
    yield "|---|---|---|"
    for kind, names in operator_table.KINDS.items():
        made = [*names, *(name for name, part in operator_table.LAYERS.items() if part == kind)]
        at_call = " Fails at the call." if kind in untraceable else ""
        yield f"| `{kind}` | {_code(made)} | {operator_table.instead(kind)}{at_call} |"
    bare = [name for name, part in operator_table.LAYERS.items() if part not in operator_table.KINDS]
    yield f"\nThese layers are refused, too: {_code(bare)}.\n"


def _arguments() -> Iterator[str]:
    yield "## Arguments and types\n"
    yield "| Of | When | Effect | Instead |"
    yield "|---|---|---|---|"
    for restriction in operator_table.RESTRICTIONS:
        doubt = "*doubted*: " if restriction.likely else ""
        row = (_code(restriction.of), _when(restriction), f"{doubt}{restriction.says}", restriction.instead)
        yield f"| {' | '.join(row)} |"
    yield ""


def _values() -> Iterator[str]:
    yield "## Values\n"
    yield "Some operators differ from PyTorch for some values. The emulator returns PyTorch's result.\n"
    yield from (f"- {_code(names)}: {text}" for names, text in operator_table.VALUES.items())
    yield ""


_EQUIVALENTS_TEXT = """
## Operators computed by others

Trainers, evaluators and captured loops compute the following functions by operators that PopTorch has. This holds in
models and losses, and the results are PyTorch's except for rounding. A model that is passed to PopTorch itself is
refused, or has other results, as listed above.

| Functions |
|---|
| {names} |

Methods of tensors that write in place (`x.index_add_(...)`) are included. Some functions are only partly missing in
PopTorch:

| Function | Completed case |
|---|---|
| `F.cross_entropy`, `F.nll_loss` | weights of classes, smoothed labels |
| `F.layer_norm` | a weight without bias |
| `F.group_norm` | no dimensions behind the channels |
| `torch.lstm` | several layers, both directions, dropout between layers, no bias |
| pooling | windows of different sizes, no stride, different paddings, divisors |
| `F.pad` | all modes except `constant` |
| `F.smooth_l1_loss` | a beta of 0 |
| functions of floats | integers |
| sums, products and norms | a `dtype` |
| `count_nonzero` | no dimension |
| writes under a mask (`x[mask] = rows`) | masks of fewer dimensions, values for each place |
| lists of places (`x[:, [-1]]`) | negative places |
| `//` of integers | rounds down |
| `F.gelu` | the error function; `approximate="tanh"` is PopTorch's own, and faster |
"""


def _equivalents() -> Iterator[str]:
    plain = [func for func in EQUIVALENTS if not func.__name__.endswith("_") and func.__name__ not in EXACT_VALUES]
    names = [resolve_name(func) or "" for func in plain]
    short = {name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "torch.") for name in names}
    yield _EQUIVALENTS_TEXT.format(names=_code(sorted(short)))


def _when(restriction: Restriction) -> str:
    if not restriction.argument:
        return ""
    when: Any = restriction.when
    names = " or ".join(f"`{name}`" for name in restriction.argument)
    if isinstance(when, Mapping):
        ((how, limit),) = when.items()
        values: List[Any] = limit if isinstance(limit, list) else [limit]
        return f"{names} {how} {', '.join(f'`{value!r}`' for value in values)}"
    return names if when is None else f"{names} {when}"


def _code(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
