"""Automatic casts between float16 and float32, as PopTorch had them up to 3.0; 3.3 itself has none.

While an autocast is on, each traced operator is looked up in a `Policy`, and its floating-point arguments are cast
before it runs. The innermost setting counts: a `with autocast(...)` block, a decorated function, or a module marked
with `Module.autocast`. Importing this module gives `torch.nn.Module` that method.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace.active import TO, Follower, Trace, active
from ignite_ipu.emulator.values.structures import map_tensors
from ignite_ipu.operators.words import words

Operation = Union[str, type, Callable[..., Any]]

_FLAG = "_poptorch_autocast"
_DEFAULTS: Dict[str, FrozenSet[Union[str, type]]] = {
    "fp16": frozenset(
        (
            *words("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution conv_tbc"),
            *words("addmm addmv addr matmul mm mv bmm baddbmm addbmm chain_matmul linear einsum"),
            *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        )
    ),
    # Where float16 runs out of range or digits; the older guide does not print its list, so this is PyTorch's for GPUs.
    "fp32": frozenset(
        words(
            "acos asin cosh cumprod cumsum dist erfinv exp expm1 group_norm layer_norm log log10 log1p log2 "
            "log_softmax norm pow prod reciprocal renorm rsqrt sinh softmax softmin softplus sum tan "
            "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cosine_similarity "
            "cross_entropy ctc_loss hinge_embedding_loss kl_div l1_loss margin_ranking_loss mse_loss nll_loss "
            "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"
        )
    ),
    "promote": frozenset(words("addcdiv addcmul atan2 bilinear cat cross dot equal index_put stack tensordot")),
    "demote": frozenset(),
}
_CASTABLE = (torch.float16, torch.float32)
_MARKS = itertools.count()


class Policy:
    """Table of the operations that run in half, and of those that run in float.

    An operation is a function of PyTorch (`torch.bmm`), its name, or a module class, which stands for everything that
    modules of the class compute. A list that is not given keeps its default.

    Args:
        promote: Run in float32 when their arguments are of both types.
        demote: Run in float16 when their arguments are of both types.
    """

    def __init__(
        self,
        fp16: Optional[Iterable[Operation]] = None,
        fp32: Optional[Iterable[Operation]] = None,
        promote: Optional[Iterable[Operation]] = None,
        demote: Optional[Iterable[Operation]] = None,
    ) -> None:
        if any(each is not None for each in (fp16, fp32, promote, demote)):
            warn_of_age("poptorch.autocasting.Policy")
        given = {"fp16": fp16, "fp32": fp32, "promote": promote, "demote": demote}
        # An operation that one list names is not looked for in the defaults of the others.
        named = {_key(operation) for each in given.values() for operation in each or ()}
        self._operations: Dict[str, FrozenSet[Union[str, type]]] = {
            kind: _DEFAULTS[kind] - named if chosen is None else frozenset(map(_key, chosen))
            for kind, chosen in given.items()
        }

    def type_for(self, name: str, modules: Sequence[nn.Module], types: FrozenSet[torch.dtype]) -> Optional[torch.dtype]:
        """Return the type to cast arguments of these types to in modules, outermost first; None leaves them alone."""
        for names in (*(type(module).__mro__ for module in reversed(modules)), [name.rstrip("_") or name]):
            for kind, operations in self._operations.items():
                if not operations.isdisjoint(names):
                    if kind in ("promote", "demote") and len(types) < 2:
                        return None
                    return torch.float16 if kind in ("fp16", "demote") else torch.float32
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._operations == other._operations

    def __hash__(self) -> int:
        return hash(tuple(self._operations.items()))

    def __repr__(self) -> str:
        lists = (
            f"{kind}={sorted(each if isinstance(each, str) else each.__name__ for each in operations)}"
            for kind, operations in self._operations.items()
        )
        return f"Policy({', '.join(lists)})"


@functools.lru_cache(maxsize=None)
def warn_of_age(name: str) -> None:
    """Log once per process that PopTorch 3.3 has no autocasting."""
    logger.warning(
        "%s is no part of PopTorch 3.3, where using it is an AttributeError; the emulator has it for programs written "
        "for PopTorch 3.0 and before.",
        name,
    )


class autocast(contextlib.ContextDecorator):
    """Switch automatic casts on or off for a `with` block or, as a decorator, for a function's body.

    It speaks to the trace of a wrapped model and does nothing elsewhere.
    """

    def __init__(self, enabled: bool = True) -> None:
        warn_of_age("poptorch.autocast")
        self._enabled = _checked(enabled)

    def __enter__(self) -> autocast:
        trace = active()
        if trace is not None:
            trace.autocast.open.append((None, None, self._enabled))
        return self

    def __exit__(self, *exception: object) -> None:
        trace = active()
        if trace is not None:
            trace.autocast.open.pop()


class Autocast:
    """Autocasting of one trace; no policy means that the options switch it off everywhere."""

    def __init__(self, policy: Optional[Policy]) -> None:
        self._policy = policy
        # Of each block that is open and module that is being called: the module, its mark, and whether operators are
        # cast; innermost last. Modules are there only while `followers` follow.
        self.open: List[Tuple[Optional[nn.Module], Optional[int], bool]] = []

    @property
    def enabled(self) -> bool:
        """True while operators are being cast."""
        return self._policy is not None and bool(self.open) and self.open[-1][2]

    def followers(self) -> List[Follower]:
        """Return the follower of the modules that are called, and their marks; none without a policy."""
        if self._policy is None:
            return []

        def entry(module: nn.Module) -> Tuple[Optional[nn.Module], Optional[int], bool]:
            enabled, mark = module.__dict__.get(_FLAG, (self.enabled, None))
            # The mark of the enclosing module counts once only: a decorator in between may differ.
            if any(mark == outer for _, outer, _ in self.open):
                enabled = self.enabled
            return module, mark, enabled

        return [(self.open, entry)]

    def cast(self, capture: Trace, name: str, args: Any, kwargs: Any) -> Tuple[Any, Any]:
        """Return the arguments of an operator with the casts of the policy recorded in `capture`."""
        types = frozenset(dtype for dtype in capture.tensors.dtypes((args, kwargs)) if dtype in _CASTABLE)
        modules = [module for module, _, _ in self.open if module is not None]
        wanted = self._policy.type_for(name, modules, types) if self._policy is not None and types else None
        if wanted is None or types == {wanted}:
            return args, kwargs

        def to_wanted(tensor: torch.Tensor) -> Any:
            needs_cast = capture.tensors.dtypes(tensor) & set(_CASTABLE) - {wanted}
            return capture.record(TO, tensor, wanted) if needs_cast else tensor

        args, kwargs = map_tensors((args, kwargs), to_wanted)
        return args, kwargs


def _module_autocast(self: nn.Module, enabled: bool = True) -> None:
    """Switch automatic casts on or off for this module and every module in it."""
    warn_of_age("Module.autocast")
    setting = (_checked(enabled), next(_MARKS))
    for module in self.modules():
        module.__dict__[_FLAG] = setting


def _checked(enabled: bool) -> bool:
    if not isinstance(enabled, bool):
        raise ValueError(f"autocast takes enabled=True or enabled=False, got {enabled!r}.")
    return enabled


def _key(operation: Operation) -> Union[str, type]:
    if isinstance(operation, (str, type)):
        return operation
    name = getattr(operation, "__name__", None)
    if name is None:
        raise ValueError(f"A policy lists functions of PyTorch, their names and module classes, not {operation!r}.")
    return str(name)


if not hasattr(nn.Module, "autocast"):
    setattr(nn.Module, "autocast", _module_autocast)  # noqa: B010  # the type checker knows no such attribute
