"""Reinforcement learning driven by the host: actions are sampled and played before there is a loss."""

import json
import random

import torch
from torch import nn, optim
from torch.distributions import Categorical


class Corridor:
    """Walk right along five cells to reach the reward."""

    def reset(self):
        self.position = 0
        return self.state()

    def state(self):
        return [1.0 if cell == self.position else 0.0 for cell in range(5)]

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        done = self.position == 4
        return self.state(), 1.0 if done else -0.1, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(5, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(self.affine(x), dim=1)


random.seed(0)
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
policy = Policy().to(device)
optimizer = optim.Adam(policy.parameters(), lr=5e-2)


def select_action(state):
    probs = policy(torch.tensor([state], device=device))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    total = 0.0
    policy_loss = []
    returns = []
    for r in policy.rewards[::-1]:
        total = r + 0.9 * total
        returns.insert(0, total)
    for log_prob, value in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * value)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


environment = Corridor()
for episode in range(30):
    state = environment.reset()
    for t in range(20):
        state, reward, done = environment.step(select_action(state))
        policy.rewards.append(reward)
        if done:
            break
    finish_episode()
print("RESULT", json.dumps({"steps": t + 1}))
