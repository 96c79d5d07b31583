"""`ignite-ipu config`: asks what a run on IPUs is to be like and writes the answers to a file for `--ipu-config`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

from ignite_ipu.errors import OptionsError, UserError
from ignite_ipu.program.config import IPUConfig

_Answers = Dict[str, Any]


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _word_or_number(text: str) -> Any:
    try:
        return _number(text)
    except ValueError:
        return text


def _flag(text: str) -> bool:
    if text.lower() not in ("y", "yes", "n", "no"):
        raise ValueError("answer yes or no")
    return text.lower().startswith("y")


def _layers(text: str) -> Any:
    entries: List[Any] = [_word_or_number(entry.strip()) for entry in text.split(",")]
    return {"no": None, "auto": "auto"}.get(text, entries)


def _offloaded(text: str) -> List[str]:
    return ["optimizer"] if _flag(text) else []


class _Question(NamedTuple):
    setting: str
    text: str
    default: str
    read: Callable[[str], Any]
    matters: Callable[[_Answers], bool] = lambda answers: True


_QUESTIONS = (
    _Question("gradient_accumulation_steps", "Micro-batches per weight update and replica?", "1", _number),
    _Question("device_iterations", "Weight updates per device call?", "1", _number),
    _Question("pipeline", "Spread the model over IPUs (no, auto, or layers: fc1, fc3)?", "no", _layers),
    _Question("ipus", "IPUs there are for it?", "4", _number, lambda answers: answers["pipeline"] == "auto"),
    _Question(
        "execution",
        "How do its stages run (pipelined, sharded, serial phased, parallel phased)?",
        "pipelined",
        str,
        lambda answers: answers["pipeline"] not in (None, "auto"),
    ),
    _Question("replication_factor", "Replicas of the model (a number, or auto)?", "1", _word_or_number),
    _Question("mixed_precision", "Products in half precision (no, fp16)?", "no", str),
    _Question(
        "loss_scaling",
        "Factor on the loss gradient (a number, or auto)?",
        "auto",
        _word_or_number,
        lambda answers: answers["mixed_precision"] == "fp16",
    ),
    _Question("max_grad_norm", "Clip gradients to which norm (no)?", "no", _word_or_number),
    _Question("offload", "Keep the optimizer's state off the chip?", "no", _offloaded),
    _Question("share_ipus", "Let training and evaluation take turns on the same IPUs?", "no", _flag),
    _Question("seed", "Seed of the device's random numbers (no)?", "no", _word_or_number),
)
_UNSAID = {"gradient_accumulation_steps": 1, "device_iterations": 1, "replication_factor": 1, "execution": "pipelined"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu config`."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="ipu_config.yaml", help="YAML or JSON file (default: %(default)s)"
    )
    parser.add_argument("--default", action="store_true", help="ask nothing: write what an empty answer stands for")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def main(args: argparse.Namespace) -> int:
    """Ask, and write the file."""
    if Path(args.output).exists() and not args.overwrite:
        raise UserError(f"{args.output} is there already: name another file with --output, or pass --overwrite")
    answers: _Answers = {}
    for question in _QUESTIONS:
        if question.matters(answers):
            answers[question.setting] = _answer(question, args.default)
    config = IPUConfig(**{name: value for name, value in answers.items() if value != _UNSAID.get(name)})
    try:
        config.save(args.output)
    except (OSError, OptionsError) as error:
        raise UserError(str(error)) from error
    print(f"{args.output}: {config}")
    print(f"Use it by `ignite-ipu run --ipu-config {args.output} SCRIPT`, or as config= in the script.")
    return 0


def _answer(question: _Question, default: bool) -> Any:
    """Return the answer to a question; on a terminal it is asked again until the answer can be used."""
    while True:
        text = question.default
        if not default:
            print(f"{question.text} [{question.default}] ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                raise UserError(f"there is no answer to {question.text!r}; --default writes a file without asking")
            text = line.strip() or text
        try:
            value = None if text == "no" and question.read is _word_or_number else question.read(text)
            return getattr(IPUConfig.from_dict({question.setting: value}), question.setting)
        except ValueError as error:
            problem = f"{text!r} is no answer to {question.text!r}: {error}"
            if not sys.stdin.isatty():
                raise UserError(problem) from error
            print(problem)
