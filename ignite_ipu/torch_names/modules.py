"""Private names of `torch.nn`: the tables of a module, hooks, base classes of layers, and wrappers."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.torch_names.table import NAMES, Name, attribute, code_of, find, word

__all__ = [
    "BACKWARD_HOOKS",
    "BUFFERS",
    "CALL",
    "CHECKPOINT_CALL",
    "CHECKPOINT_GENERATORS",
    "CONVERSION",
    "DETECTION_OF_CAUSAL_MASKS",
    "DROPOUT",
    "FORWARD_HOOKS",
    "FUNCTIONAL_CALL",
    "MODULES",
    "PARAMETERS",
    "SAMPLE_CHECK",
    "SET_UP_OF_BACKWARD_HOOKS",
    "STATE_DICT_HOOKS",
    "STATE_SAVING",
    "TITLE",
    "VALIDATION_FLAG",
    "WRAPPER_CONTEXT",
    "WRAPPER_INITIALIZATION",
    "AnyBatchNorm",
    "NormWithStatistics",
    "all_modules",
    "all_named_buffers",
    "all_named_modules",
    "all_named_parameters",
    "all_parameters",
    "attributes_of_modules",
    "buffers_of",
    "compiled_call_of",
    "compiled_original",
    "device_context",
    "forget_compiled_call",
    "forward_hooks_of",
    "forward_pre_hooks_of",
    "global_hooks",
    "has_parameters",
    "hook_tables_of",
    "modules_of",
    "name_factories",
    "pack_padded_sequence",
    "parameters_of",
    "title_of",
]


def _of_module(name: str, lost: str) -> str:
    return attribute(f"torch.nn.Module.{name}", "2.0", lost, nn.Module)


PARAMETERS = _of_module("_parameters", "Parameters are not found without a transfer, so no model is compiled.")
BUFFERS = _of_module("_buffers", "Buffers are not found without a transfer, so no model is compiled.")
MODULES = _of_module("_modules", "Modules that come and go between calls are not noticed, so no model is compiled.")


def parameters_of(module: nn.Module) -> Dict[str, Optional[nn.Parameter]]:
    """Return a module's own parameters by name, a dictionary that may be changed."""
    found: Dict[str, Optional[nn.Parameter]] = getattr(module, PARAMETERS)
    return found


def buffers_of(module: nn.Module) -> Dict[str, Optional[torch.Tensor]]:
    """Return a module's own buffers by name, a dictionary that may be changed."""
    found: Dict[str, Optional[torch.Tensor]] = getattr(module, BUFFERS)
    return found


def modules_of(module: nn.Module) -> Dict[str, Optional[nn.Module]]:
    """Return the modules directly in another one by name, a dictionary that may be changed."""
    found: Dict[str, Optional[nn.Module]] = getattr(module, MODULES)
    return found


_INNER_CALL = word(
    "torch.nn.Module._call_impl",
    "2.13",
    "Each trace takes longer, the more classes of modules a process has.",
    check=lambda: "_call_impl" in nn.Module.__call__.__code__.co_names,
)
CALL = _INNER_CALL if NAMES["torch.nn.Module._call_impl"].exists() else "__call__"
"""The method of `nn.Module` that each call of a module runs, but one that `module.compile()` has compiled.

Python goes through all derived classes whenever `__call__` itself is replaced.
"""

_NAMED_MODULES = nn.Module.named_modules


