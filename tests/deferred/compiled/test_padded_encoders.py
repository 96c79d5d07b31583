"""PyTorch's encoders have zeros at padding where autograd records nothing, and computed values elsewhere."""

from __future__ import annotations

import copy
from typing import Any, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import create_ipu_evaluator, ipu_prepare

X = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(1))
X[1, 4:] = X[2, 1:] = 0
AMONG = X.clone()
AMONG[0, 2] = 0  # padding that is not at the end


class Classifier(nn.Module):
    def __init__(self, normalises: bool = False, heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, heads, 16, dropout=0.0, batch_first=True)
        norm = nn.LayerNorm(8) if normalises else None
        if norm is not None:
            nn.init.normal_(norm.bias)
        self.embedding = nn.Embedding(20, 8)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, norm=norm), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        features = self.encoder(self.embedding(x), src_key_padding_mask=x == 0)
        return self.head(features.mean(1)), features


def seen(model: nn.Module, optimizer: Any) -> List[Any]:
    found: List[Any] = []
    for x in (X, AMONG):
        loss = F.cross_entropy(model.train()(x)[0], torch.tensor([0, 1, 1, 0]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                found.append([each.detach() + 0 for each in model(x)])
    return found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but")
@pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype")
@pytest.mark.parametrize("arguments", [{}, {"normalises": True}, {"heads": 1}])
def test_evaluations_have_the_values_of_pytorch_at_padding(arguments: Dict[str, Any]) -> None:
    model = Classifier(**arguments)
    native = copy.deepcopy(model)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    expected = seen(native, torch.optim.SGD(native.parameters(), lr=0.1))
    torch.testing.assert_close(seen(model, optimizer), expected, rtol=1e-4, atol=1e-5)
    assert (not expected[0][1][2, 1:].any()) == (arguments == {})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_evaluator_has_them() -> None:
    model = Classifier().eval()
    native = copy.deepcopy(model)
    evaluator = create_ipu_evaluator(model, model_transform=lambda output: output[1])
    evaluator.run([(X, torch.zeros(4))])
    with torch.no_grad():
        torch.testing.assert_close(evaluator.state.output[0], native(X)[1], rtol=1e-4, atol=1e-5)
