from torch.nn.utils import clip_grad

from ..registry import HOOKS


class Hook:
    def before_run(self, runner):
        pass

    def before_train_iter(self, runner):
        pass

    def after_train_iter(self, runner):
        pass


@HOOKS.register_module
class LrUpdaterHook(Hook):
    def __init__(self, policy, power, min_lr):
        self.power, self.min_lr = power, min_lr

    def before_run(self, runner):
        self.base = [group.setdefault("initial_lr", group["lr"]) for group in runner.optimizer.param_groups]

    def before_train_iter(self, runner):
        coeff = (1 - runner.iter / runner.max_iters) ** self.power
        for group, base in zip(runner.optimizer.param_groups, self.base):
            group["lr"] = (base - self.min_lr) * coeff + self.min_lr


@HOOKS.register_module
class OptimizerHook(Hook):
    def __init__(self, grad_clip=None):
        self.grad_clip = grad_clip

    def after_train_iter(self, runner):
        runner.optimizer.zero_grad()
        runner.outputs["loss"].backward()
        if self.grad_clip is not None:
            params = [p for p in runner.model.parameters() if p.requires_grad and p.grad is not None]
            clip_grad.clip_grad_norm_(params, **self.grad_clip)
        runner.optimizer.step()


@HOOKS.register_module
class LoggerHook(Hook):
    def after_train_iter(self, runner):
        runner.log["loss"].append(runner.outputs["log_vars"]["loss"])
        runner.log["lr"].append(runner.optimizer.param_groups[0]["lr"])
