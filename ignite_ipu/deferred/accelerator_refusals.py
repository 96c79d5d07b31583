"""Settings of accelerate that an IPU does not have, refused when an `IPUAccelerator` is made."""

from __future__ import annotations

import os
from typing import Any, Dict

from accelerate.utils import DistributedType, TorchDynamoPlugin

from ignite_ipu.errors import UnsupportedArgumentError

_REFUSED = {
    "deepspeed_plugin": "DeepSpeed shards a model over GPUs",
    "deepspeed_plugins": "DeepSpeed shards a model over GPUs",
    "fsdp_plugin": "FSDP shards a model over GPUs",
    "megatron_lm_plugin": "Megatron-LM shards a model over GPUs",
    "torch_tp_plugin": "tensor parallelism shards a model over GPUs",
    "parallelism_config": "it arranges processes with a GPU each",
    "dynamo_backend": "torch.compile is for other devices; PopTorch compiles the step",
    "dynamo_plugin": "torch.compile is for other devices; PopTorch compiles the step",
}
# Features that `accelerate launch` and accelerate's configuration switch on in the environment.
_REFUSED_VARIABLES = {
    "ACCELERATE_USE_DEEPSPEED": _REFUSED["deepspeed_plugin"],
    "ACCELERATE_USE_FSDP": _REFUSED["fsdp_plugin"],
    "ACCELERATE_USE_MEGATRON_LM": _REFUSED["megatron_lm_plugin"],
    "ACCELERATE_USE_PARALLELISM_CONFIG": _REFUSED["parallelism_config"],
    "ACCELERATE_DYNAMO_BACKEND": _REFUSED["dynamo_backend"],
}
_PRECISIONS = (None, "no", "fp16")


def refuse_arguments(kwargs: Dict[str, Any]) -> None:
    """Refuse arguments of `accelerate.Accelerator` that cannot be honoured on an IPU.

    Raises:
        UnsupportedArgumentError: There is one.
    """
    for name, reason in _REFUSED.items():
        value = kwargs.get(name)
        if (value.backend if isinstance(value, TorchDynamoPlugin) else value) not in (None, "no", "NO"):
            # The plugins that accelerate makes of them are long to read.
            shown = repr(value) if isinstance(value, (str, bool, dict)) else f"{type(value).__name__}(...)"
            raise UnsupportedArgumentError(f"{name}={shown}: {reason}. Leave it out.")
    precision = kwargs.get("mixed_precision")
    if precision is not None and str(precision) not in _PRECISIONS:
        raise UnsupportedArgumentError(
            f"mixed_precision={str(precision)!r}: an IPU computes in float32 and float16. Use 'fp16', which runs "
            "matrix products and convolutions in half precision, with config=IPUConfig(loss_scaling=...) if gradients "
            "vanish."
        )
    for handler in kwargs.get("kwargs_handlers") or ():
        name = type(handler).__name__
        if name in ("GradScalerKwargs", "AutocastKwargs") or "Recipe" in name:
            raise UnsupportedArgumentError(
                f"kwargs_handlers: {name} configures a mechanism of GPUs that an IPU does not have. Leave it out"
                f"{' and use config=IPUConfig(loss_scaling=...)' if name == 'GradScalerKwargs' else ''}."
            )


def refuse_environment(arguments: Dict[str, Any]) -> None:
    """Refuse settings of accelerate's launcher in the environment that cannot be honoured on an IPU.

    Raises:
        UnsupportedArgumentError: There is one.
    """
    for name, reason in _REFUSED_VARIABLES.items():
        value = os.environ.get(name, "")
        if value.lower() not in ("", "false", "0", "no"):
            raise UnsupportedArgumentError(
                f"The environment variable {name}={value}, which accelerate's launcher and configuration set: "
                f"{reason}. Start the script with python, or unset it."
            )
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if arguments.get("mixed_precision") is None and precision not in _PRECISIONS:
        raise UnsupportedArgumentError(
            f"The environment variable ACCELERATE_MIXED_PRECISION={precision}, which accelerate's launcher and "
            "configuration set: an IPU computes in float32 and float16. Pass mixed_precision='no' or 'fp16'."
        )


def refuse_state(accelerator: Any) -> None:
    """Refuse a state that another `Accelerator` of the process has chosen and that an IPU does not have.

    Raises:
        UnsupportedArgumentError: There is one.
    """
    if accelerator.distributed_type not in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise UnsupportedArgumentError(
            f"accelerate has found processes of the kind {accelerator.distributed_type}, which an IPU's are not. Start "
            "the script with `ignite-ipu launch`, torchrun, `accelerate launch` or PopRun; several processes of one "
            "model are DistributedType.MULTI_CPU for accelerate."
        )
    if accelerator.device.type != "cpu":
        raise UnsupportedArgumentError(
            f"Another Accelerator of this process has chosen {accelerator.device}, and accelerate keeps one device per "
            "process. Create the IPUAccelerator first, or call "
            "accelerate.state.AcceleratorState._reset_state(reset_partial_state=True) before."
        )
    plugin = accelerator.state.dynamo_plugin
    for name, value, allowed in (
        ("mixed_precision", accelerator.mixed_precision, _PRECISIONS),
        ("dynamo_backend", plugin.backend, ("NO",)),
    ):
        if value not in allowed:
            raise UnsupportedArgumentError(
                f"Another Accelerator of this process has chosen {name}={str(value)!r}, which an IPU does not have, "
                "and accelerate keeps one choice per process. Create the IPUAccelerator first, or call "
                "accelerate.state.AcceleratorState._reset_state(reset_partial_state=True) before."
            )
