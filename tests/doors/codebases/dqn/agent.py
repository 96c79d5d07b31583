import math
import random

import torch
import torch.nn.functional as F
import torch.optim as optim

from networks import DuelingDQN


class DQNAgent:
    BATCH_SIZE, GAMMA, TAU = 8, 0.9, 0.1

    def __init__(self, observations, actions, device):
        self.device, self.actions, self.steps_done = device, actions, 0
        self.policy_net = DuelingDQN(observations, actions).to(device)
        self.target_net = DuelingDQN(observations, actions).to(device)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = optim.AdamW(self.policy_net.parameters(), lr=1e-2, amsgrad=True)

    def act(self, state):
        eps = 0.05 + 0.85 * math.exp(-self.steps_done / 20)
        self.steps_done += 1
        if random.random() > eps:
            with torch.no_grad():
                state = torch.tensor(state, dtype=torch.float32, device=self.device).unsqueeze(0)
                return self.policy_net(state).max(1)[1].view(1, 1).item()
        return random.randrange(self.actions)

    def values(self, state):
        with torch.no_grad():
            return self.policy_net(torch.tensor([state], dtype=torch.float32, device=self.device))[0].tolist()

    def learn(self, memory):
        if len(memory) < self.BATCH_SIZE:
            return None
        batch = memory.sample(self.BATCH_SIZE)
        states, actions, rewards, next_states, dones = (each.to(self.device) for each in batch)
        q = self.policy_net(states).gather(1, actions)
        with torch.no_grad():
            best = self.policy_net(next_states).argmax(1, keepdim=True)
            target = rewards + self.GAMMA * self.target_net(next_states).gather(1, best) * (1 - dones)
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.policy_net.parameters(), 1.0)
        self.optimizer.step()
        for t, p in zip(self.target_net.parameters(), self.policy_net.parameters()):
            t.data.copy_(self.TAU * p.data + (1 - self.TAU) * t.data)
        return loss.item()
