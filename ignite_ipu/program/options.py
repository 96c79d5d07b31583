"""One description of a run becomes the training and the inference `poptorch.Options`.

The options that the user gave are completed in a copy. Where arguments contradict them, that is an error.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from ignite_ipu import backend
from ignite_ipu.errors import OptionsError
from ignite_ipu.poptorch_types import Options

__all__ = [
    "TENSORS",
    "check_ipus",
    "evaluation_options",
    "is_simulated",
    "output_mode",
    "place_tensors",
    "training_options",
]

_MOST_IPUS = 64
_IPU_MODEL_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


def training_options(
    options: Optional[Options] = None,
    *,
    device_iterations: Optional[int] = None,
    gradient_accumulation: Optional[int] = None,
    replication_factor: Optional[int] = None,
    output_mode: Optional[Any] = None,
    output_return_period: Optional[int] = None,
    seed: Optional[int] = None,
    ipus_per_replica: int = 1,
) -> Options:
    """Return the `poptorch.Options` that a model is trained with.

    Args:
        options: The user's own options, which stay as they are.
        device_iterations: Weight updates per device call.
        gradient_accumulation: Micro-batches per replica and weight update.
        replication_factor: Replicas of the model.
        output_mode: Which micro-batches' outputs come back. Left alone, options that do not say return all of them:
            the mean loss of a call, and labels that match, need them all.
        output_return_period: N of `OutputMode.EveryN`.
        seed: Seed of the device's random numbers. PopTorch seeds the host's torch with it, too.
        ipus_per_replica: IPUs that one copy of the model takes.

    Raises:
        OptionsError: Arguments contradict the options, or the combination cannot run.
        TypeError: `options` is no `poptorch.Options`.
    """
    result = _own(options, "options")
    _set_factor(result, "deviceIterations", result.device_iterations, device_iterations)
    _set_factor(
        result,
        "Training.gradientAccumulation",
        result.Training.gradient_accumulation,
        gradient_accumulation,
    )
    _set_factor(result, "replicationFactor", result.replication_factor, replication_factor)
    # Schedulers add keys such as initial_lr to an optimizer's groups, which PopTorch would report one by one.
    result.relaxOptimizerAttributesChecks(True)
    if seed is not None:
        result.randomSeed(_integer("seed", seed))
    _set_output_mode(result, output_mode, output_return_period)
    _check(result, ipus_per_replica)
    return result


def evaluation_options(
    options: Optional[Options] = None,
    *,
    training: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Optional[int] = None,
    output_mode: Optional[Any] = None,
    output_return_period: Optional[int] = None,
) -> Options:
    """Return the `poptorch.Options` that a model is evaluated with.

    Args:
        options: The user's own options for evaluation, treated as `training_options` treats its own.
        training: Training options to derive from when `options` is None: everything is kept except gradient
            accumulation, which inference does not have, and anchored tensors. By default one evaluation call then
            consumes as many micro-batches as one training call: deviceIterations becomes the product of both.
        device_iterations: Micro-batches per replica and device call.
        replication_factor: Replicas of the model.
        output_mode: Which micro-batches' outputs come back; all of them unless said otherwise, be it in `options`.
        output_return_period: N of `OutputMode.EveryN`.

    Raises:
        OptionsError: Arguments contradict the options, they ask for gradient accumulation, or the combination cannot
            run.
        TypeError: `options` is no `poptorch.Options`.
    """
    if options is None and training is not None:
        result = training.clone()
        iterations = training.device_iterations * training.Training.gradient_accumulation
        result.deviceIterations(
            iterations if device_iterations is None else _positive("deviceIterations", device_iterations)
        )
        result.Training.gradientAccumulation(1)
        result.outputMode(backend.poptorch().OutputMode.Default)
        result.set(anchored_tensors={})
        if replication_factor is not None:
            result.replicationFactor(_positive("replicationFactor", replication_factor))
    else:
        result = _own(options, "evaluation options")
        accumulation = result.Training.gradient_accumulation
        if accumulation != 1:
            raise OptionsError(
                f"Evaluation options ask for gradientAccumulation {accumulation}, but inference has no gradients to "
                "accumulate. Set Training.gradientAccumulation(1) on them and multiply deviceIterations instead "
                f"(deviceIterations({result.device_iterations * accumulation}) consumes as many samples per call), or "
                "leave them out: they are then derived from the training options."
            )
        _set_factor(result, "deviceIterations", result.device_iterations, device_iterations)
        _set_factor(result, "replicationFactor", result.replication_factor, replication_factor)
    _set_output_mode(result, output_mode, output_return_period)
    _check(result)
    return result


def output_mode(options: Options, training: bool) -> Any:
    """Return the `poptorch.OutputMode` that the options amount to, with `Default` resolved as PopTorch resolves it."""
    modes = backend.poptorch().OutputMode
    mode = modes(options.output_mode)
    if mode is modes.Default:
        return modes.Final if training else modes.All
    return mode


def check_ipus(options: Options, ipus_per_replica: int = 1) -> int:
    """Return how many IPUs a model over `ipus_per_replica` IPUs takes with these options.

    Raises:
        OptionsError: Machines hand out powers of two, up to 64, and the number is none.
    """
    replicas: int = options.replication_factor
    ipus = replicas * ipus_per_replica
    if is_simulated(options):
        return ipus
    product = f"replicationFactor ({replicas}) x IPUs per replica ({ipus_per_replica}) = {ipus} IPUs"
    rounded = 1 << (ipus - 1).bit_length()
    if rounded != ipus and not options.auto_round_num_ipus:
        raise OptionsError(
            f"{product}, which is not a power of two, and IPUs are handed out in powers of two only. Use "
            f"{rounded // 2} or {rounded} of them, or call options.autoRoundNumIPUs(True) to reserve {rounded} and "
            f"leave {rounded - ipus} idle."
        )
    if rounded > _MOST_IPUS:
        raise OptionsError(f"{product}, more than the {_MOST_IPUS} that one process can use. Use fewer replicas.")
    return rounded


def _own(options: Optional[Options], what: str) -> Options:
    """Return a copy of the user's options, which may be changed even if those are frozen."""
    kind = backend.poptorch().Options
    if options is None:
        fresh: Options = kind()
        return fresh
    if not isinstance(options, kind):
        raise TypeError(
            f"The {what} are a {type(options).__module__}.{type(options).__qualname__}, not a poptorch.Options of the "
            f"PopTorch in use ({backend.name()}). Create them with ignite_ipu.backend.poptorch().Options()."
        )
    own: Options = options.clone()
    return own


