import argparse
import json
import os.path as osp
import sys

sys.path.insert(0, osp.join(osp.dirname(osp.abspath(__file__)), ".."))

from seg.config import Config
from seg.datasets import build_dataloader, build_dataset
from seg.engine import Runner
from seg.models import build_segmentor
from seg.utils import set_random_seed


def parse_args():
    parser = argparse.ArgumentParser(description="Train a segmentor")
    parser.add_argument("config", nargs="?", default=osp.join(osp.dirname(__file__), "..", "configs", "unet.json"))
    parser.add_argument("--gpu-ids", type=int, nargs="+", default=[0])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = Config.fromfile(args.config)
    set_random_seed(args.seed)
    model = build_segmentor(cfg.model)
    datasets = [build_dataset(cfg.data["train"]), build_dataset(cfg.data["val"])]
    loaders = [build_dataloader(ds, cfg.data["samples_per_gpu"], shuffle=i == 0) for i, ds in enumerate(datasets)]
    runner = Runner(model, cfg)
    runner.run(loaders, cfg.workflow, cfg.total_epochs)
    print("RESULT", json.dumps({"loss": runner.log["loss"], "miou": runner.log["miou"], "lr": runner.log["lr"]}))


if __name__ == "__main__":
    main()
