"""Choices of a GPU become host_device(); other uses of a string decide its form."""

from __future__ import annotations

import pytest

REWRITE = "device-strings"


def test_guarded_names_are_left(rewritten):
    """A name that is only reached with a GPU still says the right thing; only the question changes."""
    before = """\
import torch
use_cuda = torch.cuda.is_available()
if use_cuda:
    device = torch.device('cuda')
else:
    device = torch.device('cpu')
"""
    after = """\
import torch
from ignite_ipu import host_device
use_cuda = host_device().type == "cuda"
if use_cuda:
    device = torch.device('cuda')
else:
    device = torch.device('cpu')
"""
    assert rewritten(REWRITE, before) == after


def test_strings_stay_strings(rewritten):
    """A variable that is used as a string stays one."""
    before = """\
import torch
device = 'cuda' if torch.cuda.is_available() else 'cpu'
x.to(device)
if device.startswith('cuda'):
    pass
"""
    after = """\
import torch
from ignite_ipu import host_device
device = str(host_device())
x.to(device)
if device.startswith('cuda'):
    pass
"""
    assert rewritten(REWRITE, before) == after


def test_other_gpus_are_named(rewritten):
    """In a native run the second GPU is still the second."""
    before = """\
import torch
device = torch.device('cuda:1' if torch.cuda.is_available() else 'cpu')
x = torch.zeros(2, device='cuda')
"""
    after = """\
import torch
from ignite_ipu import host_device
device = host_device('cuda:1')
x = torch.zeros(2, device=host_device())
"""
    assert rewritten(REWRITE, before) == after


@pytest.mark.parametrize(
    ("gpu", "named"),
    [
        ('torch.device(f"cuda:{rank}")', 'f"cuda:{rank}"'),
        ('torch.device("cuda:%d" % rank)', '"cuda:%d" % rank'),
        ('torch.device("cuda:{}".format(rank))', '"cuda:{}".format(rank)'),
        ('torch.device("cuda", rank)', "rank"),
        ('torch.device(f"cuda:{rank}" if torch.cuda.is_available() else "cpu")', 'f"cuda:{rank}"'),
        ('torch.device("cuda", 0)', ""),
    ],
)
def test_gpus_with_a_number_that_is_computed(rewritten, gpu, named):
    """The number counts in native runs."""
    after = f"import torch\nfrom ignite_ipu import host_device\ndevice = host_device({named})\n"
    assert rewritten(REWRITE, f"import torch\ndevice = {gpu}\n") == after
    assert rewritten(REWRITE, after) == after


def test_questions_inside_expressions(rewritten):
    """Parentheses come where they are needed."""
    before = """\
import torch
a = torch.cuda.is_available() == flag
b = not torch.cuda.is_available() or c
"""
    after = """\
import torch
from ignite_ipu import host_device
a = (host_device().type == "cuda") == flag
b = not host_device().type == "cuda" or c
"""
    assert rewritten(REWRITE, before) == after


def test_other_choices_are_left(rewritten):
    """Three-way choices, and strings that are no devices."""
    before = """\
import torch
name = 'cuda kernels'
if device.type == 'cuda':
    pass
print('cuda')
"""
    assert rewritten(REWRITE, before) == before


def test_ignites_device(rewritten):
    """idist.device() asks for a GPU, too."""
    before = """\
import ignite.distributed as idist
device = idist.device()
"""
    after = """\
import ignite.distributed as idist
from ignite_ipu import host_device
device = host_device()
"""
    assert rewritten(REWRITE, before) == after


def test_defaults_of_parameters(rewritten):
    """A parameter that is only used as a device, one that is compared as text, and one that is for keywords only."""
    before = """\
import torch
def first(x, device="cuda"):
    return x.to(device)
def second(x, *, where="cuda", device: str = "cuda:0"):
    return x.to(where), device.startswith("cuda")
"""
    after = """\
import torch
from ignite_ipu import host_device
def first(x, device=host_device()):
    return x.to(device)
def second(x, *, where=host_device(), device: str = str(host_device())):
    return x.to(where), device.startswith("cuda")
"""
    assert rewritten(REWRITE, before) == after


def test_choices_by_other_questions(rewritten):
    """By an option or a count: the choice stays the script's, the name becomes the device that there is."""
    before = """\
import torch
device = torch.device("cuda:1" if args.gpus > 1 else "cpu")
model.to("cuda" if args.cuda else "cpu")
"""
    after = """\
import torch
from ignite_ipu import host_device
device = torch.device(host_device("cuda:1") if args.gpus > 1 else "cpu")
model.to(host_device() if args.cuda else "cpu")
"""
    assert rewritten(REWRITE, before) == after
