"""The operators that PopTorch 3.3 compiles, by the names of its guide, and what they are called inside PyTorch.

`TENSOR_OPERATORS` and `MODULES` are the guide's list. The other tables say which of PyTorch's kernels carry it out,
which others only move or convert data, and which are not listed themselves though
PyTorch defines them through listed ones.

Source: PopTorch user guide, "Supported operations".
"""

from __future__ import annotations

from typing import Dict, Tuple


def _words(text: str) -> Tuple[str, ...]:
    return tuple(text.split())


# "torch." is implied; "Tensor." where there is only a method.
TENSOR_OPERATORS: Dict[str, Tuple[str, ...]] = {
    "creation": _words(
        "arange full full_like ones ones_like zeros zeros_like Tensor.fill Tensor.new_ones Tensor.new_zeros"
    ),
    "indexing and joining": _words(
        "bincount bucketize cat chunk gather index_select index_reduce reshape roll scatter scatter_add "
        "scatter_reduce stack split squeeze t take_along_dim transpose unbind unsqueeze where Tensor.expand "
        "Tensor.expand_as Tensor.masked_fill Tensor.index_fill_"
    ),
    "random": _words(
        "bernoulli randn normal rand uniform exponential distributions.Bernoulli distributions.Normal "
        "distributions.Uniform distributions.Exponential"
    ),
    "pointwise": _words(
        "abs acos acosh add addcdiv amax amin asin asinh atan atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
        "cdist ceil clamp clamp_max clamp_min cos cosh div exp expm1 floor floor_divide fmod frac log log10 log1p "
        "log2 logical_and logical_or mul norm neg pow reciprocal remainder round rsqrt sigmoid sign sin sinh sqrt "
        "square sub tan tanh true_divide trunc"
    ),
    "reduction": _words("all any argmax argmin count_nonzero mean median prod logsumexp std std_mean sum var var_mean"),
    "comparison and sorting": _words("eq ge gt le lt max min ne isnan topk argsort randperm sort"),
    "linear algebra": _words("linalg.norm linalg.matrix_norm linalg.vector_norm"),
    "BLAS": _words("addmm matmul bmm"),
    "other": _words("cumsum cumprod cross meshgrid cartesian_prod tensordot"),
}

