"""Arguments of listed operators that PopTorch does not compile, as far as a trace shows them.

Source: PopTorch user guide, the notes under "Supported operations".
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ignite_ipu.emulator.logs import logger

_Arguments = Callable[..., Any]
_PADDING_IDX = 2
_MATRIX_NORMS = (2, -2, "nuc")
_UPSAMPLING = ("nearest", "bicubic")


def problem(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[str]:
    """Return why the operator `name` does not compile with these arguments; None when it does."""
    rule = _RULES.get(name)
    if rule is None:
        return None

    def argument(position: int, keyword: str, default: Any = None) -> Any:
        return args[position] if len(args) > position else kwargs.get(keyword, default)

    found = rule[0](argument)
    return None if found is None else f"{name}: {found}"


def as_read(
    name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any], training: bool
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of an operator as the device reads them: an embedding has no `padding_idx` there."""
    if name != "embedding":
        return args, kwargs
    index = args[_PADDING_IDX] if len(args) > _PADDING_IDX else kwargs.get("padding_idx")
    if index is None or index == -1:
        return args, kwargs
    if training:
        logger.warning("embedding: padding_idx=%d is not read by the device: its row is trained like any other.", index)
    if len(args) > _PADDING_IDX:
        return (*args[:_PADDING_IDX], None, *args[_PADDING_IDX + 1 :]), kwargs
    return args, {**kwargs, "padding_idx": None}


def restrictions(names: Sequence[str]) -> str:
    """Return what of the operators `names` does not compile, for a table."""
    return "; ".join(dict.fromkeys(_RULES[name][1] for name in names if name in _RULES))


def _topk(argument: _Arguments) -> Optional[str]:
    return None if argument(4, "sorted", True) else "sorted=False is unsupported; sort or ignore the order instead."


def _matrix_norm(order: Any) -> Optional[str]:
    if order in _MATRIX_NORMS:
        return f"ord={order!r} of a matrix is unsupported; use 'fro', 1 or inf, or a vector norm."
    return None


def _linalg_norm(argument: _Arguments) -> Optional[str]:
    order, dim = argument(1, "ord"), argument(2, "dim")
    is_matrix = len(dim) == 2 if isinstance(dim, (list, tuple)) else dim is None and argument(0, "A").dim() == 2
    return _matrix_norm(order) if is_matrix and order is not None else None


def _linalg_matrix_norm(argument: _Arguments) -> Optional[str]:
    return _matrix_norm(argument(1, "ord", "fro"))


def _norm(argument: _Arguments) -> Optional[str]:
    return _matrix_norm("nuc") if argument(1, "p", "fro") == "nuc" else None


def _conv_transpose(argument: _Arguments) -> Optional[str]:
    dilation = argument(7, "dilation", 1)
    if all(step == 1 for step in (dilation if isinstance(dilation, (list, tuple)) else (dilation,))):
        return None
    return f"dilation={dilation!r} is unsupported; only 1 is."


def _indices(argument: _Arguments) -> Optional[str]:
    return "return_indices=True is unsupported."


def _affine(position: int) -> Callable[[_Arguments], Optional[str]]:
    def check(argument: _Arguments) -> Optional[str]:
        if argument(position, "weight") is None:
            return "a normalisation without weight and bias is unsupported; set affine=True (elementwise_affine=True)."
        return None

    return check


def _recurrent(may_lack_bias: bool) -> Callable[[_Arguments], Optional[str]]:
    def check(argument: _Arguments) -> Optional[str]:
        if not isinstance(argument(2, "params"), (list, tuple)):
            return "packed sequences are unsupported; pad them and pass the tensor."
        if argument(4, "num_layers", 1) != 1:
            return f"num_layers={argument(4, 'num_layers')} is unsupported; stack modules of one layer each."
        if argument(7, "bidirectional", False):
            return "bidirectional=True is unsupported; run a second module over the reversed sequence."
        if argument(5, "dropout", 0.0):
            return f"dropout={argument(5, 'dropout')} is unsupported; put Dropout modules between layers."
        if not argument(3, "has_biases", True) and not may_lack_bias:
            return "bias=False is unsupported; only GRU may lack a bias."
        return None

    return check


def _embedding(argument: _Arguments) -> Optional[str]:
    for position, name in ((3, "max_norm"), (5, "scale_grad_by_freq"), (6, "sparse")):
        if argument(position, name):
            return f"{name}={argument(position, name)!r} is unsupported."
    return None


def _embedding_bag(argument: _Arguments) -> Optional[str]:
    for position, name in ((3, "max_norm"), (5, "scale_grad_by_freq"), (7, "sparse"), (10, "padding_idx")):
        value = argument(position, name)
        if value is not None and value is not False:
            return f"{name}={value!r} is unsupported."
    return None


def _interpolate(argument: _Arguments) -> Optional[str]:
    mode = argument(3, "mode", "nearest")
    if mode not in _UPSAMPLING:
        return f"mode={mode!r} is unsupported; use 'nearest' or 'bicubic'."
    return "align_corners=True is unsupported." if argument(4, "align_corners") else None


def _pad(argument: _Arguments) -> Optional[str]:
    mode = argument(2, "mode", "constant")
    if mode == "circular":
        return "mode='circular' is unsupported; concatenate slices instead."
    if mode == "reflect" and len(argument(1, "pad")) > 4:
        return "mode='reflect' is unsupported over three dimensions; pad them one after the other."
    return None


_Rule = Tuple[Callable[[_Arguments], Optional[str]], str]
_AFFINE_ONLY = "affine=True only"
_DILATION = "no dilation"
_INDICES = "no return_indices=True"
_NO_MATRIX_NORMS = "no 2-norm or nuclear norm of matrices"

_RULES: Dict[str, _Rule] = {
    "topk": (_topk, "no sorted=False"),
    "norm": (_norm, _NO_MATRIX_NORMS),
    "linalg_norm": (_linalg_norm, _NO_MATRIX_NORMS),
    "linalg_matrix_norm": (_linalg_matrix_norm, _NO_MATRIX_NORMS),
    "conv_transpose1d": (_conv_transpose, _DILATION),
    "conv_transpose2d": (_conv_transpose, _DILATION),
    "conv_transpose3d": (_conv_transpose, _DILATION),
    "max_pool1d_with_indices": (_indices, _INDICES),
    "max_pool2d_with_indices": (_indices, _INDICES),
    "max_pool3d_with_indices": (_indices, _INDICES),
    "batch_norm": (_affine(3), _AFFINE_ONLY),
    "instance_norm": (_affine(3), _AFFINE_ONLY),
    "layer_norm": (_affine(2), _AFFINE_ONLY),
    "group_norm": (_affine(2), _AFFINE_ONLY),
    "rnn_tanh": (_recurrent(False), "one layer, unidirectional, no dropout, with bias"),
    "rnn_relu": (_recurrent(False), "one layer, unidirectional, no dropout, with bias"),
    "lstm": (_recurrent(False), "one layer, unidirectional, no dropout, with bias"),
    "gru": (_recurrent(True), "one layer, unidirectional, no dropout"),
    "embedding": (_embedding, "padding_idx is not read; no max_norm, scale_grad_by_freq or sparse"),
    "embedding_bag": (_embedding_bag, "no padding_idx, max_norm, scale_grad_by_freq or sparse"),
    "interpolate": (_interpolate, "nearest and bicubic only, no align_corners=True"),
    "pad": (_pad, "no circular padding, no reflection over three dimensions"),
}


def restricted() -> List[str]:
    """Return the names of the operators that have restrictions."""
    return sorted(_RULES)
