"""`ignite-ipu config`: prompts for the settings of runs on IPUs and writes the answers to a file for `--ipu-config`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ignite_ipu.errors import OptionsError, UserError
from ignite_ipu.program.settings import check_writable

_MOST_IPUS = 64
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


def _fitting_replicas(answers: _Answers) -> None:
    """Refuse replicas for which no machine, or not the one that was described, has IPUs."""
    replicas, ipus = answers["replication_factor"], answers.get("ipus", _MOST_IPUS)
    if not isinstance(replicas, int):
        return
    if replicas & (replicas - 1):
        smaller = 1 << (replicas.bit_length() - 1)
        raise OptionsError(
            f"IPUs are handed out in powers of two, and {replicas} replicas take a multiple of {replicas}. Use "
            f"{smaller} or {2 * smaller}."
        )
    if replicas > ipus:
        raise OptionsError(f"{replicas} replicas need at least {replicas} IPUs, and there are {ipus}.")


class _Question(NamedTuple):
    setting: str
    text: str
    default: str
    read: Callable[[str], Any]
    matters: Callable[[_Answers], bool] = lambda answers: True
    fits: Callable[[_Answers], None] = lambda answers: None


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
    _Question(
        "replication_factor",
        "Replicas of the model (a number, or auto)?",
        "1",
        _word_or_number,
        fits=_fitting_replicas,
    ),
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
        "-o",
        "--output",
        metavar="FILE",
        help="YAML or JSON file (default: ipu_config.yaml, or ipu_config.json where PyYAML is not installed)",
    )
    parser.add_argument("--default", action="store_true", help="ask nothing: write the default answers")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def main(args: argparse.Namespace) -> int:
    """Ask the questions, and write the file."""
    from ignite_ipu.program.config import IPUConfig

    output = _output(args.output, args.overwrite)
    answers: _Answers = {}
    with _kept(answers):
        for question in _QUESTIONS:
            if question.matters(answers):
                _answer(question, answers, args.default)
        config = IPUConfig.from_dict(_given(answers))
        try:
            config.save(output)
        except (OSError, OptionsError) as error:
            raise UserError(str(error)) from error
    print(f"{output}: {config}")
    print(f"Use it by `ignite-ipu run --ipu-config {output} SCRIPT`, or as config= in the script.")
    return 0


def _output(path: Optional[str], overwrite: bool) -> str:
    """Return the file to write, after checking that it can be: no question may come before that check."""
    try:
        check_writable(path or "ipu_config.yaml")
    except OptionsError as error:
        if path is not None:
            raise UserError(str(error)) from error
        path = "ipu_config.json"
    path = path or "ipu_config.yaml"
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{path} is a directory: name a file in it with --output")
    if file.exists() and not overwrite:
        raise UserError(f"{path} is there already: name another file with --output, or pass --overwrite")
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path} cannot be written: {folder} is no directory that can be written to")
    return path


@contextlib.contextmanager
def _kept(answers: _Answers) -> Iterator[None]:
    """Print the answers that were given when something ends the questions before the file is written."""
    try:
        yield
    except BaseException:
        if _given(answers):
            print(f"\nThe answers so far, for --ipu-config or a .json file:\n{json.dumps(_given(answers))}")
        raise


def _given(answers: _Answers) -> _Answers:
    """Return the answers that differ from the defaults."""
    from ignite_ipu.program.config import IPUConfig

    return IPUConfig.from_dict({name: v for name, v in answers.items() if v != _UNSAID.get(name)}).to_dict()


def _answer(question: _Question, answers: _Answers, default: bool) -> None:
    """Add the answer to a question; on a terminal it is asked again until the answer can be used."""
    from ignite_ipu.program.config import IPUConfig

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
            value = IPUConfig.from_dict({question.setting: value}).to_dict().get(question.setting, value)
            question.fits({**answers, question.setting: value})
        except ValueError as error:
            problem = f"{text!r} is no answer to {question.text!r}: {error}"
            if not sys.stdin.isatty():
                raise UserError(problem) from error
            print(problem)
        else:
            answers[question.setting] = value
            return
