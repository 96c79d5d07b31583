import os

import torch


def save_checkpoint(state, path):
    torch.save(state, path)


def resume(path, model, optimizer):
    if not os.path.isfile(path):
        return 0
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"]
