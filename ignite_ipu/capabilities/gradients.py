"""Names about gradients: clipping, hooks, second derivatives, and steps that evaluate the loss themselves."""

from __future__ import annotations

from ignite_ipu.capabilities.table import Capability, Table, Treatment
from ignite_ipu.capabilities.traced import Restriction

_HOOK_OF_MODULE = "a module's gradients exist inside the device's step alone, so a hook on them never runs"
_HOOK_OF_PARAMETER = "autograd runs the hook when a gradient has come to the host"
_TWICE = "a program has one backward pass, of which none is computed, and the host has no graph of it"
_HOOKS_OF_PARAMETERS = "Hooks on parameters do: parameter.register_hook()"

GRADIENTS_ON_THE_HOST = (
    "Gradients of inputs come to the host with IPUConfig(update='host'). Those that are differentiated again are "
    "taken on the host, from a copy of the model, copy.deepcopy(model), which is an ordinary one with the newest "
    "weights, in a loop with ipu_prepare or an IPUAccelerator (under ignite-ipu run no copy goes backward). A loss "
    "that is computed from them is trained on the host."
)
"""The ways in which gradients come to the host."""
DIFFERENTIATED_AGAIN = Restriction(
    f"{{where}} asks for gradients that can be differentiated again: {_TWICE}", GRADIENTS_ON_THE_HOST
)
OF_COMPUTED = Restriction(
    "{where} asks for gradients that exist on the device alone; those with respect to weights and inputs come to the "
    "host with IPUConfig(update='host')",
    GRADIENTS_ON_THE_HOST,
)
MADE_TRAINABLE = Restriction(
    "{where} asks for gradients with respect to a tensor that the step computes without weights",
    f"A gradient penalty takes them by torch.autograd.grad. {GRADIENTS_ON_THE_HOST}",
)

GRADIENTS = Table(
    [
        Capability(
            "torch.nn.utils.clip_grad_norm_",
            Treatment.DEVICE,
            "the device clips in its step; with SGD with momentum, or RMSprop, updates are made on the host",
            example="nn.utils.clip_grad_norm_(model.parameters(), 0.1)",
        ),
        Capability(
            "torch.nn.utils.clip_grad_value_",
            Treatment.UPDATES_ON_HOST,
            "PopTorch's optimizers clip by the global norm",
            "Use clip_grad_norm_, or --set update=host",
            example="nn.utils.clip_grad_value_(model.parameters(), 0.01)",
        ),
        Capability(
            "torch.Tensor.grad",
            Treatment.UPDATES_ON_HOST,
            "a gradient that is read between backward() and the step comes to the host",
            example="norm = model.weight.grad.norm()",
        ),
        Capability(
            "torch.Tensor.grad(written)",
            Treatment.UPDATES_ON_HOST,
            "the device updates weights by its own gradients",
            example="model.weight.grad.mul_(0.5)",
        ),
        Capability(
            "torch.Tensor.register_hook",
            Treatment.UPDATES_ON_HOST,
            _HOOK_OF_PARAMETER,
            example="if step == 0: model.weight.register_hook(lambda gradient: 0.5 * gradient)",
        ),
        Capability(
            "torch.Tensor.register_post_accumulate_grad_hook",
            Treatment.UPDATES_ON_HOST,
            _HOOK_OF_PARAMETER,
            example="if step == 0: model.weight.register_post_accumulate_grad_hook(seen.append)",
        ),
        Capability(
            "torch.nn.Module.register_backward_hook",
            Treatment.REFUSED,
            _HOOK_OF_MODULE,
            _HOOKS_OF_PARAMETERS,
            example="model.register_backward_hook(lambda *given: None)",
        ),
        Capability(
            "torch.nn.Module.register_full_backward_hook",
            Treatment.REFUSED,
            _HOOK_OF_MODULE,
            _HOOKS_OF_PARAMETERS,
            example="model.register_full_backward_hook(lambda *given: None)",
        ),
        Capability(
            "torch.nn.Module.register_full_backward_pre_hook",
            Treatment.REFUSED,
            _HOOK_OF_MODULE,
            _HOOKS_OF_PARAMETERS,
            example="model.register_full_backward_pre_hook(lambda *given: None)",
        ),
        Capability(
            "torch.autograd.grad",
            Treatment.UPDATES_ON_HOST,
            "gradients with respect to weights and inputs come to the host",
            "Use backward() and optimizer.step(); parameter.grad is there after backward()",
            example="torch.autograd.grad(model(x).sum(), list(model.parameters()))",
        ),
        Capability(
            "torch.autograd.grad(create_graph)",
            Treatment.REFUSED,
            _TWICE,
            "Write the derivative out in forward",
            example="torch.autograd.grad(model(x).sum(), list(model.parameters()), create_graph=True)",
        ),
        Capability(
            "torch.autograd.backward",
            Treatment.DEVICE,
            "each loss goes backward",
            replaces="loss.backward()",
            example="torch.autograd.backward([loss])",
        ),
        Capability(
            "torch.Tensor.backward(retain_graph)",
            Treatment.DEVICE,
            "gradients may flow through the operations once more",
            replaces="loss.backward()",
            example="loss.backward(retain_graph=True)",
        ),
        Capability(
            "torch.Tensor.backward(create_graph)",
            Treatment.REFUSED,
            _TWICE,
            "Write the derivative out in forward",
            replaces="loss.backward()",
            example="loss.backward(create_graph=True)",
        ),
        Capability(
            "torch.optim.Optimizer.step(closure)",
            Treatment.UPDATES_ON_HOST,
            "the step evaluates the loss several times, which a compiled step cannot",
            "Call backward() and step() without a closure",
            replaces="optimizer.step()",
            example="optimizer.step(closure)",
        ),
    ]
)
