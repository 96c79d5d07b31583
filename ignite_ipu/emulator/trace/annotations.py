"""Marks that a model's code puts on its operators: blocks, name scopes and back-end attributes.

All of them speak to the trace that is running and do nothing when there is none.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
from typing import Any, Callable, List, Optional, Tuple, TypeVar

import torch

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.trace.active import active
from ignite_ipu.torch_names.modules import TITLE, forward_pre_hooks_of, title_of

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


class Block(torch.nn.Module):
    """Puts the operators of a `with` statement into a block.

    After it, operators have no block until the next one starts, which the compiler refuses.

    Args:
        user_id: The block's id; None takes the next of "0", "1", ... on each entry.
        ipu_id: The IPU it runs on, unless the execution strategy says otherwise.
    """

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number blocks without an id from "0" again."""
        trace = active()
        if trace is not None:
            trace.placement.restart_auto_ids()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        """Put all operators up to the start of the next block into this one."""
        trace = active()
        if trace is not None:
            trace.placement.enter_block(user_id, ipu_id)

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        trace = active()
        if trace is not None:
            trace.placement.exit_block()


@dataclasses.dataclass
class _LastingBlock:
    """A block that stays open, and keeps the first automatic id it got."""

    user_id: Optional[str]
    ipu_id: Optional[int]

    def __call__(self, module: torch.nn.Module, inputs: Tuple[Any, ...]) -> None:
        """Start the block: the forward pre-hook of an annotated module."""
        trace = active()
        if trace is not None:
            self.user_id = trace.placement.enter_block(self.user_id, self.ipu_id)


class LegacyBeginBlockFn(torch.nn.Module):
    """A callable whose calls start a block that stays open; `BeginBlock` returns it for one that is no module."""

    def __init__(
        self, layer_to_call: Callable[..., Any], user_id: Optional[str] = None, ipu_id: Optional[int] = None
    ) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._block = _LastingBlock(user_id, ipu_id)

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        self._block(self, input)
        return self._layer_to_call(*input, **kwargs)


# The parameters' annotations are PopTorch's; both ids may be None.
def BeginBlock(layer_to_call: Any, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Any:
    """Start a block each time a module is called; the block stays open until the next one starts.

    Args:
        user_id: The block's id; None takes the next of "0", "1", ... at the first call and keeps it.
        ipu_id: The IPU it runs on, unless the execution strategy says otherwise.

    Returns:
        The same module, with a forward pre-hook; for another callable, one to call in its place.

    Raises:
        Error: The module starts a block already, or `layer_to_call` cannot be called.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if callable(layer_to_call):
            return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
        raise python_error(f"module is not an instance of torch.nn.Module or a callable: {layer_to_call!r}.")
    block = _block_of(layer_to_call)
    if block is not None:
        raise python_error(
            f"module has already been assigned to a block (user_id={block.user_id}, ipu_id={block.ipu_id}): "
            "call removeBlocks(module) before assigning it again."
        )
    layer_to_call.register_forward_pre_hook(_LastingBlock(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: torch.nn.Module) -> None:
    """Remove the marks of `BeginBlock` from a module and from the modules in it."""
    if not isinstance(module, torch.nn.Module):
        raise AssertionError(f"removeBlocks takes a torch.nn.Module, got {module!r}.")
    for each in module.modules():
        hooks = forward_pre_hooks_of(each)
        for key in [key for key, hook in hooks.items() if isinstance(hook, _LastingBlock)]:
            del hooks[key]


def BlockFunction(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Callable[[_Callable], _Callable]:
    """Return a decorator that runs a function inside a `Block`.

    Like PopTorch's it does not keep the function's name and signature.
    """

    def decorate(function: _Callable) -> _Callable:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


class NameScope:
    """Puts the operators of a `with` statement below a name; one object may serve several traces."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise AssertionError(f"The name of a NameScope must be a string, got {name!r}.")
        self.name = name
        self._entered: List[List[str]] = []

    def __enter__(self) -> None:
        trace = active()
        self._entered.append([] if trace is None else trace.scope)
        self._entered[-1].append(self.name)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        self._entered.pop().pop()


class Attribute:
    """Attaches back-end attributes, a dict each, to the operators of a `with` statement; they change no result here."""

    def __init__(self, **kwargs: Any) -> None:
        for name, content in kwargs.items():
            if not isinstance(content, dict):
                raise AssertionError(f"Attribute takes a dict for each name, got {name}={content!r}.")

    def __enter__(self) -> None:
        pass

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        pass


def module_repr(m: torch.nn.Module) -> str:
    """Return the text of a module, with the block that a sub-module starts in front of its name."""
    annotated = [(each, block) for each in m.modules() for block in [_block_of(each)] if block is not None]
    for each, block in annotated:
        name = f"BeginBlock(user_id={block.user_id}, ipu_id={block.ipu_id}) {title_of(each)}"
        # PyTorch's own __repr__ asks the instance, so that nested and custom modules print as they always do.
        each.__dict__[TITLE] = functools.partial(str, name)
    try:
        return repr(m)
    finally:
        for each, _ in annotated:
            del each.__dict__[TITLE]


def print(m: Any) -> None:
    """Print a module with its blocks, and anything else as Python does.

    PopTorch prints a module a second time, without them.
    """
    builtins.print(module_repr(m) if isinstance(m, torch.nn.Module) else m)


def _block_of(module: torch.nn.Module) -> Optional[_LastingBlock]:
    hooks = forward_pre_hooks_of(module).values()
    return next((hook for hook in hooks if isinstance(hook, _LastingBlock)), None)
