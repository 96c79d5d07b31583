"""Arguments of commands that give settings of a run: `--set`, `--ipu-config`, and short forms of `--set`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ignite_ipu.errors import OptionsError, UserError
from ignite_ipu.program.settings import VARIABLE, read, read_assignment

if TYPE_CHECKING:
    from ignite_ipu.program.config import IPUConfig

_SHORT_FORMS = {
    ("--replication-factor",): ("replication_factor", "replicas of the model, or auto for all that there are IPUs for"),
    ("--gradient-accumulation-steps", "--gradient-accumulation"): (
        "gradient_accumulation_steps",
        "micro-batches per weight update and replica",
    ),
    ("--update",): ("update", "where weights are updated: auto, device, or host (by PyTorch and any optimizer)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `given_settings` reads."""
    group = parser.add_argument_group(
        "settings",
        "Every setting of IPUConfig. If several places name one, the first of these decides: --set and its short "
        f"forms (the last one), --ipu-config, {VARIABLE} of the environment, the default.",
    )
    group.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting, such as seed=3, pipeline=[4,-1] or options.Precision.enableStochasticRounding=true; may be "
        "repeated",
    )
    group.add_argument(
        "--ipu-config",
        metavar="FILE",
        help="settings in a YAML or JSON file (`ignite-ipu config` writes one), or as inline JSON: '{\"seed\": 3}'",
    )
    for options, (name, text) in _SHORT_FORMS.items():
        group.add_argument(
            *options,
            dest="assignments",
            action="append",
            default=argparse.SUPPRESS,
            type=f"{name}={{}}".format,
            metavar="N",
            help=f"short for --set {name}=N: {text}",
        )


def given_settings(args: argparse.Namespace) -> IPUConfig:
    """Return the `IPUConfig` of the environment and a command's arguments.

    Raises:
        UserError: A place cannot be read, or it names no setting.
    """
    from ignite_ipu.program.config import IPUConfig, environment_sources

    try:
        sources = environment_sources()
        if args.ipu_config is not None:
            sources.append(read(args.ipu_config))
        return IPUConfig.from_sources([*sources, *map(read_assignment, args.assignments)])
    except (OSError, OptionsError) as error:
        raise UserError(str(error)) from error
