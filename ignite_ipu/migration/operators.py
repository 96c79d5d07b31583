"""Which of torch's operators and layers PopTorch 3.3 compiles, and the arguments it does not take.

The emulator's table says which operators are supported; it checks the kernels of a traced model, while here are names
as people write them, some of which PyTorch makes of several supported operators.

Source: PopTorch user guide, "Supported operations".
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Callable, Dict, FrozenSet, Tuple


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


# Operators and layers that PyTorch makes of listed ones, so that the emulator's table need not name them.
_COMPOSED = _words(
    "absolute clip concat concatenate cosine_similarity cuda diag divide dstack einsum flip from_numpy greater "
    "greater_equal hstack less less_equal logsigmoid multiply negative normalize not_equal outer "
    "pairwise_distance relu6 scaled_dot_product_attention softmin subtract tanhshrink tile vstack"
)
_COMPOSED_LAYERS = _words(
    "Buffer CosineSimilarity Flatten GLU LogSigmoid ModuleDict ModuleList MultiheadAttention PairwiseDistance "
    "Parameter ParameterDict ParameterList ReLU6 Softmin Tanhshrink Transformer TransformerDecoder "
    "TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer Unflatten UninitializedBuffer "
    "UninitializedParameter"
)
_NO_OPERATORS = (
    "torch.nn.init.",
    "torch.utils.",
    "torch.distributions.",
    "torch.profiler.",
    "torch.autograd.profiler.",
)


@lru_cache(maxsize=None)
def _supported() -> Tuple[FrozenSet[str], FrozenSet[str]]:
    """Return the operators and the layers that work."""
    # Imported here: the emulator imports torch, which files without a model do not need.
    from ignite_ipu.emulator.operator_table import DECOMPOSED, KERNELS, MODULES, MOVEMENT, TENSOR_OPERATORS

    listed = {
        name.split(".", 1)[1] if name.startswith("Tensor.") else name
        for group in TENSOR_OPERATORS.values()
        for name in group
    }
    computed = {word for group in MODULES.values() for words in group.values() for word in words.split()}
    names = {name.rstrip("_") for name in {*listed, *MOVEMENT, *DECOMPOSED, *KERNELS, *computed, *_COMPOSED}}
    layers = {name for group in MODULES.values() for name in group}
    return frozenset(names), frozenset(layers | _COMPOSED_LAYERS)


@lru_cache(maxsize=None)
def is_supported(name: str) -> bool:
    """Whether an operator (`torch.x`, `Tensor.x`, `torch.nn.functional.x`) or layer (`torch.nn.X`) should compile.

    Names that are no operators count as supported: there is nothing to compile.
    """
    if name.startswith(_NO_OPERATORS) or name.startswith("torch.nn.utils."):
        return True
    operators, layers = _supported()
    last = name.rsplit(".", 1)[1]
    if name.startswith("torch.nn.functional."):
        return last.rstrip("_") in operators
    if last[:1].isupper():
        return not name.startswith("torch.nn.") or name.count(".") > 2 or last in layers
    return last.startswith("_") or name.split(".", 1)[1].rstrip("_") in operators


@dataclass(frozen=True)
class Restriction:
    """An argument that PopTorch does not take.

    Attributes:
        argument: Its keyword,
        position: and its position among the positional arguments.
        refuses: Says whether a literal is refused; gets Ellipsis for what is no literal.
        rule: What is wrong, and
        remedy: the way out.
        by_hand: Whether it concerns code that wraps models with PopTorch itself; our engines do what it says.
    """

    argument: str
    position: int
    refuses: Callable[[object], bool]
    rule: str
    remedy: str
    by_hand: bool = False


def _given(value: object) -> bool:
    return value is not None and value is not False


def _true(value: object) -> bool:
    return value is True


def _false(value: object) -> bool:
    return value is False


def _above_one(value: object) -> bool:
    return isinstance(value, int) and value > 1


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _not_none(value: object) -> bool:
    return value is not None


def _neither_nearest_nor_bicubic(value: object) -> bool:
    return isinstance(value, str) and value not in ("nearest", "bicubic")


def _one_of(*refused: object) -> Callable[[object], bool]:
    return partial(operator.contains, refused)


_LAYERS = Restriction("num_layers", 2, _above_one, "only one layer is supported", "Stack one-layer modules.")
_BIDIRECTIONAL = Restriction(
    "bidirectional",
    6,
    _true,
    "bidirectional=True is not supported",
    "Run two modules, one over the flipped sequence.",
)
_DROPOUT = Restriction("dropout", 5, _positive, "dropout between layers is not supported", "Use a separate Dropout.")
_BIAS = Restriction("bias", 3, _false, "bias=False is not supported", "Keep the bias.")
_AFFINE = Restriction(
    "affine", 3, _false, "affine=False is not supported", "Keep affine=True and freeze weight and bias."
)
_PADDING_IDX = Restriction(
    "padding_idx",
    9,
    _not_none,
    "padding_idx is not supported",
    "Leave it out and mask the padded positions yourself.",
)
_MAX_NORM = Restriction("max_norm", 2, _positive, "max_norm is not supported", "Normalise what the layer returns.")
_SPARSE = Restriction("sparse", 6, _true, "sparse gradients are not supported", "Use sparse=False.")
_CLASS_WEIGHTS = Restriction(
    "weight", 0, _given, "class weights are not supported", "Weigh the loss of each sample by hand."
)
_LABEL_SMOOTHING = Restriction(
    "label_smoothing",
    5,
    _positive,
    "label_smoothing is not read, the loss would be trained without it",
    "Add it yourself: loss = (1 - e) * F.cross_entropy(y_pred, y) - e * F.log_softmax(y_pred, 1).mean().",
)
_REDUCTION = Restriction("reduction", 1, _one_of("none"), 'reduction="none" is not supported', 'Use "mean" or "sum".')
_MATRIX_NORMS = "matrix 2-norms and nuclear norms are not supported"
_FROBENIUS = 'Use ord="fro".'

_BY_DIMENSION = {
    "ConvTranspose": Restriction("dilation", 8, _above_one, "dilation is not supported", "Use dilation 1."),
    "MaxPool": Restriction("return_indices", 4, _true, "return_indices=True is not supported", "Pool without indices."),
    "BatchNorm": _AFFINE,
}
RESTRICTIONS: Dict[str, Tuple[Restriction, ...]] = {
    **{f"torch.nn.{name}{n}d": (restriction,) for n in (1, 2, 3) for name, restriction in _BY_DIMENSION.items()},
    "torch.nn.LSTM": (_LAYERS, _BIDIRECTIONAL, _DROPOUT, _BIAS),
    "torch.nn.GRU": (_LAYERS, _BIDIRECTIONAL, _DROPOUT),
    # Its nonlinearity comes before the bias.
    "torch.nn.RNN": (
        _LAYERS,
        replace(_BIDIRECTIONAL, position=7),
        replace(_DROPOUT, position=6),
        replace(_BIAS, position=4),
    ),
    "torch.nn.GroupNorm": (_AFFINE,),
    "torch.nn.LayerNorm": (
        Restriction(
            "elementwise_affine",
            2,
            _false,
            "elementwise_affine=False is not supported",
            "Keep it and freeze weight and bias.",
        ),
    ),
    "torch.nn.Embedding": (replace(_PADDING_IDX, position=2, by_hand=True), replace(_MAX_NORM, position=3), _SPARSE),
    "torch.nn.EmbeddingBag": (_PADDING_IDX, _MAX_NORM, _SPARSE),
    "torch.nn.Upsample": (
        Restriction(
            "mode",
            2,
            _neither_nearest_nor_bicubic,
            "only nearest and bicubic are supported",
            'Use mode="nearest" or mode="bicubic".',
        ),
        Restriction("align_corners", 3, _true, "align_corners=True is not supported", "Leave align_corners out."),
    ),
    "torch.nn.CrossEntropyLoss": (_CLASS_WEIGHTS, _LABEL_SMOOTHING),
    "torch.nn.NLLLoss": (_CLASS_WEIGHTS,),
    "torch.nn.CTCLoss": (_REDUCTION,),
    "torch.nn.functional.cross_entropy": (replace(_CLASS_WEIGHTS, position=2), replace(_LABEL_SMOOTHING, position=7)),
    "torch.nn.functional.nll_loss": (replace(_CLASS_WEIGHTS, position=2),),
    "torch.nn.functional.ctc_loss": (replace(_REDUCTION, position=5),),
    "torch.linalg.norm": (Restriction("ord", 1, _one_of("nuc"), _MATRIX_NORMS, _FROBENIUS),),
    "torch.linalg.matrix_norm": (Restriction("ord", 1, _one_of("nuc", 2, -2), _MATRIX_NORMS, _FROBENIUS),),
}

# Losses that PopTorch does not compile at all, with what computes the same.
_SMOOTH = "Use delta * F.smooth_l1_loss(y_pred, y, beta=delta), which computes the same."
REFUSED_LOSSES: Dict[str, str] = {"torch.nn.HuberLoss": _SMOOTH, "torch.nn.functional.huber_loss": _SMOOTH}
