"""Memory that one step frees and the next one takes again: the C library keeps it in between.

Gradients and activations are made anew in every step. glibc gives freed memory back to the operating system as soon as
there is more than twice its largest block, and each page of it costs a fault when the next step touches it: with a few
megabytes of weights a quarter of the step's time, or none, as the blocks happen to lie.
"""

from __future__ import annotations

import functools

import torch

__all__ = ["keep_freed_memory"]

_BLOCK = 31 << 20


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> None:
    """Let glibc keep up to 62 MiB of what is freed, as in any program that has freed a block of 31 MiB.

    Its limits follow the largest block, up to 32 MiB, that was freed so far (M_MMAP_THRESHOLD in mallopt(3)), unless
    the environment sets them. The block here is never written into, so it takes no memory. Other C libraries do not
    care.
    """
    torch.empty(_BLOCK, dtype=torch.uint8)
