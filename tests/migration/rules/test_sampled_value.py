"""Reads of values that a loop samples from a model's output are reported, if the update has not run."""

from __future__ import annotations

RULE = "sampled-value"
LOOP = """
        import torch
        from torch import nn
        from torch.distributions import Bernoulli, Categorical

        policy = nn.Sequential(nn.Linear(4, 2))
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
        for x in states:
            chosen = Categorical(logits=policy(x))
            action = chosen.sample()
{body}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(action.tolist())
"""


def test_reads(lines_in):
    """By methods, functions and decisions, also of values that are computed from samples."""
    body = (
        "env.step(action.cpu().numpy())",
        "reward = float((action == 1).sum())",
        "if action[0] == 1: count += 1",
        "if torch.bernoulli(policy(x)).sum() > 1: count += 1",
        "loss = -chosen.log_prob(action).mean() * reward",
    )
    assert lines_in(RULE, LOOP, *body) == [1, 2, 3, 4]


def test_what_may_be_read(lines_in):
    """Samples of an evaluation, and values with gradients, which the host computes."""
    body = (
        "with torch.no_grad():",
        "    played = Categorical(logits=policy(x)).sample()",
        "env.step(played.tolist())",
        "loss = -chosen.log_prob(action).mean()",
        "seen.append(loss.item() + chosen.entropy().mean().item())",
    )
    assert lines_in(RULE, LOOP, *body) == []
