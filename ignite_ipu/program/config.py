"""`IPUConfig`: settings of a run on IPUs in one object, which trainers, evaluators, accelerators and commands take."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ignite_ipu.errors import OptionsError, did_you_mean, logger
from ignite_ipu.program import settings

EXECUTIONS = ("pipelined", "sharded", "serial phased", "parallel phased")
"""The ways in which a pipeline's stages run."""
OF_PIPELINES = ("pipeline", "execution", "ipus", "memory_per_ipu")
"""Settings that spread a model over several IPUs."""
HALF_LOSS_SCALING = 4096.0
"""Factor on the loss gradient where products are in half precision and no factor is given: 2^12.

Float16 loses what is below 6e-8, so gradients from 1.5e-11 on are kept; those above 16 become infinite.
"""
WEIGHT_SYNC = ("on demand", "run", "epoch", "eager")
"""When the newest weights are copied to the host: when somebody asks for them, and at the end of a run, too; of every
epoch, too; after every device call, too."""
_Check = Callable[[str, Any], Any]


def integer(name: str, value: Any) -> int:
    """Return a value that is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionsError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
    return value


def positive(name: str, value: Any) -> int:
    """Return a value that is an integer of at least 1."""
    number = integer(name, value)
    if number < 1:
        raise OptionsError(f"{name} must be at least 1, got {number}.")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        hint = " YAML takes 1e-3 for a word; write 1.0e-3." if isinstance(value, str) and "e" in value else ""
        raise OptionsError(f"{name} must be a number, got {value!r} ({type(value).__name__}).{hint}")
    return value


def _positive_number(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise OptionsError(f"{name} must be positive, got {number}.")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionsError(f"{name} must be True or False, got {value!r} ({type(value).__name__}).")
    return value


def _word(name: str, value: Any) -> str:
    """Return a word, or the name of an enumeration's member."""
    word = getattr(value, "name", value)
    if not isinstance(word, str):
        raise OptionsError(f"{name} must be a name, got {value!r} ({type(value).__name__}).")
    return word


def _one_of(*choices: str, otherwise: Optional[_Check] = None) -> _Check:
    def check(name: str, value: Any) -> Any:
        if otherwise is not None and not isinstance(value, str):
            return otherwise(name, value)
        if value not in choices:
            some = "" if otherwise is None else "a number or "
            raise OptionsError(f"{name} is {value!r}; it must be {some}one of: {', '.join(map(repr, choices))}.")
        return value

    return check


def _names(name: str, value: Any) -> Tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionsError(f"{name}={value!r} must be a list: {name}=[{value!r}].")
    return tuple(value)


def _type(name: str, value: Any) -> str:
    return str(_one_of("float16", "float32")(name, str(value).replace("torch.", "")))


def _layers(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value  # the pipeline's to check
    return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in value)


