import torch

from ..registry import HOOKS
from . import hooks
from .metrics import mean_iou


class Runner:
    def __init__(self, model, cfg):
        self.model = model.cuda()
        args = dict(cfg.optimizer)
        self.optimizer = getattr(torch.optim, args.pop("type"))(self.model.parameters(), **args)
        self.hooks = [
            HOOKS.build(dict(type="LrUpdaterHook", **cfg.lr_config)),
            HOOKS.build(dict(type="OptimizerHook", **cfg.optimizer_config)),
            HOOKS.build(dict(type="LoggerHook")),
        ]
        self.log = {"loss": [], "miou": [], "lr": []}
        self.iter = 0

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)

    def train(self, loader):
        self.model.train()
        for data in loader:
            data = {k: v.cuda(non_blocking=True) if torch.is_tensor(v) else v for k, v in data.items()}
            self.call_hook("before_train_iter")
            self.outputs = self.model.train_step(data)
            self.call_hook("after_train_iter")
            self.iter += 1

    @torch.no_grad()
    def val(self, loader):
        self.model.eval()
        results, labels = [], []
        for data in loader:
            results.append(self.model(data["img"].cuda(), data["img_metas"], return_loss=False).cpu())
            labels.append(data["gt_semantic_seg"])
        self.log["miou"].append(mean_iou(torch.cat(results), torch.cat(labels), 3, 255))

    def run(self, loaders, workflow, max_epochs):
        self.max_iters = max_epochs * len(loaders[0])
        self.call_hook("before_run")
        for _ in range(max_epochs):
            for (mode, epochs), loader in zip(workflow, loaders):
                for _ in range(epochs):
                    getattr(self, mode)(loader)
