"""A value that a loop samples from the output of a trained model, and reads before the update.

The device makes a step as a whole, and so a sample exists after the update. A loop that acts on samples before there is
a loss, as in reinforcement learning, records a graph that grows with each action. The host draws the samples of outputs
in evaluation mode.

Remedy: Let the model act in eval mode under torch.no_grad(), keep states, actions and rewards, and train with them in
batches of one size, as PPO and DQN do.

In the loop:
    - action = torch.distributions.Categorical(logits=model(x)).sample()
    - played = action.tolist()
      optimizer.step()
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import SAMPLED
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, hit_of

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for fact in program.facts_of("sampled"):
        yield hit_of(fact, SAMPLED.reason(f"{fact.name}()"), SAMPLED.remedy)
