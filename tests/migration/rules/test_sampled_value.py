"""Reads of values that a loop samples from a model's output are reported, if the update has not run."""

from __future__ import annotations

import textwrap

from ignite_ipu.migration.findings import Outcome

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


def test_samples_of_outputs_in_evaluation_mode(lines):
    """The host draws them; the mode is that of the moment, and one that the text leaves open may be training mode."""
    loop = textwrap.dedent(LOOP.format(body="            env.step(action.tolist())"))
    line = next(number for number, each in enumerate(loop.strip().split("\n"), 1) if "env.step" in each)
    assert lines(RULE, loop) == [line]
    evaluated = loop.replace("nn.Sequential(nn.Linear(4, 2))", "nn.Sequential(nn.Linear(4, 2)).eval()")
    assert lines(RULE, evaluated) == []
    assert lines(RULE, loop.replace("for x in", "policy.eval()\nfor x in")) == []
    assert lines(RULE, evaluated.replace("for x in states:", "for x in states:\n    policy.train()")) == [line + 1]
    assert lines(RULE, evaluated.replace("seen.append", "policy.train(); seen.append")) == [line]


def test_a_mode_that_the_text_leaves_open(findings):
    loop = textwrap.dedent(LOOP.format(body="            env.step(action.tolist())"))
    found = findings(RULE, loop.replace("for x in", "if fixed: policy.eval()\nfor x in"))
    assert [each.run for each in found] == [Outcome.OPEN]


def test_the_mode_that_a_function_sets(findings):
    code = """
        import torch
        from torch.distributions import Categorical
        def freeze():
            policy.eval()
        def train(states):
            for x in states:
                optimizer.zero_grad()
                chosen = Categorical(logits=policy(x))
                action = chosen.sample()
                reward = env.step(action.tolist())
                (-chosen.log_prob(action) * reward).mean().backward()
                optimizer.step()
        policy = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(policy.parameters())
        {}
        train(states)
    """
    assert [each.run for each in findings(RULE, code.format("freeze()"))] == [Outcome.OPEN]
    assert [each.run for each in findings(RULE, code.format("pass"))] == [Outcome.REFUSED]


def test_the_step_of_an_engine_acts_for_a_handler(lines):
    """No loss goes backward in it, nor in code that it calls."""
    code = """
        import torch
        from ignite.engine import Engine, Events
        from torch.distributions import Categorical
        policy = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(policy.parameters())
        kept = []
        def act(engine, x):
            chosen = Categorical(logits=policy(x))
            action = chosen.sample()
            kept.append((chosen.log_prob(action), env.step(action.item())))
        trainer = Engine(act)
        @trainer.on(Events.EPOCH_COMPLETED)
        def update():
            optimizer.zero_grad()
            sum(-probability * reward for probability, reward in kept).backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [10]
