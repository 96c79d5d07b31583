"""One description of a run becomes the training and the inference `poptorch.Options`.

The options that the user gave are completed in a copy. Where arguments contradict them, that is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import operator
import os
import re
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Mapping, Optional, Tuple

from ignite_ipu import backend
from ignite_ipu.errors import OptionsError, did_you_mean, logger, nearest
from ignite_ipu.launched import ipus_per_replica as ipus_of_launcher
from ignite_ipu.launched import is_instance
from ignite_ipu.program.config import IPUConfig, positive

if TYPE_CHECKING:
    from ignite_ipu.poptorch_types import Options

_MOST_IPUS = 64
_IPU_MODEL_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
_DEFAULTS = IPUConfig()


def with_replicas(config: IPUConfig, ipus_per_replica: Optional[int] = None, shared: Optional[int] = None) -> IPUConfig:
    """Return the settings with a number for `replication_factor="auto"`: the most replicas the machine has IPUs for.

    PopTorch reports the number of IPUs, not the number of free ones. Replicas share so many micro-batches of an
    update evenly as are `shared`; if that is None, each has as many of its own.
    """
    if config.replication_factor != "auto":
        return config
    own, ipus_each = own_options(config), ipus_per_replica or 1
    exists = backend.poptorch().ipuHardwareIsAvailable
    if own.Distributed.numProcesses > 1 or config.pipeline == "auto":
        whose = "the launcher's" if own.Distributed.numProcesses > 1 else 'for pipeline="auto" to know'
        raise OptionsError(f"replication_factor='auto': how many replicas there are is {whose}. Say a number.")
    limit = min(config.ipus or _MOST_IPUS, _MOST_IPUS)
    counts = [1 << power for power in range(_MOST_IPUS.bit_length()) if (1 << power) * ipus_each <= limit]
    fitting = [count for count in counts if exists(count * ipus_each) and (shared or count) % count == 0]
    replicas = max(fitting, default=1)
    each = config.gradient_accumulation_steps or own.Training.gradient_accumulation
    logger.info(
        "replication_factor='auto': %d x %d IPUs per replica = %d IPUs. A weight update is of %s.",
        replicas,
        ipus_each,
        replicas * ipus_each,
        f"{shared} micro-batches, shared by the replicas"
        if shared
        else f"{each} x {replicas} = {each * replicas} micro-batches",
    )
    return dataclasses.replace(config, replication_factor=replicas)


def training_options(
    config: IPUConfig = _DEFAULTS, *, ipus_per_replica: Optional[int] = None, alone: bool = False
) -> Options:
    """Return the `poptorch.Options` that a model is trained with.

    Args:
        config: Settings; its own options stay as they are. Options without an output mode return all outputs: the mean
            loss of a call, and matching labels, need them all.
        ipus_per_replica: IPUs that one copy of the model takes; None as for `check_ipus`.
        alone: Whether the program is of this process alone.

    Raises:
        OptionsError: Settings contradict the options, or the combination cannot run.
        TypeError: `config.options` are no `poptorch.Options`.
    """
    if config.compile:
        backend.compile_steps()
    config = with_replicas(config, ipus_per_replica)
    result = own_options(config, alone)
    _set_factors(result, config)
    # Schedulers add keys such as initial_lr to an optimizer's groups, which PopTorch would report one by one.
    result.relaxOptimizerAttributesChecks(True)
    if config.seed is not None:
        result.randomSeed(config.seed)
    if config.loss_scaling == "auto":
        result.Training.setAutomaticLossScaling(True)
    _set_output_mode(result, config)
    _place_tensors(result, config)
    _check(result, ipus_per_replica)
    return result


def evaluation_options(config: IPUConfig = _DEFAULTS, *, training: Optional[Options] = None) -> Options:
    """Return the `poptorch.Options` that a model is evaluated with.

    Args:
        config: Settings; its own options are treated as `training_options` treats them. All outputs come back unless
            something else is said.
        training: Training options to derive from when the config has none: everything is kept except gradient
            accumulation, which inference does not have, and anchored tensors. By default one evaluation call then
            consumes as many micro-batches as one training call: deviceIterations becomes the product of both.

    Raises:
        OptionsError: Settings contradict the options, they ask for gradient accumulation, or the combination cannot
            run.
        TypeError: `config.options` are no `poptorch.Options`.
    """
    if config.compile:
        backend.compile_steps()
    config = with_replicas(config)
    if config.options is None and training is not None:
        result = training.clone()
        iterations = training.device_iterations * training.Training.gradient_accumulation
        result.deviceIterations(config.device_iterations or iterations)
        result.Training.gradientAccumulation(1)
        result.outputMode(backend.poptorch().OutputMode.Default)
        result.set(anchored_tensors={})
        if config.replication_factor is not None:
            set_replicas(result, int(config.replication_factor))
    else:
        result = own_options(config)
        accumulation = result.Training.gradient_accumulation
        if accumulation != 1:
            raise OptionsError(
                f"Evaluation options ask for gradientAccumulation {accumulation}, but inference has no gradients to "
                "accumulate. Set Training.gradientAccumulation(1) on them and multiply deviceIterations instead "
                f"(deviceIterations({result.device_iterations * accumulation}) consumes as many samples per call), or "
                "leave them out: they are then derived from the training options."
            )
        _set_factors(result, config)
    _set_output_mode(result, config)
    _check(result, None)
    return result


def output_mode(options: Options, training: bool) -> Any:
    """Return the `poptorch.OutputMode` that the options amount to, with `Default` resolved as PopTorch resolves it."""
    modes = backend.poptorch().OutputMode
    mode = modes(options.output_mode)
    if mode is modes.Default:
        return modes.Final if training else modes.All
    return mode


def set_replicas(options: Options, count: int) -> None:
    """Set the number of replicas.

    Raises:
        OptionsError: PopRun has given the process another number.
    """
    if options.replication_factor == count:
        return
    try:
        options.replicationFactor(count)
    except RuntimeError as error:
        raise OptionsError(
            f"{count} replicas are needed, and PopRun gives this process {options.replication_factor}. Start "
            "it with another --num-replicas, or --replicas of `ignite-ipu launch`, and leave replication_factor out."
        ) from error


def check_ipus(options: Options, ipus_per_replica: Optional[int] = None, round_up: bool = False) -> int:
    """Return how many IPUs a model over `ipus_per_replica` IPUs takes with these options.

    None is one IPU, unless blocks in the model's code name others, which a trace finds. With `round_up` IPUs may be
    left idle where the number is no power of two, as options may allow.
    """
    replicas: int = options.replication_factor
    launched = is_instance() and options.Distributed.numProcesses > 1
    if launched and ipus_per_replica not in (None, ipus_of_launcher()):
        raise OptionsError(
            f"A replica of the model takes {ipus_per_replica} IPUs, and PopRun gives each {ipus_of_launcher()}. Start "
            f"the processes with --ipus-per-replica={ipus_per_replica}."
        )
    ipus_per_replica = ipus_per_replica or 1
    ipus = replicas * ipus_per_replica
    if is_simulated(options):
        return ipus
    product = f"replicationFactor ({replicas}) x IPUs per replica ({ipus_per_replica}) = {ipus} IPUs"
    rounded = 1 << (ipus - 1).bit_length()
    if rounded != ipus and not (round_up or options.auto_round_num_ipus):
        raise OptionsError(
            f"{product}, which is not a power of two, and IPUs are handed out in powers of two only. Use "
            f"{rounded // 2} or {rounded} of them, or call options.autoRoundNumIPUs(True) to reserve {rounded} and "
            f"leave {rounded - ipus} idle."
        )
    if rounded > _MOST_IPUS:
        raise OptionsError(f"{product}, more than the {_MOST_IPUS} that one process can use. Use fewer replicas.")
    return rounded


def own_options(config: IPUConfig, alone: bool = False) -> Options:
    """Return a copy of a config's own options, which may be changed even if those are frozen.

    Where PopRun has started the process, options that the config does not give have its replicas and its place among
    the processes; if `alone`, its replicas only.
    """
    kind, options = backend.poptorch().Options, config.options
    if isinstance(options, kind):
        own: Options = options.clone()
        return own
    fresh: Options = backend.instance_options(alone) if is_instance() else kind()
    if isinstance(options, Mapping):
        for name, value in options.items():
            for arguments in _calls(_setter(fresh, str(name)), value):
                try:
                    fresh.from_json(json.dumps({name: arguments}))
                except Exception as error:
                    hint = " Enumerations are written as in Python: 'OutputMode.All'." if isinstance(value, str) else ""
                    raise OptionsError(f"The options cannot have {name}={value!r}: {error}{hint}") from error
    elif options is not None:
        raise TypeError(
            f"The options are a {type(options).__module__}.{type(options).__qualname__}, not a poptorch.Options of the "
            f"PopTorch in use ({backend.name()}). Create them with ignite_ipu.backend.poptorch().Options()."
        )
    return fresh


@contextlib.contextmanager
def misspelt_settings_named() -> Iterator[None]:
    """Add the nearest known name to PopTorch's refusal of a name given to `_Popart.set`."""
    try:
        yield
    except Exception as error:
        wrong = re.search(r"Unknown \w+ option ([\w.]+)", str(error))
        if wrong is None:
            raise
        from ignite_ipu.emulator.options.popart import KNOWN

        names = {name for kind in KNOWN.values() for name in kind}
        near = None if wrong[1] in names else nearest(wrong[1], names)
        if near is None:
            raise
        raise OptionsError(f"{error} Did you mean _Popart.set({near!r}, ...)?") from error


