"""Which of torch's operators and layers PopTorch 3.3 compiles, and the arguments it does not take.

Source: PopTorch user guide, "IPU supported operations". Operators that only rearrange or combine listed ones work too;
those that are met most often are listed separately, so that what is reported is worth reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, Optional, Tuple


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


_OPERATORS = _words(
    "arange full full_like ones ones_like zeros zeros_like fill fill_ new_ones new_zeros bincount bucketize cat "
    "chunk gather index_select index_reduce reshape roll scatter scatter_add scatter_reduce stack split squeeze t "
    "take_along_dim transpose unbind unsqueeze where expand expand_as masked_fill index_fill bernoulli randn normal "
    "rand uniform exponential abs acos acosh add addcdiv amax amin asin asinh atan atanh bitwise_and bitwise_not "
    "bitwise_or bitwise_xor cdist ceil clamp clamp_max clamp_min cos cosh div exp expm1 floor floor_divide fmod "
    "frac log log10 log1p log2 logical_and logical_or mul norm neg pow reciprocal remainder round rsqrt sigmoid "
    "sign sin sinh sqrt square sub tan tanh true_divide trunc all any argmax argmin count_nonzero mean median prod "
    "logsumexp std std_mean sum var var_mean eq ge gt le lt max min ne isnan topk argsort randperm sort linalg.norm "
    "linalg.matrix_norm linalg.vector_norm addmm matmul bmm cumsum cumprod cross meshgrid cartesian_prod tensordot"
)
# Made of the above: shape changes, casts, copies, aliases and simple compositions.
_COMPOSED = _words(
    "view view_as reshape_as flatten unflatten permute movedim moveaxis swapaxes swapdims contiguous clone detach "
    "detach_ to type type_as float half int long bool short double char byte size dim repeat tile narrow select "
    "unfold concat concatenate hstack vstack dstack flip copy_ zero_ mm mv dot outer einsum baddbmm addcmul lerp "
    "broadcast_to broadcast_tensors empty empty_like new_empty new_full new_tensor tensor as_tensor linspace eye "
    "randn_like rand_like requires_grad_ softmax log_softmax relu relu_ gelu silu elu selu celu leaky_relu mish "
    "hardtanh softplus softsign softshrink hardshrink sigmoid_ tanh_ prelu rrelu threshold dropout subtract "
    "multiply divide negative absolute clip logical_not logical_xor not_equal greater less greater_equal less_equal "
    "rsub tril triu diagonal diag bernoulli_ normal_ uniform_ exponential_ cuda max_pool1d max_pool2d index_add "
    "masked_fill_ conv1d conv2d conv3d from_numpy randint maximum minimum batch_norm layer_norm"
)
_FUNCTIONAL = _words(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d pad elu celu gelu "
    "hardshrink leaky_relu log_softmax mish relu relu_ relu6 selu silu sigmoid softmax softplus softsign softshrink "
    "tanh prelu rrelu hardtanh threshold glu batch_norm layer_norm group_norm instance_norm linear bilinear dropout "
    "embedding embedding_bag one_hot l1_loss mse_loss cross_entropy nll_loss binary_cross_entropy kl_div "
    "poisson_nll_loss hinge_embedding_loss binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss "
    "cosine_embedding_loss margin_ranking_loss triplet_margin_loss ctc_loss interpolate upsample normalize "
    "cosine_similarity pairwise_distance scaled_dot_product_attention logsigmoid softmin tanhshrink"
)
_LAYERS = _words(
    "Module Sequential ModuleList ModuleDict ParameterList ParameterDict Parameter Conv1d Conv2d Conv3d "
    "ConvTranspose1d ConvTranspose2d ConvTranspose3d MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d "
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d ReflectionPad1d ReflectionPad2d ReplicationPad1d "
    "ReplicationPad2d ReplicationPad3d ZeroPad2d ConstantPad1d ConstantPad2d ConstantPad3d ELU CELU GELU Hardshrink "
    "LeakyReLU LogSoftmax Mish ReLU SELU SiLU Sigmoid Softmax Softplus Softsign Softshrink Tanh PReLU RReLU "
    "Hardtanh Threshold BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm InstanceNorm1d InstanceNorm2d "
    "InstanceNorm3d RNN GRU LSTM Identity Linear Bilinear Dropout Embedding EmbeddingBag L1Loss MSELoss "
    "CrossEntropyLoss NLLLoss BCELoss KLDivLoss PoissonNLLLoss HingeEmbeddingLoss BCEWithLogitsLoss SmoothL1Loss "
    "SoftMarginLoss CosineEmbeddingLoss MarginRankingLoss TripletMarginLoss CTCLoss Upsample "
    # Made of listed ones.
    "Flatten Unflatten ReLU6 GLU LogSigmoid Softmin Tanhshrink CosineSimilarity PairwiseDistance MultiheadAttention "
    "TransformerEncoderLayer TransformerEncoder TransformerDecoderLayer TransformerDecoder Transformer"
)
_OTHER_PREFIXES = (
    "torch.nn.init.",
    "torch.utils.",
    "torch.distributions.",
    "torch.profiler.",
    "torch.autograd.profiler.",
)


def is_supported(name: str) -> bool:
    """Whether an operator (`torch.x`, `Tensor.x`, `torch.nn.functional.x`) or layer (`torch.nn.X`) should compile.

    Names that are no operators count as supported: there is nothing to compile.
    """
    if name.startswith("torch.nn.functional."):
        return name.rsplit(".", 1)[1] in _FUNCTIONAL | _OPERATORS | _COMPOSED
    if name.startswith("torch.nn.utils."):
        return True
    if name.startswith("torch.nn.") and name.count(".") == 2:
        last = name.rsplit(".", 1)[1]
        return last in _LAYERS or not last[:1].isupper()
    if name.startswith(_OTHER_PREFIXES):
        return True
    operator = name.split(".", 1)[1]
    if operator[:1].isupper() or operator.startswith(("_", "special.", "autograd.")):
        return not operator.startswith("special.")
    plain = operator[:-1] if operator.endswith("_") else operator
    return plain in _OPERATORS | _COMPOSED or operator in _OPERATORS | _COMPOSED


@dataclass(frozen=True)
class Restriction:
    """An argument that PopTorch does not take.

    Attributes:
        argument: Its keyword,
        position: and its position among the positional arguments, if it has one.
        refuses: Says whether a literal is refused; gets Ellipsis for what is no literal.
        rule: What is wrong, and
        remedy: the way out.
    """

    argument: str
    position: Optional[int]
    refuses: Callable[[object], bool]
    rule: str
    remedy: str


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


def _restrictions() -> Dict[str, Tuple[Restriction, ...]]:
    table: Dict[str, Tuple[Restriction, ...]] = {}
    for name, first in (("LSTM", 2), ("GRU", 2), ("RNN", 2)):
        table[f"torch.nn.{name}"] = (
            Restriction("num_layers", first, _above_one, "only one layer is supported", "Stack one-layer modules."),
            Restriction(
                "bidirectional",
                None,
                _true,
                "bidirectional=True is not supported",
                "Run two modules, one over the flipped sequence.",
            ),
            Restriction(
                "dropout", None, _positive, "dropout between layers is not supported", "Use a separate Dropout."
            ),
            *(
                ()
                if name == "GRU"
                else (Restriction("bias", None, _false, "bias=False is not supported", "Keep the bias."),)
            ),
        )
    for dimension in (1, 2, 3):
        table[f"torch.nn.ConvTranspose{dimension}d"] = (
            Restriction("dilation", 8, _above_one, "dilation is not supported", "Use dilation 1."),
        )
        table[f"torch.nn.MaxPool{dimension}d"] = (
            Restriction("return_indices", 4, _true, "return_indices=True is not supported", "Pool without indices."),
        )
        table[f"torch.nn.BatchNorm{dimension}d"] = (
            Restriction(
                "affine", 3, _false, "affine=False is not supported", "Keep affine=True and freeze weight and bias."
            ),
        )
        table[f"torch.nn.InstanceNorm{dimension}d"] = ()
    table["torch.nn.GroupNorm"] = (
        Restriction(
            "affine", 3, _false, "affine=False is not supported", "Keep affine=True and freeze weight and bias."
        ),
    )
    table["torch.nn.LayerNorm"] = (
        Restriction(
            "elementwise_affine",
            2,
            _false,
            "elementwise_affine=False is not supported",
            "Keep it and freeze weight and bias.",
        ),
    )
    for name in ("Embedding", "EmbeddingBag"):
        position = 2 if name == "Embedding" else None
        table[f"torch.nn.{name}"] = (
            Restriction(
                "padding_idx",
                position,
                lambda value: value is not None,
                "padding_idx is not supported",
                "Leave it out and mask the padded positions yourself.",
            ),
            Restriction("sparse", None, _true, "sparse gradients are not supported", "Use sparse=False."),
        )
    table["torch.nn.Upsample"] = (
        Restriction(
            "mode",
            2,
            lambda value: isinstance(value, str) and value not in ("nearest", "bicubic"),
            "only nearest and bicubic are supported",
            'Use mode="nearest" or mode="bicubic".',
        ),
        Restriction("align_corners", 3, _true, "align_corners=True is not supported", "Leave align_corners out."),
    )
    for name in ("CrossEntropyLoss", "NLLLoss"):
        table[f"torch.nn.{name}"] = (
            Restriction(
                "weight", 0, _given, "class weights are not supported", "Weigh the loss of each sample by hand."
            ),
        )
    for name in ("cross_entropy", "nll_loss"):
        table[f"torch.nn.functional.{name}"] = (
            Restriction(
                "weight", 2, _given, "class weights are not supported", "Weigh the loss of each sample by hand."
            ),
        )
    for name in ("CTCLoss", "functional.ctc_loss"):
        table[f"torch.nn.{name}"] = (
            Restriction(
                "reduction",
                1 if name == "CTCLoss" else None,
                lambda value: value == "none",
                'reduction="none" is not supported',
                'Use "mean" or "sum".',
            ),
        )
    for name, refused in (("torch.linalg.norm", ("nuc",)), ("torch.linalg.matrix_norm", ("nuc", 2, -2))):
        table[name] = (
            Restriction(
                "ord",
                1,
                lambda value, refused=refused: value in refused,  # type: ignore[misc]
                "matrix 2-norms and nuclear norms are not supported",
                'Use ord="fro".',
            ),
        )
    return {name: restrictions for name, restrictions in table.items() if restrictions}


RESTRICTIONS: Dict[str, Tuple[Restriction, ...]] = _restrictions()