# "torch.nn." is implied. Each module with the names under which its computation is recorded.
MODULES: Dict[str, Dict[str, str]] = {
    "containers": {"Module": "", "Sequential": ""},
    "convolution": {
        "Conv1d": "conv1d",
        "Conv2d": "conv2d",
        "Conv3d": "conv3d",
        "ConvTranspose1d": "conv_transpose1d",
        "ConvTranspose2d": "conv_transpose2d",
        "ConvTranspose3d": "conv_transpose3d",
    },
    "pooling": {
        "MaxPool1d": "max_pool1d",
        "MaxPool2d": "max_pool2d",
        "MaxPool3d": "max_pool3d",
        "AvgPool1d": "avg_pool1d",
        "AvgPool2d": "avg_pool2d",
        "AvgPool3d": "avg_pool3d",
        "AdaptiveAvgPool1d": "adaptive_avg_pool1d",
        "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
        "AdaptiveAvgPool3d": "adaptive_avg_pool3d",
    },
    "padding": {
        "ReflectionPad1d": "pad reflection_pad1d",
        "ReflectionPad2d": "pad reflection_pad2d",
        "ReplicationPad1d": "pad replication_pad1d",
        "ReplicationPad2d": "pad replication_pad2d",
        "ReplicationPad3d": "pad replication_pad3d",
        "ZeroPad2d": "pad constant_pad_nd",
        "ConstantPad1d": "pad constant_pad_nd",
        "ConstantPad2d": "pad constant_pad_nd",
        "ConstantPad3d": "pad constant_pad_nd",
    },
    "activation": {
        "ELU": "elu",
        "CELU": "celu",
        "GELU": "gelu",
        "Hardshrink": "hardshrink",
        "LeakyReLU": "leaky_relu",
        "LogSoftmax": "log_softmax _log_softmax",
        "Mish": "mish",
        "ReLU": "relu",
        "SELU": "selu",
        "SiLU": "silu",
        "Sigmoid": "sigmoid",
        "Softmax": "softmax _softmax _safe_softmax",
        "Softplus": "softplus",
        "Softsign": "softsign",
        "Softshrink": "softshrink",
        "Tanh": "tanh",
        "PReLU": "prelu _prelu_kernel",
        "RReLU": "rrelu rrelu_with_noise",
        "Hardtanh": "hardtanh",
        "Threshold": "threshold",
        "functional.glu": "glu",
    },
    "normalisation": {
        "BatchNorm1d": "batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update",
        "BatchNorm2d": "batch_norm _batch_norm_impl_index _native_batch_norm_legit_no_training",
        "BatchNorm3d": "batch_norm _batch_norm_no_update cudnn_batch_norm _native_batch_norm_legit_functional",
        "LayerNorm": "layer_norm native_layer_norm",
        "GroupNorm": "group_norm native_group_norm",
        "InstanceNorm1d": "instance_norm",
        "InstanceNorm2d": "instance_norm",
        "InstanceNorm3d": "instance_norm",
        "utils.weight_norm": "_weight_norm _weight_norm_interface norm_except_dim",
    },
    "recurrent": {
        "RNN": "rnn_tanh rnn_relu",
        "GRU": "gru _thnn_fused_gru_cell",
        "LSTM": "lstm _thnn_fused_lstm_cell",
    },
    "linear": {"Identity": "", "Linear": "linear", "Bilinear": "bilinear _trilinear"},
    "dropout": {"Dropout": "dropout dropout_ native_dropout"},
    "sparse": {
        "Embedding": "embedding",
        "EmbeddingBag": "embedding_bag _embedding_bag _embedding_bag_forward_only",
        "functional.one_hot": "one_hot",
    },
    "losses": {
        "L1Loss": "l1_loss",
        "MSELoss": "mse_loss",
        "CrossEntropyLoss": "cross_entropy cross_entropy_loss",
        "NLLLoss": "nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward",
        "BCELoss": "binary_cross_entropy",
        "KLDivLoss": "kl_div",
        "PoissonNLLLoss": "poisson_nll_loss",
        "HingeEmbeddingLoss": "hinge_embedding_loss",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "SmoothL1Loss": "smooth_l1_loss",
        "SoftMarginLoss": "soft_margin_loss",
        "CosineEmbeddingLoss": "cosine_embedding_loss",
        "MarginRankingLoss": "margin_ranking_loss",
        "TripletMarginLoss": "triplet_margin_loss",
        "CTCLoss": "ctc_loss _ctc_loss",
    },
    "vision": {
        "Upsample": "interpolate upsample upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bicubic2d"
    },
}

# Functions of add-on libraries: they run as the tensor operators that they consist of.
ADD_ON_LIBRARIES: Dict[str, Tuple[str, ...]] = {
    "torch_scatter": _words(
        "scatter composite.scatter_log_softmax composite.scatter_softmax composite.scatter_std "
        "composite.scatter_logsumexp"
    ),
    "torch_spline_conv": ("spline_basis", "spline_weighting"),
}

