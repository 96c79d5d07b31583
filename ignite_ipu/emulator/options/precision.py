"""Options about number formats."""

from __future__ import annotations

import torch

from ignite_ipu.emulator.enums import HalfFloatCastingBehavior
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict, checked
from ignite_ipu.emulator.options.popart import _PopartOptions
from ignite_ipu.emulator.trace.autocasting import Policy, warn_of_age
from ignite_ipu.emulator.trace.precision import Precision

_PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _PrecisionOptions(OptionsDict):
    """`Options.Precision`.

    `autocastEnabled` and `autocastPolicy` belong to the API before 3.3.

    Args:
        popart_options: The back-end settings of the same `Options`, which most setters write to.
    """

    _popart_options: _PopartOptions

    def __init__(self, popart_options: _PopartOptions) -> None:
        # No policy means the one that autocasting itself starts with.
        super().__init__(autocast_enabled=True, autocast_policy=None)
        self._declare(_popart_options=popart_options)

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Stop a run at the first invalid operation, division by zero or overflow.

        Raises:
            AssertionError: `enabled` is no bool.
        """
        name = "enableFloatingPointExceptions"
        self._popart_options.set(name, checked(name, enabled, bool))
        return self

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Round half values up or down at random, in proportion to the distances."""
        self._popart_options.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """Choose the type in which products and convolutions add up, replacing all other convolution settings.

        Raises:
            ValueError: `dtype` is neither `torch.float` nor `torch.half`.
        """
        if dtype not in _PARTIALS:
            raise ValueError(f"The partials type should be either torch.float or torch.half, got {dtype!r}.")
        name = _PARTIALS[dtype]
        self._popart_options.set("partialsTypeMatMuls", name)
        self._popart_options._set_strings("convolutionOptions", {"partialsType": name})
        return self

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> _PrecisionOptions:
        """Do nothing but warn: the front end that this tuned is gone."""
        logger.warning(
            "Precision.halfFloatCasting(%r) is deprecated and has no effect: operands promote as in PyTorch.",
            half_float_casting,
        )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Do nothing but warn: cast the statistics with `.float()` before wrapping the model.

        Raises:
            ValueError: `value` is no bool.
        """
        if not isinstance(value, bool):
            raise ValueError(f"runningStatisticsAlwaysFloat needs to be set to a bool, got {value!r}.")
        logger.warning(
            "Precision.runningStatisticsAlwaysFloat(%r) is deprecated and has no effect: running statistics keep "
            "the type they have when the model is wrapped.",
            value,
        )
        return self

    def autocastEnabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Switch every autocast in a model on or off (API before 3.3).

        Raises:
            ValueError: `autocast_enabled` is no bool.
        """
        warn_of_age("Options.Precision.autocastEnabled")
        if not isinstance(autocast_enabled, bool):
            raise ValueError(f"autocastEnabled needs to be set to a bool, got {autocast_enabled!r}.")
        return self._with(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: Policy) -> _PrecisionOptions:
        """Choose which operators autocasting runs in half, and which in float (API before 3.3).

        Raises:
            ValueError: `autocast_policy` is no `poptorch.autocasting.Policy`.
        """
        warn_of_age("Options.Precision.autocastPolicy")
        if not isinstance(autocast_policy, Policy):
            raise ValueError(
                f"autocastPolicy needs to be set to a poptorch.autocasting.Policy, got {autocast_policy!r}."
            )
        self.checkIsFrozen("autocastPolicy")
        self._values["autocast_policy"] = autocast_policy
        return self

    def _compiled_for(self) -> Precision:
        """Return what a program is compiled for."""
        back_end = self._popart_options
        return Precision(
            policy=(self.autocast_policy or Policy()) if self.autocast_enabled else None,
            floating_point_exceptions=bool(back_end._value("enableFloatingPointExceptions")),
            stochastic_rounding=bool(back_end._value("enableStochasticRounding")),
            strided_groups=bool(back_end._value("groupNormStridedChannelGrouping")),
        )