def all_named_modules(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """Return a module and those in it, with their paths: `model.named_modules()`, without a generator at each level."""
    found: Dict[int, Tuple[str, nn.Module]] = {}
    _add_modules({"": model}, "", found)
    return [*found.values()]


def _add_modules(parts: Mapping[str, Any], prefix: str, found: Dict[int, Tuple[str, nn.Module]]) -> None:
    for name, part in parts.items():
        number = id(part)
        if part is None or number in found:
            continue
        path = prefix + name
        if type(part).named_modules is not _NAMED_MODULES:  # a class of its own opinion
            for inner in part.named_modules(prefix=path):
                found.setdefault(id(inner[1]), inner)
            continue
        found[number] = path, part
        inner_parts = getattr(part, MODULES)
        if inner_parts:
            _add_modules(inner_parts, path and f"{path}.", found)


def all_modules(model: nn.Module) -> List[nn.Module]:
    """Return a module and those in it: `model.modules()`, without a generator at each level."""
    return [module for _, module in all_named_modules(model)]


def all_named_parameters(model: nn.Module) -> List[Tuple[str, nn.Parameter]]:
    """Return the parameters of a module and those in it by name, each once, as `named_parameters()` of `nn.Module`."""
    return _all_named(model, PARAMETERS)


def all_named_buffers(model: nn.Module) -> List[Tuple[str, torch.Tensor]]:
    """Return the buffers of a module and those in it by name, each once, as `named_buffers()` of `nn.Module`."""
    return _all_named(model, BUFFERS)


def _all_named(model: nn.Module, kind: str) -> List[Tuple[str, Any]]:
    found: Dict[int, Tuple[str, Any]] = {}
    for path, module in all_named_modules(model):
        prefix = f"{path}." if path else ""
        for name, tensor in getattr(module, kind).items():
            if tensor is not None:
                found.setdefault(id(tensor), (prefix + name, tensor))
    return [*found.values()]


def all_parameters(model: nn.Module) -> List[nn.Parameter]:
    """Return the parameters of a module and those in it, whatever its class returns from `parameters()`."""
    return [parameter for _, parameter in all_named_parameters(model)]


def has_parameters(model: nn.Module) -> bool:
    """Return whether a module, or a module in it, has a parameter."""
    # The first parameter is mostly found at once; a class that hides its own takes the whole walk.
    return next(nn.Module.parameters(model), None) is not None or bool(all_parameters(model))


FORWARD_HOOKS = (
    _of_module("_forward_hooks", "Hooks that come and go between calls are not noticed, so no model is compiled."),
    _of_module("_forward_pre_hooks", "Blocks of a pipeline cannot be removed or printed."),
)
"""Attributes of a module: the hooks that its calls run."""
forward_hooks_of: Callable[[Dict[str, Any]], Tuple[Dict[Any, Any], ...]] = operator.itemgetter(*FORWARD_HOOKS)
"""Returns the dictionaries with the hooks that calls of a module run, by its attributes."""
BACKWARD_HOOKS = (
    _of_module("_backward_hooks", "Hooks on the gradients of a module are not refused, and never run."),
    _of_module("_backward_pre_hooks", "Hooks before the backward of a module are not refused, and never run."),
)
"""Attributes of a module: the hooks on its gradients."""
STATE_DICT_HOOKS = _of_module("_state_dict_hooks", "state_dict() of a model on a device does not bring its weights.")
STATE_SAVING = (
    *("state_dict", "get_extra_state"),
    _of_module("_save_to_state_dict", "Recovery reads the state dictionary of a model for each snapshot."),
)
"""Methods of a module that decide on the entries of its state dictionary."""
_MORE_OF_MODULES = (
    _of_module("_is_full_backward_hook", "A change of this attribute compiles a model again."),
    attribute(
        "torch.nn.Module._forward_hooks_always_called",
        "2.13",
        "A change of this attribute compiles a model again.",
        nn.Module,
    ),
)


def attributes_of_modules() -> List[str]:
    """Return the attributes that PyTorch gives every module."""
    return [*vars(nn.Module()), *_MORE_OF_MODULES]


def hook_tables_of(module: nn.Module) -> List[Dict[Any, Any]]:
    """Return the dictionaries of a module with its forward hooks, and with the facts by which PyTorch calls them."""
    return [table for name, table in vars(module).items() if name.startswith(FORWARD_HOOKS)]


def forward_pre_hooks_of(module: nn.Module) -> Dict[int, Callable[..., Any]]:
    """Return the hooks that run before a call of a module, a dictionary that may be changed."""
    hooks: Dict[int, Callable[..., Any]] = getattr(module, FORWARD_HOOKS[1])
    return hooks


_GLOBAL_HOOKS = {
    kind: find(
        f"torch.nn.modules.module._global{kind}", "2.0", f"Global{kind.replace('_', ' ')} are not noticed.", fallback={}
    )
    for kind in (*FORWARD_HOOKS, *BACKWARD_HOOKS)
}


def global_hooks(*kinds: str) -> List[Dict[Any, Any]]:
    """Return the dictionaries of hooks on all modules, of `FORWARD_HOOKS` or `BACKWARD_HOOKS`."""
    return [_GLOBAL_HOOKS[kind] for kind in kinds]


TITLE = "_get_name"
"""The method of a module that returns the name with which it is printed."""
_TITLE = Name("torch.nn.Module._get_name", "2.0", "A model is printed without the blocks of its pipeline.")


def title_of(module: nn.Module) -> str:
    """Return the name with which a module is printed."""
    return str(getattr(module, TITLE)()) if _TITLE.exists() else type(module).__name__


_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
    from torch.nn.modules.batchnorm import _NormBase as NormWithStatistics
    from torch.nn.modules.dropout import _DropoutNd as DROPOUT
else:
    NormWithStatistics = find(
        "torch.nn.modules.batchnorm._NormBase",
        "2.0",
        "Normalisations that derive from no public class of torch.nn are not known to have statistics.",
        fallback=_NORMS,
    )
    AnyBatchNorm = find(
        "torch.nn.modules.batchnorm._BatchNorm",
        "2.0",
        "Normalisations that derive from no public class of torch.nn are not known to average over the batch.",
        fallback=_NORMS[:4],
    )
    DROPOUT = find(
        "torch.nn.modules.dropout._DropoutNd",
        "2.0",
        "Dropout layers that derive from no public class of torch.nn are not known to draw numbers.",
        fallback=(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    )

SET_UP_OF_BACKWARD_HOOKS = word(
    "torch.utils.hooks.BackwardHook._apply_on_tensors",
    "2.0",
    "Hooks on the gradients of modules run in the traces of the emulator.",
)

CONVERSION = code_of(
    "torch.nn.Module._apply", "2.0", "model.half() and model.to() read the gradients of captured parameters."
)
"""Code of the method that converts and moves the tensors of a module; None if there is none."""
FUNCTIONAL_CALL = code_of(
    "torch.nn.utils.stateless._functional_call",
    "2.0",
    "torch.func.functional_call of a captured model computes with the model's own weights.",
)
"""Code of the function behind `torch.func.functional_call`; None if there is none."""
SAMPLE_CHECK = code_of(
    "torch.distributions.Distribution._validate_sample",
    "2.0",
    "Distributions of deferred values need validate_args=False.",
)
"""Code that checks the sample of a distribution; None if there is none."""
VALIDATION_FLAG = word(
    "torch.distributions.Distribution._validate_args",
    "2.0",
    "Distributions in a traced model need validate_args=False.",
)
DETECTION_OF_CAUSAL_MASKS = word(
    "torch.nn.modules.transformer._detect_is_causal_mask",
    "2.13",
    "The error of a mask that is read in a trace does not mention is_causal.",
)

_PACK = Name(
    "torch._VF._pack_padded_sequence",
    "2.0",
    "Packed sequences of deferred values are not packed on the host.",
    fallback=None,
)


def pack_padded_sequence() -> Any:
    """Return the function of C++ behind `nn.utils.rnn.pack_padded_sequence`; None if there is none."""
    return _PACK.get()


_FACTORIES = Name(
    "torch.utils._device._device_constructors",
    "2.0",
    "`with torch.device(...)` in a script does not reach the factories that the script is given for its own.",
    fallback=lambda: None,
)


_CONTEXT = Name(
    "torch.utils._device.DeviceContext",
    "2.0",
    '`with torch.device("cuda")` in a script is not taken to the host.',
)


def device_context() -> Any:
    """Return the class of the function mode that `with torch.device(...)` enters."""
    return _CONTEXT.get()


def name_factories() -> None:
    """Let PyTorch list its factories, which it does by identity when it first needs them."""
    _FACTORIES.get()()


_CHECKPOINTED = "torch.utils.checkpoint(use_reentrant=False) in a model for an IPU runs autograd's code in the trace."
CHECKPOINT_CALL = word("torch.utils.checkpoint._checkpoint_without_reentrant", "2.0", _CHECKPOINTED, until="2.13")
"""The function of `torch.utils.checkpoint` that calls a function and has memory saved."""
CHECKPOINT_GENERATORS = (
    word("torch.utils.checkpoint._checkpoint_without_reentrant_generator", "2.13", _CHECKPOINTED),
    word("torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl", "2.14", _CHECKPOINTED),
)
"""The generators of `torch.utils.checkpoint` that do so around a call."""

_COMPILED_CALL = attribute(
    "torch.nn.Module._compiled_call_impl",
    "2.13",
    "model.compile() is not refused in a model for an IPU.",
    nn.Module,
)


def compiled_call_of(module: nn.Module) -> Optional[Callable[..., Any]]:
    """Return the result of `module.compile()`, None if it was not called."""
    found: Optional[Callable[..., Any]] = module.__dict__.get(_COMPILED_CALL)
    return found


def forget_compiled_call(module: nn.Module) -> None:
    """Undo `module.compile()`."""
    setattr(module, _COMPILED_CALL, None)


def _has_wrapper(name: str) -> bool:
    """Return whether the class of modules that `torch.compile` returns uses a name, without importing the compiler."""
    return name in Path(torch.__file__).with_name("_dynamo").joinpath("eval_frame.py").read_text(encoding="utf-8")


_WRAPPER = "torch._dynamo.eval_frame.OptimizedModule"
WRAPPER_CONTEXT = word(
    f"{_WRAPPER}.dynamo_ctx",
    "2.0",
    "Models that torch.compile returned cannot be copied or saved.",
    check=lambda: _has_wrapper("dynamo_ctx"),
)
"""Attribute of a model that `torch.compile` returned: its compiler."""
WRAPPER_INITIALIZATION = word(
    f"{_WRAPPER}._initialize",
    "2.13",
    "A model that torch.compile returned gets its compiler back from a file.",
    check=lambda: _has_wrapper("_initialize"),
)
"""Method of a model that `torch.compile` returned: starts its compiler."""
_ORIGINAL = Name(
    f"{_WRAPPER}._orig_mod",
    "2.0",
    "A model that torch.compile returned is not unwrapped: pass the model itself.",
    check=lambda: _has_wrapper("_orig_mod"),
)


def compiled_original(module: Any) -> Any:
    """Return the model that `torch.compile` was given, for one that it returned."""
    if not hasattr(module, _ORIGINAL.last):
        raise _ORIGINAL.missing()
    return getattr(module, _ORIGINAL.last)