# What PyTorch calls the listed tensor operators inside, where the name differs.
KERNELS: Dict[str, str] = {
    "maximum": "max",
    "minimum": "min",
    "mm": "matmul",
    "mv": "matmul",
    "dot": "matmul",
    "rsub": "sub",
    "uniform": "rand",
    "exponential": "exponential",
    "rand_like": "rand",
    "randn_like": "randn",
    "randint": "rand",
    "randint_like": "rand",
    "range": "arange",
    "linspace": "arange",
    "logspace": "arange",
    "scalar_tensor": "full",
    "_fused_sdp_choice": "matmul",
    "_scaled_dot_product_attention_math": "matmul",
    "_scaled_dot_product_flash_attention_for_cpu": "matmul",
    "_scaled_dot_product_fused_attention_overrideable": "matmul",
    "linalg_cross": "cross",
    "linalg_norm": "linalg.norm",
    "linalg_matrix_norm": "linalg.matrix_norm",
    "linalg_vector_norm": "linalg.vector_norm",
    "frobenius_norm": "norm",
    "nuclear_norm": "norm",
    "_cdist_forward": "cdist",
    "_euclidean_dist": "cdist",
    "fill": "Tensor.fill",
    "zero": "Tensor.fill",
    "index_fill": "Tensor.index_fill_",
    "scatter_reduce": "scatter_reduce",
    "native_dropout": "dropout",
    "logical_not": "eq",
    "convolution": "Conv2d",
    "_convolution": "Conv2d",
    "convolution_overrideable": "Conv2d",
    "mkldnn_convolution": "Conv2d",
    "_adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    "_adaptive_avg_pool3d": "AdaptiveAvgPool3d",
    "max_pool2d_with_indices": "MaxPool2d",
    "max_pool3d_with_indices": "MaxPool3d",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__invert__": "bitwise_not",
}

# Data movement, views, conversions and questions about shapes: every compiler of tensors has them.
MOVEMENT = frozenset(
    _words(
        "_conj _neg_view _reshape_alias _reshape_copy _shape_as_tensor _to_copy _unsafe_view alias as_strided "
        "assert_async broadcast_tensors broadcast_to clone contiguous copy detach diagonal empty empty_like "
        "empty_strided expand flatten getattr index index_put _index_put_impl lift lift_fresh lift_fresh_copy "
        "moveaxis movedim narrow new_empty new_empty_strided new_full new_tensor permute pin_memory ravel repeat "
        "repeat_interleave requires_grad reshape_as resolve_conj resolve_neg select select_scatter slice "
        "slice_scatter split_with_sizes swapaxes swapdims tensor tensor_split to type type_as unflatten unfold "
        "unsafe_chunk unsafe_split unsafe_split_with_sizes view view_as half float int long short bool char byte "
        "double getitem setitem size stride dim numel is_floating_point is_complex is_same_size result_type "
        "can_cast promote_types as_tensor item mT mH T H data _assert_tensor_metadata"
    )
)

# Kernels of their own in PyTorch and not in the guide's list; PyTorch also defines each through the listed ones given.
DECOMPOSED: Dict[str, str] = {
    "addbmm": "bmm sum add",
    "addcmul": "mul add",
    "addmv": "matmul mul add",
    "addr": "mul add",
    "aminmax": "amin amax",
    "baddbmm": "bmm mul add",
    "channel_shuffle": "reshape transpose",
    "copysign": "where abs neg",
    "deg2rad": "mul",
    "diag_embed": "where zeros",
    "exp2": "pow",
    "eye": "arange eq where",
    "fmax": "where isnan max",
    "fmin": "where isnan min",
    "hardsigmoid": "clamp add div",
    "hardswish": "clamp add mul div",
    "heaviside": "where eq lt",
    "hypot": "square add sqrt",
    "index_add": "index_put",
    "index_copy": "index_put",
    "isinf": "abs eq",
    "isposinf": "eq",
    "isneginf": "eq",
    "lerp": "sub mul add",
    "log_sigmoid_forward": "min exp abs log1p sub",
    "logaddexp": "max abs exp log1p add",
    "logical_xor": "ne",
    "logit": "clamp sub div log",
    "logcumsumexp": "exp cumsum log",
    "nan_to_num": "isnan eq where",
    "native_channel_shuffle": "reshape transpose",
    "pixel_shuffle": "reshape permute",
    "pixel_unshuffle": "reshape permute",
    "rad2deg": "mul",
    "signbit": "lt",
    "sgn": "sign",
    "sinc": "sin div where",
    "tril": "arange le where",
    "triu": "arange ge where",
    "xlogy": "log mul where",
}
