"""Arguments of Ignite's factories that cannot be honoured on an IPU: refused by name, with the way out."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from ignite_ipu import backend
from ignite_ipu.errors import UnsupportedArgumentError

__all__ = ["refuse_unsupported"]


def refuse_unsupported(
    device: Optional[Union[str, torch.device]] = None,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
    loader_mode: Optional[Any] = None,
) -> None:
    """Refuse what a factory cannot honour.

    Raises:
        UnsupportedArgumentError: `device` is another one than the IPU, or an argument has a value that means nothing
            there.
    """
    if device is not None and torch.device(device).type != "ipu":
        raise UnsupportedArgumentError(
            f"device={device!r}: these engines run on IPUs, and PopTorch moves model and batches there by itself. "
            'Leave device out, or pass "ipu".'
        )
    if amp_mode not in (None, "amp"):
        raise UnsupportedArgumentError(
            f'amp_mode={amp_mode!r}: it means a library for another device. Use "amp", which runs matrix products '
            "and convolutions in half precision, or call model.half() and convert the inputs in the data set."
        )
    if scaler and scaler is not True:
        raise UnsupportedArgumentError(
            f"scaler={scaler!r}: a GradScaler inspects gradients on the host, where an IPU's never are. Pass "
            "scaler=True, with which the device scales the loss by itself, or loss_scaling=... instead."
        )
    if scaler and amp_mode is None:
        raise UnsupportedArgumentError(
            'scaler=True with amp_mode=None: in single precision no gradient needs it. Pass amp_mode="amp", too, or '
            "leave scaler out."
        )
    modes = backend.poptorch().DataLoaderMode
    if loader_mode is not None and loader_mode not in tuple(modes):
        raise UnsupportedArgumentError(
            f"loader_mode={loader_mode!r}: it says in which process batches are made. Use one of "
            f"{', '.join(f'poptorch.DataLoaderMode.{mode.name}' for mode in modes)}."
        )
    if deterministic and loader_mode is not None and loader_mode is not modes.Sync:
        raise UnsupportedArgumentError(
            f"deterministic=True with loader_mode={loader_mode!r}: an asynchronous loader prepares batches ahead in "
            "another process, where the seeds that the engine sets do not reach. Use DataLoaderMode.Sync."
        )
