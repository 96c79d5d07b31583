"""Restrictions of the code that PopTorch traces: the sentences with which `check`, `run` and the engines refuse code.

A sentence names the function by `{where}`. Details, such as the names of changed values, follow it.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

NO_FUNCTION = "This line"
"""The words for code outside of functions."""


class Restriction(NamedTuple):
    """A restriction of traced code: the sentence for code that breaks it, and the way out."""

    sentence: str
    remedy: str

    def reason(self, where: str, detail: str = "") -> str:
        """Return the sentence about a function without its period, with a detail in brackets."""
        return self.sentence.format(where=where) + (f" ({detail})" if detail else "")

    def refusal(self, where: str, detail: str = "") -> str:
        """Return the sentence about a function, and the way out."""
        return f"{self.reason(where, detail)}. {self.remedy}"


VALUE = Restriction(
    "{where} needs the value of a tensor, and a trace has none",
    "Keep the computation in tensors: torch.where makes a choice. Decide from shapes, arguments or self.training, "
    "which are known, or return the tensor and read it outside of forward.",
)
VALUE_OF_WRITTEN = VALUE._replace(
    remedy=f"{VALUE.remedy} Places in a table can be tensors: "
    "queue[(self.pointer + torch.arange(len(rows))) % len(queue)] = rows writes rows at a pointer that moves."
)
"""The restriction for a buffer that forward writes."""
SHAPE = Restriction(
    "{where} computes a tensor whose size depends on values, and a compiled program has fixed shapes",
    "Keep the full shape and mask instead: torch.where(mask, x, 0), x * mask, or a loss with ignore_index.",
)
GRADIENT = Restriction(
    "{where} differentiates, and a compiled program has one backward pass, that of its loss",
    "Leave gradients to the training step, or write the derivative out.",
)
STATE = Restriction(
    "{where} changes Python values in every call, but a compiled program runs it once, while it is traced: later steps "
    "would have the values of the first",
    "Pass changing values as arguments, and return values to keep; or register a buffer and write into it in place.",
)
LIST = Restriction(
    "{where} adds tensors to a list that still has those of the previous call, and a compiled program returns those of "
    "one call",
    "Clear the list before each call of the model, and keep its tensors in the loop if they are needed later.",
)
MOVED = Restriction(
    "{where} moves a tensor of an earlier call to another place, as in a queue of a fixed length, and a compiled "
    "program returns the tensors that it computes",
    "Register buffers for them, and write into these in place: queue.copy_(torch.cat([queue[1:], new[None]])).",
)
REPLACED = Restriction(
    "{where} puts another tensor in the place of a registered one, and a device keeps the tensor that the model was "
    "prepared with",
    "Assign a buffer a tensor of its shape and type, without gradients (detach()). If it is a cache that grows, make "
    "it long enough before the model is prepared, as by a call with the longest input.",
)
WHOLE = Restriction(
    "{where} uses a written buffer of integers or booleans of a model over several IPUs. A program carries it from "
    "call to call within the forward of its layer, on one IPU alone",
    "Register it in a layer of one stage whose forward alone uses it, or make it a torch.float32 buffer; or count in "
    "the loop, and pass the number to the model as a tensor.",
)
SHARED = Restriction(
    "{where} uses two tensors with memory in common, of which one changes. In PyTorch both change, and a device keeps "
    "a copy of each",
    "Make the view in forward (self.table[:1]) and keep the whole tensor alone; or copy the values (clone()).",
)
COUNTED = Restriction(
    "{where} averages statistics over all batches so far, whose number no compiled program reads",
    "Give it a momentum, a number, such as PyTorch's 0.1.",
)
OPERATOR = Restriction(
    "{where} uses an operator that PopTorch does not compile",
    "Rewrite it with supported operators: docs/operators.md lists them.",
)
ARGUMENT = Restriction(
    "{where} uses an operator with an argument that PopTorch does not compile",
    "PopTorch's message names the form that compiles.",
)
FORMAT = Restriction(
    "{where} computes in a number format that an IPU lacks",
    "Use float32, or model.half() for half precision.",
)
WEIGHT = Restriction(
    "{where} writes into a weight, and a compiled program would write into a copy of its own",
    "Write it in the loop, before the model is called: under torch.no_grad(), weight.copy_(...). Or compute with the "
    "new value (w = F.normalize(weight)).",
)
HOST_TENSOR = Restriction(
    "{where} uses a tensor of the host, which is neither a parameter nor a buffer of its model",
    'Make it one: self.scale = nn.Parameter(torch.ones(4)) is trained, self.register_buffer("scale", torch.ones(4)) is '
    "not.",
)
OWN_BACKWARD = Restriction(
    "{where} is an autograd.Function with a backward of its own, which no IPU runs: the device differentiates the "
    "operators of its forward",
    "Express it in torch operations whose derivatives are the gradients you mean (x.detach() passes none: "
    "x + (f(x) - x).detach() is f(x) with the gradient of x), or register a custom operator with poptorch.custom_op.",
)
SAMPLED = Restriction(
    "{where} asks for a value of the training step before the step has run: it was sampled from the model's output",
    "If the loop acts on it before there is a loss, as in reinforcement learning, the graph of the step grows with "
    "each action, and a device step is compiled from one graph. Let the model act in eval mode under torch.no_grad(), "
    "keep states, actions and rewards, and train with them in batches of one size, as PPO and DQN do.",
)

OF_COMPILER: Dict[str, Restriction] = {
    "HOST_READ": VALUE,
    "MOVE_TO_HOST": VALUE,
    "DYNAMIC_SHAPE": SHAPE,
    "GRADIENT": GRADIENT,
    "UNSUPPORTED_OPERATOR": OPERATOR,
    "RESTRICTED_ARGUMENT": ARGUMENT,
    "NUMBER_FORMAT": FORMAT,
    "HOST_TENSOR": HOST_TENSOR,
}
"""The restrictions that PopTorch's compiler finds, by the kind of its refusal."""
