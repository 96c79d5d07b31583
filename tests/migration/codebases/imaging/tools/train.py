"""Train by a configuration: `python tools/train.py configs/base.json`."""

import json
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "src"))

from imaging import Trainer, build_loaders, build_model
from imaging.utils.seed import set_seed


def main(path):
    with open(os.path.join(ROOT, path)) as file:
        config = json.load(file)
    set_seed(config["seed"])
    model = build_model(config["model"])
    train_loader, val_loader = build_loaders(config["data"])
    trainer = Trainer(model, config)
    losses = []
    for epoch in range(config["epochs"]):
        losses += trainer.train_epoch(train_loader)
        accuracy = trainer.evaluate(val_loader)
        trainer.save(epoch, accuracy)
    print("RESULT", json.dumps({"losses": losses, "accuracy": accuracy}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "configs/base.json")
