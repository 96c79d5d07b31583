"""`ignite-ipu plan`: plan a model over IPUs, print the comparison, write pictures."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.cli.targets import blamed_on, load_factory
from ignite_ipu.errors import PlanError, UserError
from ignite_ipu.pipeline.costs.machine import BOW, MK2

if TYPE_CHECKING:
    from torch import nn

    from ignite_ipu.pipeline.planning.plan import Plan
    from ignite_ipu.pipeline.profiling.profile import Profile

_MACHINES = {"mk2": MK2, "bow": BOW}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure a model on the host, plan it over IPUs, and print the plans, best first. Every time and size is an "
        "estimate."
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:FACTORY",
        help="a function without arguments, in a module or a .py file, that returns (model, inputs) or (model, inputs, "
        "optimizer); inputs are one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments. "
        "Or a .json file that --save wrote, which is shown",
    )
    parser.add_argument("--ipus", type=int, default=4, help="IPUs to use (default: %(default)s)")
    parser.add_argument("--ipus-per-replica", type=int, help="fix the IPUs of one copy of the model")
    parser.add_argument(
        "--machine", choices=sorted(_MACHINES), default="mk2", help="kind of IPUs (default: %(default)s)"
    )
    parser.add_argument("--memory", type=_size, help="memory of one IPU, such as 900MB (default: the machine's)")
    parser.add_argument("--usable", type=float, help="share of the memory left for tensors (default: the machine's)")
    parser.add_argument(
        "--optimizer", help="sgd, sgd-momentum, adam, adamw, lamb or rmsprop (default: the factory's, or adamw)"
    )
    parser.add_argument("--inference", action="store_true", help="plan inference instead of training")
    parser.add_argument("--global-batch", type=int, help="fix the samples per weight update")
    parser.add_argument(
        "--granularity",
        type=lambda text: int(text) if text.isdigit() else text,
        default="blocks",
        help="blocks, leaves or a depth (default: blocks)",
    )
    parser.add_argument("--real", action="store_true", help="measure a real run, for a forward that needs values")
    parser.add_argument("--rows", type=int, default=10, help="plans to list (default: %(default)s)")
    parser.add_argument(
        "--pod", type=int, metavar="IPUS", help="also scale the best plan by replicas up to this many IPUs"
    )
    parser.add_argument("--save", metavar="FILE", help="write the best plan as JSON, for ignite_ipu.pipeline.load_plan")
    parser.add_argument(
        "--annotate",
        metavar="FILE",
        help="write a copy of the model's source in which poptorch.BeginBlock marks the stages of the best plan, "
        "and ipu_options() returns its options",
    )
    parser.add_argument("--picture", metavar="FILE", help="write schedule and memory as a picture")
    parser.add_argument("--pod-picture", metavar="FILE", help="write the scaling of --pod as a picture")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the schedule as trace events for chrome://tracing or Perfetto"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command; return 0 if a plan fits, 1 if none does."""
    # Not at the top: it imports torch, and `--help` and completion need only the arguments.
    from ignite_ipu.pipeline.planning.plan_file import load_plan

    if args.target is None:
        raise UserError("Give a model to plan: MODULE:FACTORY, a plan's .json file, or --script SCRIPT.")
    try:
        check_arguments(args)
        if not args.target.endswith(".json"):
            return _plan(args)
        if args.annotate:
            raise UserError("--annotate needs the model: MODULE:FACTORY.")
        _present(load_plan(args.target), args)
    except (PlanError, OSError) as error:
        raise UserError(str(error)) from error
    return 0


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments before anything is measured.

    Raises:
        PlanError, UserError: A picture cannot be drawn.
    """
    from ignite_ipu.pipeline.planning.drawing import check_picture

    if args.pod_picture and not args.pod:
        raise UserError("--pod-picture needs --pod IPUS.")
    for picture in filter(None, (args.picture, args.pod_picture)):
        check_picture(picture)


def _plan(args: argparse.Namespace) -> int:
    from ignite_ipu.pipeline.planning.annotating import annotated_source
    from ignite_ipu.pipeline.profiling.measure import measure

    model, inputs, optimizer, factory = _built(args.target)
    profile = measure(model, inputs, granularity=args.granularity, training=not args.inference, fake=not args.real)

    def annotate(best: Plan) -> None:
        source, text = annotated_source(best, model, factory)
        out = Path(args.annotate)
        if out.exists() and out.samefile(source):
            raise UserError(f"{out} is the model's source itself: --annotate writes a copy, to another file.")
        with whole_file(out) as file:
            file.write(text.encode())
        print(f"\n{out} is {source} with the plan in it: train with options=ipu_options().")

    return plan_measured(args, profile, optimizer, annotate if args.annotate else lambda best: None)


def plan_measured(
    args: argparse.Namespace, profile: Profile, optimizer: Any, note: Callable[[Plan], None], **setting: Any
) -> int:
    """Plan the measured model, print the plans and write the files; return 0 if a plan fits, 1 if none does.

    Args:
        args: The command's arguments.
        profile: A micro-batch.
        optimizer: The optimizer, if the arguments name none; None for AdamW.
        note: Called with the best plan, after it was printed and saved.
        setting: Further arguments of `compare`.

    Raises:
        PlanError, UserError: Nothing can be planned, or a file cannot be written.
    """
    from ignite_ipu.pipeline.planning.comparison import compare, draw_scaling, scale
    from ignite_ipu.pipeline.planning.plan import text_table
    from ignite_ipu.pipeline.planning.plan_file import save_plan

    given = {"memory": args.memory, "usable_fraction": args.usable}
    machine = replace(_MACHINES[args.machine], **{name: value for name, value in given.items() if value is not None})
    if args.global_batch is not None:
        setting["global_batch"] = args.global_batch
    state = args.optimizer or optimizer or "adamw"
    fixed: Dict[str, Any] = {"ipus_per_replica": args.ipus_per_replica, "machine": machine, **setting}
    comparison = compare(profile, args.ipus, optimizer=state, **fixed)
    print(f"{text_table(comparison.table(args.rows))}\n")
    try:
        best = comparison.best
    except PlanError as error:
        print(error, file=sys.stderr)
        return 1
    _present(best, args)
    if args.save:
        save_plan(best, args.save)
    note(best)
    if args.pod:
        global_batch = setting.get("global_batch")
        scaled: Dict[str, Any] = {"machine": machine, "strategy": best.strategy, "optimizer": best.optimizer}
        scaling = scale(profile, best.ipus_per_replica, ipus=args.pod, global_batch=global_batch, **scaled)
        print(f"\n{scaling}")
        if args.pod_picture:
            draw_scaling(scaling).savefig(args.pod_picture)
    return 0


def _present(plan: Plan, args: argparse.Namespace) -> None:
    from ignite_ipu.pipeline.planning.drawing import write_trace

    print(plan)
    if args.picture:
        plan.draw().savefig(args.picture)
    if args.trace:
        write_trace(plan.schedule(), args.trace)


def _built(target: str) -> Tuple[nn.Module, Any, Any, Callable[[], Any]]:
    """Return the results of the factory (model, inputs and perhaps an optimizer), and the factory."""
    from torch import nn

    with blamed_on(target):
        factory = load_factory(target)
        built = factory()
    if isinstance(built, tuple) and len(built) in (2, 3) and isinstance(built[0], nn.Module):
        return built[0], built[1], built[2] if len(built) == 3 else None, factory
    raise PlanError(
        f"{target} returned {type(built).__name__}; it must return (model, inputs) or (model, inputs, optimizer), with "
        "the inputs of one micro-batch."
    )


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)\s*([a-zA-Z]*)", text.strip())
    if match is None or match.group(2).upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as 900MB or 897MiB")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])
