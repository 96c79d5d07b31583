import torch.optim as optim


def add_weight_decay(model, weight_decay=1e-5, skip_list=()):
    decay, no_decay = [], []
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        if len(param.shape) == 1 or name.endswith(".bias") or name in skip_list:
            no_decay.append(param)
        else:
            decay.append(param)
    return [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": weight_decay}]


def create_optimizer(args, model, weight_decay=1e-3):
    parameters = add_weight_decay(model, weight_decay)
    opt_args = dict(lr=args.lr, weight_decay=0.0)
    opt_lower = args.opt.lower()
    if opt_lower in ("sgd", "nesterov"):
        optimizer = optim.SGD(parameters, momentum=0.9, nesterov=True, **opt_args)
    elif opt_lower == "adamw":
        optimizer = optim.AdamW(parameters, **opt_args)
    elif opt_lower == "radam":
        optimizer = optim.RAdam(parameters, **opt_args)
    else:
        raise ValueError(opt_lower)
    return optimizer
