import argparse
import json

import torch

from . import __version__
from .data import batches
from .loop import Loop
from .nets import build


def main(argv=None):
    parser = argparse.ArgumentParser("digits", description=__version__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    assert torch.cuda.is_available(), "this takes a GPU"
    model = build(args.width).cuda()
    loop = Loop(model, args.optimizer)
    losses = [loop.epoch(batches(seed)) for seed in range(args.epochs)]
    print("RESULT", json.dumps({"losses": losses, "accuracy": loop.accuracy(batches(9))}))
    return 0
