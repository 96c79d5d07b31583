"""`ignite-ipu plan`: plan a model that a function makes, or the update of a script, over several IPUs.

A script runs as by `ignite-ipu run` up to its first update. The host measures a micro-batch of that, with the loss and
everything else that the loop computes, and the script ends there.
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from ignite_ipu import backend
from ignite_ipu.errors import PlanError, RunError, UserError
from ignite_ipu.pipeline import command
from ignite_ipu.program import arguments

if TYPE_CHECKING:
    from ignite_ipu.pipeline import Plan, Profile
    from ignite_ipu.poptorch_types import Executor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu plan`."""
    command.add_arguments(parser)
    parser.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="the last argument: a script and its arguments, whose first update is planned in place of a function's "
        "model, with as many samples",
    )
    arguments.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run the command; return 0 if a plan fits, 1 if none does."""
    if args.script is None:
        return command.main(args)
    if not args.script or args.target is not None:
        raise UserError("--script is followed by the script and its arguments, and takes the place of MODULE:FACTORY.")
    if args.annotate or args.inference:
        raise UserError("--script plans the training of a script, whose source stays as it is: leave out the other.")
    try:
        command.check_arguments(args)
        update = _first_update(args)
        print(
            f"The first update, at {update.line}, has {update.micro_batches} x {update.profile.samples} samples: "
            "micro-batches x their rows.\n"
        )
        rows = update.profile.samples * update.micro_batches
        setting: Dict[str, Any] = {"global_batch": rows, "device_iterations": 1}
        note = functools.partial(_tell_use, args, update.models)
        if update.models and args.save:
            raise UserError(
                f"--save: the step trains {' and '.join(update.models)} together, and a plan is of one model."
            )
        return command.plan_measured(args, update.profile, update.optimizer, note, **setting)
    except (PlanError, OSError) as error:
        raise UserError(str(error)) from error


class _FirstUpdate(SystemExit):
    """End of a script at its first update; no `except Exception` of the script's keeps it."""

    def __init__(self, profile: Profile, micro_batches: int, optimizer: Any, models: List[str]) -> None:
        from ignite_ipu.program.user_code import current_line

        super().__init__(0)
        self.profile, self.micro_batches, self.optimizer, self.models = profile, micro_batches, optimizer, models
        self.line = str(current_line())


def _first_update(args: argparse.Namespace) -> _FirstUpdate:
    # Not at the top: these import torch, and `--help` and completion need only the arguments.
    from ignite_ipu.running.patches import Patches
    from ignite_ipu.running.script import run_script

    patches, poptorch, found = Patches(), backend.poptorch(), []  # type: Patches, Any, List[_FirstUpdate]
    wrap = functools.partial(_ending, poptorch.trainingModel, args, found)
    patches.set(poptorch, "trainingModel", wrap)
    try:
        run_script(args.script[0], args.script[1:], config=arguments.given_settings(args))
    except _FirstUpdate:
        pass
    finally:
        patches.undo()
    if not found:
        raise UserError(
            f"{args.script[0]} has come to its end without an update of weights, so there is nothing to plan"
        )
    return found[0]


def _ending(
    original: Any, args: argparse.Namespace, found: List[_FirstUpdate], step: Any, *given: Any, **keywords: Any
) -> Executor:
    """Return an executor that measures its module where it would compile it, and ends the script."""
    from ignite_ipu.deferred.compiled.joined_models import joined_in
    from ignite_ipu.pipeline import measure
    from ignite_ipu.program.geometry import BatchGeometry
    from ignite_ipu.program.micro_batches import first_micro_batch
    from ignite_ipu.program.step import BatchStep

    if not isinstance(step, BatchStep):
        raise RunError(None, f"a {type(step).__qualname__} is wrapped by PopTorch itself, which is not planned")
    options = keywords["options"]
    micro_batches = BatchGeometry.from_options(options, 1).input_micro_batches
    executor: Executor = original(step, *given, **keywords)

    class Ending(type(executor)):  # type: ignore[misc]
        def compile(self, *leaves: Any, **more: Any) -> None:
            first = first_micro_batch(leaves, micro_batches)
            profile = measure(step.model, first, granularity=args.granularity, fake=not args.real, call=step.run_with)
            models = joined_in(step.model)
            found.append(
                _FirstUpdate(profile, micro_batches // options.device_iterations, keywords["optimizer"], models)
            )
            raise found[0]

    executor.__class__ = Ending
    return executor


def _tell_use(args: argparse.Namespace, models: List[str], best: Plan) -> None:
    """Print how the script trains by a plan."""
    starts = best.placement().starts
    if models:
        places: Dict[str, List[Tuple[str, int]]] = {}
        for start in starts:
            model, _, layer = start.layer.partition(".")
            places.setdefault(model, []).append((layer or model, start.ipu))
        print(f"\nThe loop trains by it with IPUConfig(pipeline={places!r}, execution={best.execution!r}).")
    elif args.save:
        print(
            f"\nThe loop trains by it with IPUConfig(pipeline={args.save!r}), or by "
            f"`ignite-ipu run --set pipeline={args.save}`."
        )
