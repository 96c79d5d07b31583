#!/usr/bin/env python3
import argparse
import json
from collections import OrderedDict
from contextlib import suppress

import torch
import torch.nn as nn

from lib.data import Mixup, create_loader
from lib.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from lib.models import create_model
from lib.optim import create_optimizer
from lib.scheduler import CosineLRScheduler
from lib.utils import AverageMeter, CheckpointSaver, ModelEmaV2, NativeScaler, accuracy, random_seed

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="resnet_tiny")
parser.add_argument("--opt", default="sgd")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--warmup-updates", type=int, default=2)
parser.add_argument("--mixup", type=float, default=0.2)
parser.add_argument("--clip-grad", type=float, default=None)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--model-ema-decay", type=float, default=0.9)
parser.add_argument("--smoothing", type=float, default=0.1)


def main():
    args = parser.parse_args()
    random_seed(42, 0)
    args.device = "cuda:0"
    torch.cuda.set_device(args.device)
    model = create_model(args.model, num_classes=3)
    model.cuda()
    model = model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer(args, model)
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        amp_autocast, loss_scaler = torch.cuda.amp.autocast, NativeScaler()
    model_ema = ModelEmaV2(model, decay=args.model_ema_decay)
    loader_train, loader_eval = create_loader(32, 8, True), create_loader(16, 8, False)
    mixup_fn = Mixup(args.mixup, args.smoothing, 3) if args.mixup > 0 else None
    train_loss_fn = (SoftTargetCrossEntropy() if mixup_fn else LabelSmoothingCrossEntropy(args.smoothing)).cuda()
    validate_loss_fn = nn.CrossEntropyLoss().cuda()
    scheduler = CosineLRScheduler(optimizer, args.epochs * len(loader_train), args.warmup_updates)
    saver = CheckpointSaver(model, optimizer, model_ema)
    metrics = []
    for epoch in range(args.epochs):
        train_metrics = train_one_epoch(
            epoch, model, loader_train, optimizer, train_loss_fn, args, scheduler, mixup_fn, amp_autocast, loss_scaler, model_ema
        )
        eval_metrics = validate(model, loader_eval, validate_loss_fn, args, amp_autocast)
        ema_metrics = validate(model_ema.module, loader_eval, validate_loss_fn, args, amp_autocast)
        saver.save(epoch, eval_metrics["top1"])
        metrics += [*train_metrics.values(), *eval_metrics.values(), *ema_metrics.values()]
    print("RESULT", json.dumps({"metrics": metrics, "best": saver.best, "lr": optimizer.param_groups[0]["lr"]}))


def train_one_epoch(
    epoch, model, loader, optimizer, loss_fn, args, lr_scheduler, mixup_fn, amp_autocast, loss_scaler, model_ema
):
    second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
    losses_m = AverageMeter()
    model.train()
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.cuda(), target.cuda()
        if mixup_fn is not None:
            input, target = mixup_fn(input, target)
        input = input.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        losses_m.update(loss.item(), input.size(0))
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters(), create_graph=second_order)
        else:
            loss.backward(create_graph=second_order)
            if args.clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            optimizer.step()
        model_ema.update(model)
        torch.cuda.synchronize()
        num_updates += 1
        lr_scheduler.step_update(num_updates)
    return OrderedDict([("loss", losses_m.avg), ("lr", optimizer.param_groups[0]["lr"])])


def validate(model, loader, loss_fn, args, amp_autocast):
    losses_m, top1_m = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for input, target in loader:
            input, target = input.cuda(), target.cuda()
            with amp_autocast():
                output = model(input)
            loss = loss_fn(output, target)
            (acc1,) = accuracy(output, target, topk=(1,))
            torch.cuda.synchronize()
            losses_m.update(loss.data.item(), input.size(0))
            top1_m.update(acc1.item(), output.size(0))
    return OrderedDict([("loss", losses_m.avg), ("top1", top1_m.avg)])


if __name__ == "__main__":
    main()
