"""Printing a tensor, and its gradient, each time the device computes it."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import Any, Callable, Iterator, List

import torch

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.trace.active import active

_FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")
_TOO_LARGE, _TOO_SMALL = 1e6, 1e-4


@dataclasses.dataclass(frozen=True)
class TensorFormat:
    """Layout of a tensor's text; `ipu_print_tensor` explains the attributes."""

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"

    def text(self, tensor: torch.Tensor) -> str:
        """Return the text of a tensor's values."""
        summarise = tensor.numel() > self.summarise_threshold
        number = functools.partial(self._number, notation=self._notation(tensor))
        return "\n".join(self._lines(tensor, summarise, number, depth=0))

    def _lines(self, tensor: torch.Tensor, summarise: bool, number: Callable[[Any], str], depth: int) -> Iterator[str]:
        """Yield the lines of a tensor that `depth` dimensions enclose: each innermost row has its own."""
        if tensor.dim() == 0:
            yield number(tensor.item())
            return
        indent = " " * depth
        positions: List[Any] = list(range(tensor.shape[0]))
        if summarise and len(positions) > 2 * self.edge_items:
            edge = self.edge_items
            positions = [*positions[:edge], None, *positions[len(positions) - edge :]]
        if tensor.dim() == 1:
            items = ["..." if position is None else number(tensor[position].item()) for position in positions]
            yield from self._wrapped(items, indent)
            return
        yield indent + self.open_bracket
        for position in positions:
            if position is None:
                yield f"{indent} ..."
            else:
                yield from self._lines(tensor[position], summarise, number, depth + 1)
        yield indent + self.close_bracket

    def _wrapped(self, items: List[str], indent: str) -> Iterator[str]:
        """Yield a row's lines, broken after a separator where it would be too long."""
        line = indent + self.open_bracket
        starts = True
        for index, item in enumerate(items):
            text = item + (self.close_bracket if index == len(items) - 1 else self.separator)
            if not starts and len(line) + len(text.rstrip()) > self.max_line_width:
                yield line
                line = f"{indent}  "
            line += text
            starts = False
        yield line if items else line + self.close_bracket

    def _number(self, value: Any, notation: str) -> str:
        if isinstance(value, bool):
            return str(int(value))
        if not isinstance(value, float) or not math.isfinite(value) or self.float_format == "none":
            return str(value)
        return f"{value:{notation}}"

    def _notation(self, tensor: torch.Tensor) -> str:
        """Return how Python formats the floats of a tensor with `digits` significant digits."""
        sizes = tensor.abs() if tensor.is_floating_point() else torch.zeros(0)
        sizes = sizes[torch.isfinite(sizes)]
        largest = float(sizes.max()) if sizes.numel() else 0.0
        scientific = self.float_format == "scientific"
        if self.float_format == "auto" and largest > 0:
            scientific = largest >= _TOO_LARGE or float(sizes[sizes > 0].min()) < _TOO_SMALL
        # The digits before the point of the largest element are no longer there for the fraction.
        taken = 1 if scientific else len(str(int(largest)))
        return f".{max(self.digits - taken, 0)}{'e' if scientific else 'f'}"


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Return the tensor; its values go to standard error at every execution, for each micro-batch and replica.

    Use the returned tensor: unused tensors may be left out of the program. Outside a traced model nothing is printed.

    Args:
        title: Stands before the values; the gradient's title ends in `_gradient`. Empty means the tensor's name.
        print_gradient: In training, print the gradient as well.
        summarise_threshold: Number of elements above which only the edges are shown.
        edge_items: How many elements are shown at both ends of each dimension then.
        max_line_width: Characters in a line; a longer row goes on in the next, indented by two more.
        digits: Significant digits. Those before the point of the largest element leave the rest for the fraction.
        float_format: `"fixed"`, `"scientific"`, `"auto"` (whichever is shorter to read) or `"none"` (all digits).
        separator: Between the elements of a row, as it is; rows have a line each.
        open_bracket: Before the elements of a dimension.
        close_bracket: After them.

    Raises:
        Error: It is no tensor.
        KeyError: There is no such float format.
    """
    if not isinstance(tensor, torch.Tensor):
        raise python_error(f"ipu_print_tensor must take a torch.tensor argument, got {tensor!r}.")
    if float_format not in _FLOAT_FORMATS:
        raise KeyError(f"{float_format!r} is no float format: choose one of {_FLOAT_FORMATS}.")
    trace = active()
    if trace is None:
        return tensor
    style = TensorFormat(
        summarise_threshold, edge_items, max_line_width, digits, float_format, separator, open_bracket, close_bracket
    )
    title = title or trace.traced(tensor).node.name
    trace.watches_gradients |= trace.training and print_gradient
    return trace.record(_print, tensor, title, print_gradient, style)


def _print(tensor: torch.Tensor, title: str, print_gradient: bool, style: TensorFormat) -> torch.Tensor:
    printed = tensor.clone()
    if not tensor.is_meta:
        _show(title, tensor.detach(), style)
        if print_gradient and printed.requires_grad:
            show_gradient = functools.partial(_show, f"{title}_gradient", style=style)
            printed.register_hook(show_gradient)  # type: ignore[no-untyped-call]
    return printed


def _show(title: str, tensor: torch.Tensor, style: TensorFormat) -> None:
    print(f"{title}: {style.text(tensor)}", file=sys.stderr, flush=True)


_print.__name__ = "ipu_print_tensor"
_print.runs_every_time = True  # type: ignore[attr-defined]
