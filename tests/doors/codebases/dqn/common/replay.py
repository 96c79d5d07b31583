import random
from collections import deque, namedtuple

import torch

Transition = namedtuple("Transition", "state action reward next_state done")


class ReplayBuffer:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, transition):
        self.memory.append(transition)

    def sample(self, size):
        batch = Transition(*zip(*random.sample(self.memory, size)))
        return (
            torch.tensor(batch.state, dtype=torch.float32), torch.tensor(batch.action).unsqueeze(1),
            torch.tensor(batch.reward).unsqueeze(1), torch.tensor(batch.next_state, dtype=torch.float32),
            torch.tensor(batch.done).unsqueeze(1),
        )

    def __len__(self):
        return len(self.memory)
