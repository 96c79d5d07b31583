"""Expressions of PyTorch that PopTorch 3.3 is known to compile, or to refuse, do so here.

`operator_expressions.json` has the verdicts, by the tensors that the expressions are about. "doubted" are those that
work here with a warning: Only PopTorch's sources show whether they work there.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch

VERDICTS: Dict[str, Dict[str, List[str]]] = json.loads(
    (pathlib.Path(__file__).parent / "operator_expressions.json").read_text(encoding="utf-8")
)
AT_ONCE = 40
DOUBT = "Only PopTorch's sources show this"


def floats(*shapes: Tuple[int, ...]) -> Tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.rand(shape, generator=generator) + 0.1 for shape in shapes)


def below(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape, generator=torch.Generator().manual_seed(0))


TENSORS: Dict[str, Tuple[torch.Tensor, ...]] = {
    "matrix": floats((3, 4), (3, 4), (3, 4)),
    "square": (torch.eye(4) + 0.1, *floats((4, 4), (4, 4))),
    "vector": floats((4,), (4,), (4,)),
    "cross": floats((4, 3), (4, 3), (4, 3)),
    "integers": (below(5, 3, 4).int() + 1, below(5, 3, 4).int() + 1, below(5, 3, 4).int()),
    "product": floats((3, 4), (4, 3), (3, 3)),
    "addmv": floats((3,), (3, 4), (4,)),
    "mv": floats((3, 4), (4,), (4,)),
    "batches": floats((2, 3, 4), (2, 4, 3), (2, 4, 3)),
    "baddbmm": floats((2, 3, 3), (2, 3, 4), (2, 4, 3)),
    "addbmm": floats((3, 3), (2, 3, 4), (2, 4, 3)),
    "attention": floats((2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "indices": (*floats((3, 4)), below(3, 3, 4), *floats((3, 4))),
    "rows": (*floats((4, 4)), below(4, 4), *floats((4, 4))),
    "row": (*floats((4, 4)), below(4, 4), *floats((4,))),
    "bag": (below(5, 6), *floats((5, 4), (6,))),
    "ctc": (*floats((6, 2, 5)), below(4, 2, 2) + 1, *floats((2,))),
    "pairs": (*floats((4, 5), (4, 5)), torch.tensor([1.0, -1, 1, -1])),
    "bilinear": floats((3, 4), (3, 4), (5, 4, 4)),
    "sequence": floats((2, 4, 8), (4, 4, 3), (4,)),
    "grouped sequence": floats((2, 4, 8), (4, 2, 3), (4,)),
    "image": floats((2, 4, 8, 8), (4, 4, 3, 3), (4,)),
    "grouped image": floats((2, 4, 8, 8), (4, 2, 3, 3), (4,)),
    "volume": floats((1, 4, 6, 6, 6), (4, 4, 3, 3, 3), (4,)),
    "grouped volume": floats((1, 4, 6, 6, 6), (4, 2, 3, 3, 3), (4,)),
    "grid": floats((1, 4, 8, 8), (1, 4, 4, 2), (4,)),
    "theta": floats((1, 2, 3), (1,), (1,)),
    "patches": floats((2, 4, 9), (1,), (1,)),
}
# How layers are called that take more than `a`, or return more than a tensor.
CALLS = {
    "nn.LSTM(": "layer(a)[0]",
    "nn.GRU(": "layer(a)[0]",
    "nn.RNN(": "layer(a)[0]",
    "nn.LSTMCell(": "layer(a)[0]",
    "nn.MultiheadAttention(": "layer(a, a, a)[0]",
    "nn.Transformer(": "layer(a, a)",
    "nn.TransformerDecoderLayer(": "layer(a, a)",
    "nn.CosineSimilarity(": "layer(a, b)",
}


class Expression(nn.Module):
    """Computes an expression of `a`, `b` and `c`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.layer = eval(text, {"nn": nn, "torch": torch}) if text.startswith("nn.") else None
        self.text = next((call for start, call in CALLS.items() if text.startswith(start)), "layer(a)")
        if self.layer is None:
            self.text = text

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return eval(self.text, {"torch": torch, "F": F, "layer": self.layer, "a": a, "b": b, "c": c})


def verdict(text: str, tensors: Tuple[torch.Tensor, ...], caplog: Any) -> str:
    """Compile an expression and return the outcome."""
    caplog.clear()
    executor = poptorch.inferenceModel(Expression(text))
    try:
        executor.compile(*(tensor.clone() for tensor in tensors))
    except (poptorch.Error, RuntimeError):
        return "refused"
    finally:
        executor.destroy()
    return "doubted" if DOUBT in caplog.text else "works"


CASES = [
    (name, expected, start)
    for name, verdicts in VERDICTS.items()
    for expected, texts in verdicts.items()
    for start in range(0, len(texts), AT_ONCE)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "expected", "start"), CASES)
def test_expressions_compile_as_poptorch_does(name, expected, start, caplog):
    texts = VERDICTS[name][expected][start : start + AT_ONCE]
    found = {text: verdict(text, TENSORS[name], caplog) for text in texts}
    assert found == dict.fromkeys(texts, expected)