def _calls(setter: Any, value: Any) -> List[Any]:
    """Return the arguments of a setter's calls: of a name and a value, as `_Popart.set` has, each item of a mapping."""
    parameters = inspect.signature(setter).parameters.values()
    needed = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    return list(map(list, value.items())) if isinstance(value, Mapping) and len(needed) > 1 else [value]


def _setter(options: Options, name: str) -> Any:
    """Return the setter of `options`, or of one of its groups, of this name."""
    *groups, setter = name.split(".")
    owner: Any = options
    for part in (*groups, setter):
        members = (each for each in dir(owner) if each == "_Popart" or not each.startswith("_"))
        if part is setter:
            known = [each for each in members if each[:1].islower() and callable(getattr(owner, each, None))]
        else:
            known = [each for each in members if not each[:1].islower()]
        if part not in known:
            raise OptionsError(f"poptorch.Options have no setter {name!r}.{did_you_mean(part, known)}")
        owner = getattr(owner, part)
    return owner


def _set_factors(options: Options, config: IPUConfig) -> None:
    """Write the batching factors into `options`, unless they contradict existing values."""
    replicas = config.replication_factor
    assert not isinstance(replicas, str)  # `with_replicas` has been there
    for setter, current, wanted in (
        ("deviceIterations", options.device_iterations, config.device_iterations),
        ("Training.gradientAccumulation", options.Training.gradient_accumulation, config.gradient_accumulation_steps),
        ("replicationFactor", options.replication_factor, replicas),
    ):
        if wanted is None or current == wanted:
            continue
        if current != 1:
            raise OptionsError(
                f"{setter} is {current} in the options but the arguments say {wanted}. Set it in one place only."
            )
        if setter == "replicationFactor":
            set_replicas(options, wanted)
        else:
            operator.attrgetter(setter)(options)(wanted)


