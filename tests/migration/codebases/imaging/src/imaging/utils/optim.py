import torch

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def build_optimizer(parameters, config):
    arguments = dict(config)
    return OPTIMIZERS[arguments.pop("name")](parameters, **arguments)