def _set_factor(options: Options, setter: str, current: int, wanted: Optional[int]) -> None:
    """Write one batching factor into `options`, unless that would contradict what they say already."""
    if wanted is None or current == _positive(setter, wanted):
        return
    if current != 1:
        raise OptionsError(
            f"{setter} is {current} in the options but the arguments say {wanted}. Say it in one place only."
        )
    method: Any = options
    for part in setter.split("."):
        method = getattr(method, part)
    method(wanted)


def _set_output_mode(options: Options, wanted: Optional[Any], period: Optional[int]) -> None:
    modes = backend.poptorch().OutputMode
    if wanted is None:
        if period is not None:
            raise OptionsError(f"output_return_period={period} means nothing without output_mode=OutputMode.EveryN.")
        if options.defaultOutputMode():
            options.outputMode(modes.All)
        return
    if isinstance(wanted, str):
        if wanted not in modes.__members__:
            raise OptionsError(f"Output mode {wanted!r} does not exist; choose one of {', '.join(modes.__members__)}.")
        wanted = modes[wanted]
    if wanted is modes.EveryN:
        if period is None:
            raise OptionsError("OutputMode.EveryN needs output_return_period, the N of every N device iterations.")
        options.outputMode(wanted, _positive("output_return_period", period))
    elif period is not None:
        raise OptionsError(f"output_return_period={period} belongs to OutputMode.EveryN, not to {wanted!r}.")
    else:
        options.outputMode(wanted)


