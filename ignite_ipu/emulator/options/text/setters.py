"""Finding the option that a text names, without evaluating anything."""

from __future__ import annotations

import enum
from typing import Any, Callable, Optional, Sequence

from ignite_ipu.emulator import enums
from ignite_ipu.emulator.options.guarded import OptionsDict

GROUPS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")

# Public methods that set no option, or would read another text.
_NO_SETTERS = frozenset(
    [
        "checkIsFrozen",
        "clone",
        "createOrSet",
        "defaultOutputMode",
        "deleteIfExists",
        "exists",
        "from_json",
        "loadFromFile",
        "set",
        "toDict",
        "update",
    ]
)


def find_setter(options: OptionsDict, path: Sequence[str]) -> Callable[..., Any]:
    """Return the method of `options` that `path` names, such as `["Training", "gradientAccumulation"]`.

    Raises:
        AttributeError: There is no such option.
    """
    *groups, name = path
    owner: Any = options
    if len(groups) == 1 and groups[0] in GROUPS:
        owner = getattr(options, groups[0])
        # The one method that back-end settings are made with is called what guarded dictionaries call theirs.
        allowed = groups[0] == "_Popart" or name not in _NO_SETTERS
    else:
        allowed = not groups and name not in _NO_SETTERS
    method = getattr(type(owner), name, None) if allowed and not name.startswith("_") else None
    if not callable(method):
        raise AttributeError(
            f"Invalid attribute {'.'.join(path)}: no option of poptorch.Options is set by a method of that name."
        )
    setter: Callable[..., Any] = getattr(owner, name)
    return setter


def find_member(kind: str, member: str) -> Optional[enum.Enum]:
    """Return the member of one of PopTorch's enumerations; None if there is none of that name."""
    found = getattr(enums, kind, None)
    if not isinstance(found, type) or not issubclass(found, enum.Enum):
        return None
    return found.__members__.get(member)