@dataclasses.dataclass(frozen=True, repr=False)
class IPUConfig:
    """Settings of a run on IPUs; PopTorch's options, a plan or the default decide those that are left out.

    `create_ipu_trainer`, `create_ipu_evaluator`, `IPUAccelerator`, `ipu_prepare`, `ipu_step` and `ignite-ipu run` take
    it, or a file or dictionary with the same names. It prints the differences from the defaults.

    Attributes:
        device_iterations: Weight updates per device call of a trainer; micro-batches per replica of an evaluator's.
        gradient_accumulation_steps: Micro-batches per weight update and replica.
        replication_factor: Replicas of the model; "auto" for as many as the machine has IPUs for, up to 64 IPUs.
        output_mode: `poptorch.OutputMode` or its name: which micro-batches' outputs come back; all by default.
        output_return_period: N of `OutputMode.EveryN`: the last of every N device iterations come back.
        variable: Hyper-parameters of the optimizer that may change; by default the learning rate and all that are not
            zero.
        constant: Hyper-parameters to compile in.
        max_grad_norm: Clip gradients to this global norm; for Adam, AdamW, and SGD without momentum.
        loss_scaling: Factor on the loss gradient, for half precision: 4096 with `mixed_precision="fp16"` where none is
            given. "auto" lets the device adapt it from there (`options.Training.setAutomaticLossScaling`).
        mixed_precision: "no", or "fp16": products in half precision, by the rule of
            `ignite_ipu.program.forward.half_precision`.
        seed: Of the device's random numbers; seeds the host's torch, too.
        share_ipus: Let training and inference take turns on the same IPUs instead of each having their own, as they do
            where the machine has not enough for both.
        pipeline: Distribution of the model over several IPUs. Names or indices of the layers at which stages begin,
            pairs of these with an IPU, or a mapping of them to IPUs. Or layers per IPU such as `[4, -1, -1, 4]`, a
            `Placement`, a `Plan` or the JSON file of one, or "auto", which plans with the first batch. Of several
            models in a loop, a mapping of the names of their classes to these, or to the IPU of the whole model. It
            replaces the execution strategy of `options`.
        execution: "pipelined" (the default), "sharded", "serial phased" or "parallel phased". In a loop, without
            `pipeline`, also how blocks in the model's own code run.
        ipus: IPUs there are for all replicas: the IPUs that "auto" may use, and a limit otherwise.
        memory_per_ipu: Bytes that one IPU has, to which the estimated memory is held before compiling.
        offload: Keep "optimizer" state, "weights", "activations" or "accumulators" in off-chip memory.
        shard: Split these between replicas instead of keeping them whole on each.
        split_batch: Micro-batches of the device into which the rows of each batch of a loop are cut, for pipelines and
            replicas. The loss is a mean or a sum over rows; the first batch is compared with its pieces.
        update: Where weights are updated. "device": in the program that computes the gradients. "host": by PyTorch and
            any optimizer, with gradients that the program brings back; each update copies gradients and weights.
            "auto": on the device, until the loop needs something that only PyTorch can do, and on the host from there
            on; for loops alone. The default is "auto" in `ignite-ipu run`, `ignite_ipu.auto` and `IPUAccelerator`, else
            "device".
        substitute: "closest": train by the closest optimizer that an IPU has; see `convert_optimizer`.
        accum_type, velocity_accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: Types in
            which the optimizer keeps its sums and moments, "float32" or "float16".
        weight_sync: When a trainer copies the newest weights to the host: one of `WEIGHT_SYNC`.
        loader_mode: `poptorch.DataLoaderMode` or its name, for loaders that are swapped.
        drop_last: Leave out the samples at the end of the data that do not fill a device call, and log their number;
            False to train on them, too, by programs of their size.
        compile: Let the emulator compile programs by torch.compile's back end, in the background: long runs get faster.
            IPUs compile programs always.
        options: `poptorch.Options`, or a mapping from names of setters to their arguments, such as
            `{"Precision.enableStochasticRounding": True}`.

    Raises:
        OptionsError: A value is of another kind; the message names the setting.
    """

    device_iterations: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    gradient_accumulation_steps: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    replication_factor: Union[int, str, None] = dataclasses.field(
        default=None, metadata={"check": _one_of("auto", otherwise=positive)}
    )
    output_mode: Optional[Any] = dataclasses.field(default=None, metadata={"check": _word})
    output_return_period: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    variable: Iterable[str] = dataclasses.field(default=(), metadata={"check": _names})
    constant: Iterable[str] = dataclasses.field(default=(), metadata={"check": _names})
    max_grad_norm: Optional[float] = dataclasses.field(default=None, metadata={"check": _positive_number})
    loss_scaling: Union[float, str, None] = dataclasses.field(
        default=None, metadata={"check": _one_of("auto", otherwise=_positive_number)}
    )
    mixed_precision: str = dataclasses.field(default="no", metadata={"check": _one_of("no", "fp16")})
    seed: Optional[int] = dataclasses.field(default=None, metadata={"check": integer})
    share_ipus: bool = dataclasses.field(default=False, metadata={"check": _flag})
    pipeline: Optional[Any] = dataclasses.field(default=None, metadata={"check": _layers})
    execution: Optional[str] = dataclasses.field(default=None, metadata={"check": _one_of(*EXECUTIONS)})
    ipus: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    memory_per_ipu: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    offload: Iterable[str] = dataclasses.field(default=(), metadata={"check": _names})
    shard: Iterable[str] = dataclasses.field(default=(), metadata={"check": _names})
    split_batch: Optional[int] = dataclasses.field(default=None, metadata={"check": positive})
    update: Optional[str] = dataclasses.field(default=None, metadata={"check": _one_of("auto", "device", "host")})
    substitute: Optional[str] = dataclasses.field(default=None, metadata={"check": _one_of("closest")})
    accum_type: Optional[Any] = dataclasses.field(default=None, metadata={"check": _type})
    velocity_accum_type: Optional[Any] = dataclasses.field(default=None, metadata={"check": _type})
    first_order_momentum_accum_type: Optional[Any] = dataclasses.field(default=None, metadata={"check": _type})
    second_order_momentum_accum_type: Optional[Any] = dataclasses.field(default=None, metadata={"check": _type})
    weight_sync: str = dataclasses.field(default="run", metadata={"check": _one_of(*WEIGHT_SYNC)})
    loader_mode: Optional[Any] = dataclasses.field(default=None, metadata={"check": _word})
    drop_last: bool = dataclasses.field(default=True, metadata={"check": _flag})
    compile: bool = dataclasses.field(default=False, metadata={"check": _flag})
    options: Optional[Any] = None

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value is default:
                continue
            check = _CHECKS.get(name)
            if value is None:
                object.__setattr__(self, name, default)
            elif check is not None:
                object.__setattr__(self, name, check(name, value))

    def __repr__(self) -> str:
        return f"IPUConfig({', '.join(f'{name}={value!r}' for name, value in self.said().items())})"

    def said(self) -> Dict[str, Any]:
        """Return the settings that differ from their defaults, by their names."""
        values = {name: (getattr(self, name), default) for name, default in _DEFAULTS.items()}
        return {name: value for name, (value, default) in values.items() if not _same(value, default)}

    @classmethod
    def of(cls, config: Configuration = None, **arguments: Any) -> IPUConfig:
        """Return the settings of a function that takes some of them as arguments, too.

        Args:
            config: A configuration, a mapping for `from_dict`, the path of a file, or None for the defaults.
            arguments: Settings; those that are None or the default say nothing.

        Raises:
            OptionsError: The configuration says something else than an argument, or `from_dict` and `load` refuse it.
            TypeError: It is something else.
        """
        if config is None:
            config = cls()
        elif isinstance(config, Mapping):
            config = cls.from_dict(config)
        elif isinstance(config, (str, os.PathLike)):
            config = cls.load(config)
        elif not isinstance(config, cls):
            raise TypeError(
                f"The config is a {type(config).__qualname__}; an IPUConfig, a mapping or a path is needed."
            )
        given = cls(**arguments).said()
        for name, value in config.said().items():
            if not _same(given.get(name, value), value):
                raise OptionsError(
                    f"{name} is {value!r} in the config but the arguments say {given[name]!r}. Set it in one place "
                    "only."
                )
        return dataclasses.replace(config, **given) if given else config

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> IPUConfig:
        """Return the configuration that a mapping of names to values says.

        Raises:
            OptionsError: There is no setting of a name, or a value is of another kind.
        """
        for name in values:
            if name not in _DEFAULTS:
                raise OptionsError(f"There is no setting {name!r}.{did_you_mean(str(name), _DEFAULTS)}")
        return cls(**values)

    def to_dict(self, partly: bool = False) -> Dict[str, Any]:
        """Return the differences from the defaults as plain data, from which `from_dict` makes the same again.

        Args:
            partly: Leave out, with a warning, values without a plain form: an object as options, plan or placement.

        Raises:
            OptionsError: A setting has no plain form.
        """
        found = {}
        for name, value in self.said().items():
            try:
                found[name] = _plain(name, value)
            except OptionsError as error:
                if not partly:
                    raise
                logger.warning("The settings are saved without one: %s", error)
        return found

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> IPUConfig:
        """Read a YAML or JSON file; nothing in it is run.

        Args:
            path: The file, or a folder with `ipu_config.json` in it.

        Raises:
            OptionsError: It holds no settings, or there are none of these names; the message begins with the path.
            OSError: It cannot be read.
        """
        return cls.from_sources([settings.read_file(path)])

    @classmethod
    def from_sources(cls, sources: Iterable[settings.Source]) -> IPUConfig:
        """Return the configuration of several places; a later one replaces the values of an earlier one.

        Raises:
            OptionsError: A place names no setting, or a value is of another kind; the message begins with the place.
        """
        found = [each._replace(settings=_listed(each.settings)) if each.from_words else each for each in sources]
        for each in found:
            try:
                cls.from_dict(each.settings)
            except OptionsError as error:
                raise OptionsError(f"{each.place}: {error}") from error
        return cls.from_dict(settings.merged(found))

    @classmethod
    def from_environment(cls) -> IPUConfig:
        """Return the configuration that `IGNITE_IPU_CONFIG` holds, inline JSON or a path; the defaults if it is unset.

        Raises:
            OptionsError: It cannot be read; the message begins with the variable.
        """
        return cls.from_sources(environment_sources())

    def save(self, path: Union[str, os.PathLike[str]], partly: bool = False) -> None:
        """Write the differences from the defaults to a file, as YAML by its ending, else as JSON.

        Args:
            path: The file, or a folder for `ipu_config.json` in it.
            partly: As for `to_dict`.

        Raises:
            OptionsError: As for `to_dict`.
            OSError: It cannot be written.
        """
        settings.write_file(path, self.to_dict(partly))

    def of_optimizer(self) -> Dict[str, Any]:
        """Return the arguments of `convert_optimizer`."""
        import torch  # not at the top: commands read settings before they need it

        automatic = self.loss_scaling == "auto"
        scaling = None if automatic else self.loss_scaling
        types = {name: getattr(self, name) for name in _DEFAULTS if name.endswith("accum_type")}
        return {
            **{name: getattr(self, name) for name in ("variable", "constant", "max_grad_norm", "substitute")},
            **{name: None if value is None else getattr(torch, value) for name, value in types.items()},
            "loss_scaling": scaling,
            "default_loss_scaling": HALF_LOSS_SCALING if automatic or self.half_products else None,
        }

    @property
    def host_loss_scaling(self) -> float:
        """The factor on the loss gradient where PyTorch updates the weights on the host."""
        arguments = self.of_optimizer()
        return float(arguments["loss_scaling"] or arguments["default_loss_scaling"] or 1.0)

    @property
    def half_products(self) -> bool:
        """True if matrix products and convolutions are computed in half precision."""
        return self.mixed_precision == "fp16"

    def refuse_all_but(self, names: Iterable[str], reason: str) -> None:
        """Refuse settings that mean nothing where the configuration is used.

        Raises:
            OptionsError: Another setting than these differs from its default.
        """
        for name, value in self.said().items():
            if name not in names:
                raise OptionsError(f"{name}={value!r}: {reason}")


