"""Actor-critic: the policy's own samples decide how an episode goes on, and one loss follows from all of its steps."""

import argparse
import json
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="PyTorch actor-critic example")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
args = parser.parse_args([])
torch.manual_seed(args.seed)
SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Corridor:
    """A walk to the right end of a corridor, one reward a step."""

    def reset(self):
        self.place = 0
        return [0.0, 1.0]

    def step(self, action):
        self.place += 1 if action == 1 else -1
        done = abs(self.place) >= 3
        return [self.place / 3, 1.0], float(self.place > 0), done


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(2, 16)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


env = Corridor()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Policy().to(device)
optimizer = optim.Adam(model.parameters(), lr=3e-2)


def select_action(state):
    probs, state_value = model(torch.tensor(state, device=device))
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode():
    R, policy_losses, value_losses, returns = 0, [], [], []
    for r in model.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]
    return loss.item()


losses, running_reward = [], 10
for i_episode in range(5):
    state, ep_reward = env.reset(), 0
    for t in range(1, 30):
        action = select_action(state)
        state, reward, done = env.step(action)
        model.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
    losses.append(finish_episode())
print("RESULT", json.dumps({"losses": losses, "reward": running_reward}))
