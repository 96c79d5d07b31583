"""The page "Which operators compile", written from the table: `python -m tests.emulator.trace.operators.page`."""

from __future__ import annotations

import sys
from typing import Any, Iterator, List, Mapping

from torch.overrides import resolve_name

from ignite_ipu.emulator.trace.operators import table as operator_table
from ignite_ipu.emulator.trace.operators.table import Restriction
from ignite_ipu.program.forward.equivalents import EQUIVALENTS
from ignite_ipu.program.forward.exact import EXACT_VALUES

_HEAD = """\
# Which operators compile

What PopTorch 3.3 compiles of PyTorch 2.0, the version that it is built for. The emulator refuses by this table,
`ignite-ipu check` and `check --run` report by it. Written by `python -m tests.emulator.trace.operators.page`.

- Functions, methods and layers of PyTorch that consist of operators below compile as well.
- What depends on constants alone is computed while compiling, whether it is below or not: `torch.ones(n, n).tril()` is
  fine, `x.tril()` is not. In bodies of `for_loop` and `cond` nothing is.
- What nobody uses may be anything.
- Integers and floats of 64 bits are those of 32 bits.

The lines marked *doubted* stand in PopTorch's sources, and no test of its own shows them. The emulator accepts them
with a warning and computes what PyTorch does.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_compiled(), *_refused(), *_arguments(), *_values(), *_equivalents()])


def _compiled() -> Iterator[str]:
    yield "## What compiles\n"
    for group, names in operator_table.GROUPS.items():
        yield f"**{group[:1].upper()}{group[1:]}**: {', '.join(f'`{name}`' for name in names)}.\n"


def _refused() -> Iterator[str]:
    untraceable = operator_table.UNTRACEABLE
    yield "## What does not\n"
    yield "Where nothing else is said the model fails when it is compiled, with all that it uses of these.\n"
    yield "| Operator | Also in | Instead |"
    yield "|---|---|---|"
    for kind, names in operator_table.KINDS.items():
        made = [*names, *(name for name, part in operator_table.LAYERS.items() if part == kind)]
        at_call = " Fails at the call." if kind in untraceable else ""
        yield f"| `{kind}` | {_code(made)} | {operator_table.instead(kind)}{at_call} |"
    bare = [name for name, part in operator_table.LAYERS.items() if part not in operator_table.KINDS]
    yield f"\nNor do these layers: {_code(bare)}.\n"


def _arguments() -> Iterator[str]:
    yield "## Arguments and types\n"
    yield "| Of | When | What happens | Instead |"
    yield "|---|---|---|---|"
    for restriction in operator_table.RESTRICTIONS:
        doubt = "*doubted*: " if restriction.likely else ""
        row = (_code(restriction.of), _when(restriction), f"{doubt}{restriction.says}", restriction.instead)
        yield f"| {' | '.join(row)} |"
    yield ""


def _values() -> Iterator[str]:
    yield "## Values\n"
    yield "What differs for some values only; the emulator computes what PyTorch does.\n"
    yield from (f"- {_code(names)}: {text}" for names, text in operator_table.VALUES.items())
    yield ""


_BY_OTHERS = """
## What is computed by others

Trainers, evaluators and captured loops compute these by operators that PopTorch has, wherever a model or a loss
calls them, with PyTorch's numbers but for rounding. A model that is handed to PopTorch itself is refused, or computes
something else, as said above.

{names}; of tensors' methods, what writes in place
(`x.index_add_(...)`), too.

Of `F.cross_entropy` and `F.nll_loss` that means weights of classes and smoothed labels; of `F.layer_norm` a weight
without bias; of `F.group_norm` channels without dimensions behind them; of `torch.lstm` several layers, both
directions, dropout in between and no bias; of pooling, windows of unlike sizes, strides that are not given, unlike
paddings and divisors; of `F.pad` all modes but `constant`; of `F.smooth_l1_loss` a beta of 0. Functions of floats
take integers, sums, products and norms a `dtype`, `count_nonzero` no dimension, and writes under a mask
(`x[mask] = rows`) masks of fewer dimensions and values for each place; lists of places (`x[:, [-1]]`) may count from
the end, and `//` of integers rounds down. `F.gelu` is computed by the error function; `approximate="tanh"` is
PopTorch's own, and faster.
"""


def _equivalents() -> Iterator[str]:
    plain = [func for func in EQUIVALENTS if not func.__name__.endswith("_") and func.__name__ not in EXACT_VALUES]
    names = [resolve_name(func) or "" for func in plain]
    short = {name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "torch.") for name in names}
    yield _BY_OTHERS.format(names=_code(sorted(short)))


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
