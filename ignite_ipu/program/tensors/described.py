"""Functions by their use of a tensor: of its shape and type, or of its values as Python has them."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from ignite_ipu.operators.words import word_set

LIKE = word_set(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided new_tensor"
)
"""Functions that take a shape and a type from their first tensor."""
DRAWN = word_set("rand_like randn_like randint_like")
"""Functions that draw numbers in the shape of their first tensor."""
AS = word_set("to type_as expand_as view_as reshape_as")
"""Functions that take values from their first tensor, and a type or a shape from the other."""
VALUE_READS = word_set(
    "item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ is_nonzero equal allclose "
    "__contains__"
)
"""Functions that return a Python value or an array of a tensor's values, texts left out."""


def described(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> List[Any]:
    """Return the arguments of a function of which it takes the shape and type alone."""
    if name in LIKE:
        return [*args[:1], *(kwargs[key] for key in ("input", "self") if key in kwargs)]
    return [*args[1:], *kwargs.values()] if name in AS else []
