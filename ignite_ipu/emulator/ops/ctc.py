"""Decoding the outputs of a model trained with a CTC loss into labels."""

from __future__ import annotations

import functools
import math
from typing import Dict, List, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import active

_Labels = Tuple[int, ...]
_IMPOSSIBLE = -math.inf


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> List[torch.Tensor]:
    """Return the most likely label sequences; outside a traced model zeros of the same shapes, as in PopTorch.

    Args:
        probs: Log-probabilities [T, N, C] of the classes at each time.
        lengths: How many times of each example count [N].
        blank: The class that stands for no label.
        beam_width: How many sequences are followed from one time to the next.
        top_paths: How many sequences are returned (P).

    Returns:
        Log-probabilities [N, P], most likely first; lengths [N, P] (int32); labels [N, P, T] (int32), filled up with
        the blank. Where there are fewer than P sequences, the rest have probability zero and length zero.

    Raises:
        Error: A type, shape or value is wrong.
    """
    for name, value in (("probs", probs), ("lengths", lengths)):
        if not isinstance(value, torch.Tensor):
            raise python_error(f"ctc_beam_search_decoder must take a torch.tensor as {name}, got {value!r}.")
    if probs.dim() != 3:
        raise python_error(
            f"ctc_beam_search_decoder: probs must have the dimensions time, batch and class, got {tuple(probs.shape)}."
        )
    times, batch, classes = probs.shape
    trace = active()
    if trace is None:
        return _outputs(times, batch, top_paths, torch.device("cpu"))
    if not 0 <= blank < classes:
        raise backend_error(f"ctc_beam_search_decoder: blank must be one of the {classes} classes, got {blank}.")
    if not 1 <= top_paths <= beam_width:
        raise backend_error(
            f"ctc_beam_search_decoder: top_paths must be between 1 and beam_width ({beam_width}), got {top_paths}."
        )
    result = functools.partial(_outputs, times, batch, top_paths, torch.device("meta"))
    return trace.record(_decode, probs, lengths, blank, beam_width, top_paths, result=result)


def _outputs(times: int, batch: int, paths: int, device: torch.device) -> List[torch.Tensor]:
    return [
        torch.zeros(batch, paths, device=device),
        torch.zeros(batch, paths, dtype=torch.int32, device=device),
        torch.zeros(batch, paths, times, dtype=torch.int32, device=device),
    ]


def _decode(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> List[torch.Tensor]:
    times, batch, _ = probs.shape
    likelihoods, counts, labels = _outputs(times, batch, top_paths, probs.device)
    likelihoods.fill_(_IMPOSSIBLE)
    labels.fill_(blank)
    for example, count in enumerate(lengths.tolist()):
        found = _beams(probs[: int(count), example].tolist(), blank, beam_width)
        for place, (sequence, likelihood) in enumerate(found[:top_paths]):
            likelihoods[example, place] = likelihood
            counts[example, place] = len(sequence)
            labels[example, place, : len(sequence)] = torch.tensor(sequence, dtype=torch.int32)
    return [likelihoods, counts, labels]


def _beams(steps: List[List[float]], blank: int, width: int) -> List[Tuple[_Labels, float]]:
    """Follow the likeliest label sequences through time.

    A sequence has two log-probabilities: of all paths to it that end in the blank, and of those that end in its last
    label. Only after a blank does the same label again make the sequence longer.
    """
    beams: Dict[_Labels, Tuple[float, float]] = {(): (0.0, _IMPOSSIBLE)}
    for step in steps:
        grown: Dict[_Labels, List[float]] = {}

        def add(labels: _Labels, kind: int, likelihood: float, grown: Dict[_Labels, List[float]] = grown) -> None:
            entry = grown.setdefault(labels, [_IMPOSSIBLE, _IMPOSSIBLE])
            entry[kind] = _log_add(entry[kind], likelihood)

        for labels, (after_blank, after_label) in beams.items():
            either = _log_add(after_blank, after_label)
            for symbol, likelihood in enumerate(step):
                if symbol == blank:
                    add(labels, 0, either + likelihood)
                elif labels and labels[-1] == symbol:
                    add(labels, 1, after_label + likelihood)
                    add((*labels, symbol), 1, after_blank + likelihood)
                else:
                    add((*labels, symbol), 1, either + likelihood)
        # Ties go to the sequence that comes first in the order of labels, so that results repeat.
        ranked = sorted(grown.items(), key=lambda item: (-_log_add(*item[1]), item[0]))
        beams = {labels: (entry[0], entry[1]) for labels, entry in ranked[:width]}
    found = [(labels, _log_add(*entry)) for labels, entry in beams.items()]
    return [each for each in found if each[1] > _IMPOSSIBLE]


def _log_add(one: float, other: float) -> float:
    larger, smaller = max(one, other), min(one, other)
    return larger if smaller == _IMPOSSIBLE else larger + math.log1p(math.exp(smaller - larger))


_decode.__name__ = "ctc_beam_search_decoder"
