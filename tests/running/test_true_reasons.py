"""Refusals of scripts that an IPU cannot run: the first that a person reads is the true reason, at its line."""

from __future__ import annotations

import pytest

from ignite_ipu.errors import RunError

POLICY = """
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal
torch.manual_seed(0)
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 1)
    def forward(self, x):
        x = torch.relu(self.body(x))
        return torch.softmax(self.actor(x), -1), self.critic(x)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
def play(action):
    return torch.eye(5)[int(action) % 5], float(action)
state, saved = torch.eye(5)[0], []
for _ in range(3):
    probabilities, value = policy(state)
"""
ACTIONS = {
    "an actor with a critic": """
    distribution = Categorical(probabilities)
    action = distribution.sample()
    saved.append((distribution.log_prob(action), value))
    state, reward = play(action.item())
""",
    "an index drawn from log probabilities": """
    action = int(torch.multinomial(probabilities, 1))
    state, reward = play(action)
""",
    "a continuous action, as an array": """
    action = Normal(value, 0.1).sample()
    state, reward = play(action.numpy()[0])
""",
    "one action of two, negated": """
    action = 1 - Bernoulli(probabilities[0]).sample()
    state, reward = play(action.tolist())
""",
}


@pytest.mark.parametrize("name", ACTIONS)
def test_reinforcement_learning_is_called_so(run, name):
    """Not by the read of a value that stands in the way first."""
    with pytest.raises(RunError, match=r"script\.py:2\d.*it was sampled from the model's output \(by \w+ at .*PPO"):
        run(POLICY + ACTIONS[name])


GRAPH = """
import torch
from torch import nn
from torch.nn import functional as F
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.adjacency = nn.Linear(4, 4), torch.eye(8).to_sparse()
    def forward(self, x):
        return {returned}
model = Graph()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(8, 4)
with {context}:
    model({given})
"""


@pytest.mark.parametrize("context", ["torch.no_grad()", "torch.enable_grad()"])
@pytest.mark.parametrize(
    ("returned", "given", "line"),
    [("torch.sparse.mm(self.adjacency, self.layer(x))", "x", 10), ("self.layer(x.to_dense())", "x.to_sparse()", 15)],
)
def test_sparse_tensors_are_named(run, context, returned, given, line):
    """Kept by the model, or given to it."""
    text = GRAPH.format(returned=returned, given=given, context=context)
    with pytest.raises(RunError, match=rf"layout torch\.sparse_coo takes part in the step at .*script\.py:{line};"):
        run(text)


PENALTY = """
import torch
from torch import autograd, nn
torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
generator = nn.Linear(3, 2)
optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
real = torch.randn(8, 2)
def penalty(fake):
    mixed = (0.5 * real + 0.5 * fake).requires_grad_(True)
    (found,) = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((found.norm(2, dim=1) - 1) ** 2).mean()
fake = generator(torch.randn(8, 3)){detach}
loss = critic(fake).mean() - critic(real).mean() + penalty(fake)
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("detach", "reason"),
    [
        (
            ".detach()",
            r"script\.py:11: requires_grad_ asks for gradients .* gradient penalty .* Gradients of inputs",
        ),
        (
            "",
            r"script\.py:12: torch\.autograd\.grad\(create_graph=True\) asks .* differentiated again",
        ),
    ],
)
def test_a_penalty_on_gradients_of_inputs_is_named(run, detach, reason):
    """Not the call that requires gradients, as if it wrote values."""
    optimizers = "for_g = torch.optim.Adam(generator.parameters(), lr=0.01)\nreal"
    with pytest.raises(RunError, match=reason):
        run(PENALTY.format(detach=detach).replace("real", optimizers, 1))


GROWING = """
import torch
from torch import nn
torch.manual_seed(0)
policy, cell = nn.Linear(4, 2), nn.RNNCell(4, 2)
model = nn.ModuleList([policy, cell])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total, hidden = 0, torch.zeros(1, 2)
for number in range(4):
    x = torch.randn(1, 4)
    {update}
    optimizer.zero_grad()
    total.backward({retained})
    optimizer.step()
"""


@pytest.mark.parametrize("retained", ["", "retain_graph=True"])
@pytest.mark.parametrize(
    "update",
    [
        "total = total - torch.log_softmax(policy(x), -1)[0, number % 2]",
        "hidden = cell(x, hidden); total = hidden.sum()",
    ],
)
def test_a_graph_that_grows_over_updates_is_named(run, update, retained):
    """PyTorch goes back to the weights of earlier steps, or raises; trained as constants these would train others."""
    with pytest.raises(RunError, match=r"loss at .*:13 is computed from a value of .*:11, of which an update has run"):
        run(GROWING.format(update=update, retained=retained))
