"""`torch.jit.trace(model, x)` in the middle of a training, as TensorBoard's graphs take it, is of the newest model."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events

from tests.session.weights.test_access import by_captured_step, by_factory, loader, network

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("way", [by_factory, by_captured_step])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_trace_after_an_iteration_computes_what_the_model_does(way, gradients):
    """For other numbers of samples, too: nothing of it was run on the device; and the training goes on as it would."""
    model, undisturbed = network(), network()
    trainer = way(model)

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def trace():
        model.eval()
        with torch.set_grad_enabled(gradients):
            traced = torch.jit.trace(model, X)
        expected = copy.deepcopy(model)(X[:3])
        torch.testing.assert_close(traced(X[:3]), expected)
        assert {"linear", "batch_norm"} <= {node.kind().split("::")[-1] for node in traced.inlined_graph.nodes()}

    trainer.run(loader(), max_epochs=1)
    way(undisturbed).run(loader(), max_epochs=1)
    assert model.state_dict()["0.weight"].tolist() == undisturbed.state_dict()["0.weight"].tolist()
