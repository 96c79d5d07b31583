"""Names about number formats: automatic precision, and the types that models and tensors are converted to."""

from __future__ import annotations

from ignite_ipu.capabilities.table import Capability, Table, Treatment

_OFF = "switched off: the step runs in single precision, or as mixed_precision of IPUConfig says"
_IN_HALF = 'For half precision set mixed_precision="fp16"'
_LACKED = "an IPU computes in float32 and float16"

PRECISION = Table(
    [
        Capability(
            "torch.amp.autocast",
            Treatment.LEFT_OUT,
            _OFF,
            _IN_HALF,
            replaces="loss = model(x)",
            example="with torch.autocast('cpu', dtype=torch.bfloat16, enabled=False):\n        loss = model(x)",
        ),
        Capability(
            "torch.amp.GradScaler",
            Treatment.LEFT_OUT,
            _OFF,
            _IN_HALF,
            replaces="loss.backward()",
            example="torch.cuda.amp.GradScaler(enabled=False).scale(loss).backward()",
        ),
        *[
            Capability(f"torch.{name}", Treatment.DEVICE, f"{_LACKED}, so float64 is narrowed to float32")
            for name in ("float64", "double")
        ],
        *[
            Capability(f"torch.{name}", Treatment.REFUSED, _LACKED, "Use float32, or half precision")
            for name in ("bfloat16", "complex64", "complex128", "cfloat", "cdouble")
        ],
    ]
)

LACKED_FORMATS = frozenset(entry.name for entry in PRECISION.with_treatment(Treatment.REFUSED))
"""The names of the number formats that an IPU lacks, and that are not narrowed to others."""
