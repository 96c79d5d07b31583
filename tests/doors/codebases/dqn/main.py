import json
import random
from itertools import count

import numpy as np
import torch

from agent import DQNAgent
from common.env import Corridor
from common.replay import ReplayBuffer, Transition

SEED = 7
random.seed(SEED); np.random.seed(SEED); torch.manual_seed(SEED)


def train(episodes=6):
    env, memory = Corridor(), ReplayBuffer(200)
    agent = DQNAgent(env.observation_size, env.actions, device=torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
    returns, losses = [], []
    for episode in range(episodes):
        state, total = env.reset(), 0.0
        for t in count():
            action = agent.act(state)
            next_state, reward, done = env.step(action)
            memory.push(Transition(state, action, reward, next_state, float(done)))
            loss = agent.learn(memory)
            if loss is not None:
                losses.append(loss)
            state, total = next_state, total + reward
            if done or t > 8:
                break
        returns.append(total)
    return returns, losses, agent


if __name__ == "__main__":
    returns, losses, agent = train()
    q = agent.values(Corridor().reset())
    print("RESULT", json.dumps({"returns": returns, "losses": losses, "q": q, "steps": agent.steps_done}))
