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


def found_in(lines, *body):
    """Return the numbers of the reported lines of a loop's body."""
    text = LOOP.format(body="\n".join(f"            {line}" for line in body))
    return [line - 9 for line in lines(RULE, text)]


def test_reads(lines):
    """By methods, functions and decisions, also of values that are computed from samples."""
    body = (
        "env.step(action.cpu().numpy())",
        "reward = float((action == 1).sum())",
        "if action[0] == 1: count += 1",
        "if torch.bernoulli(policy(x)).sum() > 1: count += 1",
        "loss = -chosen.log_prob(action).mean() * reward",
    )
    assert found_in(lines, *body) == [1, 2, 3, 4]


def test_what_may_be_read(lines):
    """Samples of an evaluation, and values with gradients, which the host computes."""
    body = (
        "with torch.no_grad():",
        "    played = Categorical(logits=policy(x)).sample()",
        "env.step(played.tolist())",
        "loss = -chosen.log_prob(action).mean()",
        "seen.append(loss.item() + chosen.entropy().mean().item())",
    )
    assert found_in(lines, *body) == []