def _check(options: Options, ipus_per_replica: int = 1) -> None:
    modes = backend.poptorch().OutputMode
    iterations = _positive("deviceIterations", options.device_iterations)
    accumulation = _positive("Training.gradientAccumulation", options.Training.gradient_accumulation)
    _positive("replicationFactor", options.replication_factor)
    if modes(options.output_mode) is modes.EveryN and iterations % options.output_return_period:
        raise OptionsError(
            f"OutputMode.EveryN with period {options.output_return_period} does not fit deviceIterations {iterations}: "
            "the period must divide it."
        )
    if options.input_group_size > 1 and iterations * accumulation > 1:
        raise OptionsError(
            f"inputReplicaGrouping ({options.input_group_size} replicas per group) together with deviceIterations "
            f"({iterations}) x gradientAccumulation ({accumulation}) > 1 is not cut correctly by PopTorch 3.3: the "
            "groups would read the wrong samples. Use one or the other."
        )
    check_ipus(options, ipus_per_replica)


def _positive(name: str, value: Any) -> int:
    number = _integer(name, value)
    if number < 1:
        raise OptionsError(f"{name} must be at least 1, got {number}.")
    return number


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionsError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
    return value


def is_simulated(options: Options) -> bool:
    """Tell whether no real IPUs are asked for, so that their number does not matter."""
    connections = backend.poptorch().ConnectionType
    if connections(options.connection_type) is connections.Never:
        return True
    if options.exists("use_model"):
        return bool(options.use_model)
    return any(os.environ.get(variable, "0") not in ("", "0") for variable in _IPU_MODEL_VARIABLES)


TENSORS = {
    "activations": ("setActivationLocation", "location_activation"),
    "weights": ("setWeightLocation", "location_weight"),
    "optimizer": ("setOptimizerLocation", "location_optimizer"),
    "accumulators": ("setAccumulatorLocation", "location_accumulator"),
}
"""The kinds of tensors that have a place of their own, with PopTorch's names for setting and reading it."""


def place_tensors(options: Options, offload: Sequence[str] = (), shard: Sequence[str] = ()) -> None:
    """Write into `options` which tensors leave the IPU and which are split between replicas.

    Args:
        options: Unfrozen `poptorch.Options` for training.
        offload: Kinds of `TENSORS` to keep in off-chip memory, from where they are streamed when needed.
        shard: Kinds of `TENSORS` of which each replica keeps a part (replicated tensor sharding).

    Raises:
        OptionsError: An unknown kind, sharding without replicas, or a location said twice.
    """
    offload, shard = _known("offload", offload), _known("shard", shard)
    if shard and options.replication_factor == 1:
        raise OptionsError(
            f"shard={list(shard)} splits tensors between replicas, but there is one (replicationFactor 1). Set "
            "replication_factor=2 or more, or leave shard out."
        )
    kinds = [kind for kind in TENSORS if kind in (*offload, *shard)]
    for kind in kinds:
        setter, name = TENSORS[kind]
        if options.TensorLocations.exists(name):
            raise OptionsError(
                f"The options say where {kind} are already ({getattr(options.TensorLocations, name)}). Say it in one "
                "place only: leave offload and shard out, or do not set it in options.TensorLocations."
            )
        settings = backend.poptorch().TensorLocationSettings()
        if kind in offload:
            settings.useOnChipStorage(False)
        if kind in shard:
            settings.useReplicatedTensorSharding(True)
        getattr(options.TensorLocations, setter)(settings)


def _known(name: str, kinds: Sequence[str]) -> Sequence[str]:
    if isinstance(kinds, str):
        raise OptionsError(f"{name}={kinds!r} must be a list: {name}=[{kinds!r}].")
    for kind in kinds:
        if kind not in TENSORS:
            raise OptionsError(f"{name} lists {kind!r}; choose from: {', '.join(TENSORS)}.")
    return kinds
