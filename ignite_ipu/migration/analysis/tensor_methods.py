"""Results of torch's functions and tensors' methods: which return tensors, and which return Python values."""

from __future__ import annotations

from ignite_ipu.operators.words import word_set

# Tensor attributes.
PYTHON_ATTRIBUTES = word_set(
    "shape ndim dtype device is_cuda is_cpu requires_grad layout is_leaf is_sparse names itemsize"
)
TENSOR_ATTRIBUTES = word_set("T mT H mH data real imag grad")

# Tensor methods that return a Python value which is known while tracing.
PYTHON_METHODS = word_set(
    "size dim ndimension numel nelement stride element_size is_floating_point is_complex is_contiguous get_device "
    "storage_offset data_ptr type is_pinned __len__"
)

# Functions that make tensors of Python values; those that draw; and those that take a tensor's shape alone.
FACTORIES = word_set(
    "torch.arange torch.empty torch.eye torch.from_numpy torch.full torch.linspace torch.logspace torch.ones "
    "torch.rand torch.randint torch.randn torch.randperm torch.tensor torch.tril torch.triu torch.zeros "
    "torch.as_tensor torch.FloatTensor torch.LongTensor torch.Tensor"
)
DRAWN = word_set(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal normal_ uniform_ "
    "random_ exponential_ log_normal_ dropout alpha_dropout feature_dropout gumbel_softmax"
)
LIKE = word_set("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty")

# Layers and functions whose arguments are all tensors, but for settings.
OF_TENSORS = word_set(
    "torch.nn.functional.embedding_bag torch.nn.Bilinear torch.nn.CosineSimilarity torch.nn.EmbeddingBag "
    "torch.nn.MultiheadAttention "
    "torch.nn.PairwiseDistance torch.nn.Transformer torch.nn.TransformerDecoder torch.nn.TransformerDecoderLayer"
)

# Tensor methods that bring a value to the host.
HOST_READS = word_set("item tolist numpy cpu __bool__ __int__ __float__")

# Functions and methods that the host computes from the values of a captured step, when a loop calls them.
READ_IN_LOOPS = word_set("nonzero argwhere unique unique_consecutive histc bincount to_sparse")

# Functions of torch that return a Python value.
PYTHON_FUNCTIONS = word_set(
    "torch.is_tensor torch.is_grad_enabled torch.is_floating_point torch.is_complex torch.numel torch.device "
    "torch.Size torch.get_default_dtype torch.set_grad_enabled torch.no_grad torch.enable_grad torch.inference_mode "
    "torch.manual_seed torch.is_inference_mode_enabled torch.finfo torch.iinfo torch.typename "
    "torch.broadcast_shapes torch.nn.functional.has_torch_function torch.amp.autocast "
    "torch.backends.cuda.sdp_kernel torch.profiler.record_function torch.autograd.profiler.record_function "
    "torch.compile torch.load torch.save"
)

PYTHON_BUILTINS = word_set(
    "len isinstance issubclass hasattr getattr type id callable range str repr hash dir vars int float bool "
    "math.sqrt math.log math.ceil math.floor math.prod math.exp"
)

# Functions and methods that return several tensors. max and min do so when given a dimension.
SEVERAL_RESULTS = word_set(
    "split chunk unbind tensor_split max min topk sort kthvalue mode median std_mean var_mean meshgrid slogdet svd "
    "eig qr lstm gru multi_head_attention_forward broadcast_tensors nonzero_tuple"
)

# Functions and methods that return a boolean tensor.
MASK_RESULTS = word_set(
    "eq ne gt lt ge le isnan isinf isfinite logical_and logical_or logical_not logical_xor bool greater less "
    "greater_equal less_equal not_equal isclose"
)

# Methods that change a Python container in place.
MUTATORS = word_set("append extend insert pop remove clear update add setdefault appendleft popleft discard popitem")

# Attributes that only tensors have: using one shows that a value is a tensor.
DISTINCTIVE = word_set(
    "view reshape permute transpose unsqueeze squeeze flatten shape ndim dtype device size dim numel sum mean std "
    "var max min argmax argmin softmax log_softmax sigmoid tanh relu exp log sqrt abs clamp float double half long "
    "bool int to cuda cpu detach item numpy tolist backward contiguous expand expand_as repeat chunk split "
    "masked_fill gather scatter matmul bmm mm t T norm topk sort nonzero any all cumsum requires_grad new_zeros "
    "new_ones unbind narrow repeat_interleave masked_select unique index_select flip roll tril triu"
)