Configuration = Union[IPUConfig, Mapping[str, Any], str, "os.PathLike[str]", None]
"""Values that stand for an `IPUConfig` where one is wanted."""

_DEFAULTS: Dict[str, Any] = {field.name: field.default for field in dataclasses.fields(IPUConfig)}


_CHECKS: Dict[str, Any] = {field.name: field.metadata.get("check") for field in dataclasses.fields(IPUConfig)}
_LISTS = frozenset(field.name for field in dataclasses.fields(IPUConfig) if field.metadata.get("check") is _names)


def environment_sources() -> List[settings.Source]:
    """Return the settings of `IGNITE_IPU_CONFIG` as a source, none if it is unset or empty.

    Raises:
        OptionsError: It cannot be read; the message begins with the variable.
    """
    text = os.environ.get(settings.VARIABLE, "").strip()
    if not text:
        return []
    try:
        source = settings.read(text)
    except (OSError, OptionsError) as error:
        raise OptionsError(f"{settings.VARIABLE}: {error}") from error
    return [source._replace(place=f"{settings.VARIABLE}, {source.place}")]


def _listed(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return settings with a list of one where a word stands for a list."""
    return {name: [value] if name in _LISTS and isinstance(value, str) else value for name, value in values.items()}


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(name, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise OptionsError(
        f"{name} is a {type(value).__qualname__}, which no file can hold. Give options as a mapping of setters, a "
        "pipeline as a list of layers."
    )