def _set_output_mode(options: Options, config: IPUConfig) -> None:
    modes, name, period = backend.poptorch().OutputMode, config.output_mode, config.output_return_period
    if name is None:
        if period is not None:
            raise OptionsError(f"output_return_period={period} means nothing without output_mode=OutputMode.EveryN.")
        if options.defaultOutputMode():
            options.outputMode(modes.All)
        return
    if name not in modes.__members__:
        raise OptionsError(f"Output mode {name!r} does not exist.{did_you_mean(name, modes.__members__)}")
    wanted = modes[name]
    if wanted is modes.EveryN:
        if period is None:
            raise OptionsError("OutputMode.EveryN needs output_return_period, the N of every N device iterations.")
        options.outputMode(wanted, period)
    elif period is not None:
        raise OptionsError(f"output_return_period={period} belongs to OutputMode.EveryN, not to {wanted!r}.")
    else:
        options.outputMode(wanted)


def _check(options: Options, ipus_per_replica: Optional[int]) -> None:
    modes = backend.poptorch().OutputMode
    iterations = positive("deviceIterations", options.device_iterations)
    accumulation = positive("Training.gradientAccumulation", options.Training.gradient_accumulation)
    positive("replicationFactor", options.replication_factor)
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


def is_simulated(options: Options) -> bool:
    """Return whether no real IPUs are requested, so that their number does not matter."""
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


def _place_tensors(options: Options, config: IPUConfig) -> None:
    """Write into `options` which tensors leave the IPU, and which each replica keeps a part of."""
    offload, shard = _known("offload", config.offload), _known("shard", config.shard)
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
                f"The options already place {kind} ({getattr(options.TensorLocations, name)}). Set it in one "
                "place only: leave offload and shard out, or do not set it in options.TensorLocations."
            )
        settings = backend.poptorch().TensorLocationSettings()
        if kind in offload:
            settings.useOnChipStorage(False)
        if kind in shard:
            settings.useReplicatedTensorSharding(True)
        getattr(options.TensorLocations, setter)(settings)


def _known(name: str, kinds: Iterable[str]) -> Tuple[str, ...]:
    for kind in kinds:
        if kind not in TENSORS:
            raise OptionsError(f"{name} lists {kind!r}.{did_you_mean(kind, TENSORS)}")
    return tuple(kinds)
