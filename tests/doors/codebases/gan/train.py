"""Train a GAN: `python train.py --niter 2`."""
import argparse
import json
import random

import numpy as np
import torch

from engine import GANTrainer
from models import build_models
from utils.data import rings

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=3)
parser.add_argument("--batchSize", type=int, default=16)
parser.add_argument("--nz", type=int, default=5)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--manualSeed", type=int, default=3)
opt = parser.parse_args()

assert torch.cuda.is_available(), "this code needs a GPU"
random.seed(opt.manualSeed)
np.random.seed(opt.manualSeed)
torch.manual_seed(opt.manualSeed)
torch.cuda.manual_seed_all(opt.manualSeed)
torch.backends.cudnn.benchmark = True

if __name__ == "__main__":
    print("GPU:", torch.cuda.get_device_properties(0).name, torch.cuda.device_count())
    netG, netD = build_models(opt, device="cuda")
    trainer = GANTrainer(netG, netD, opt)
    loader = torch.utils.data.DataLoader(rings(64), batch_size=opt.batchSize, shuffle=True, pin_memory=True)
    history = []
    for epoch in range(opt.niter):
        for i, (data, labels) in enumerate(loader):
            errD, errG, D_x, D_G_z = trainer.step(data.cuda(non_blocking=True), labels.cuda(non_blocking=True))
            if i % 2 == 0:
                history += [errD, errG, D_x, D_G_z]
        trainer.end_epoch()
    print("RESULT", json.dumps({"history": history, "samples": trainer.sample().mean(0).tolist(), "lr": trainer.lr()}))
