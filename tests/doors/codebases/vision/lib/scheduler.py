import math


class CosineLRScheduler:
    def __init__(self, optimizer, t_initial, warmup_t, warmup_lr=1e-3, lr_min=1e-4):
        self.optimizer, self.t_initial, self.warmup_t, self.warmup_lr, self.lr_min = optimizer, t_initial, warmup_t, warmup_lr, lr_min
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_values = [group["initial_lr"] for group in optimizer.param_groups]
        self._set([warmup_lr for _ in self.base_values])

    def _set(self, values):
        for group, value in zip(self.optimizer.param_groups, values):
            group["lr"] = value

    def step_update(self, t):
        if t < self.warmup_t:
            self._set([self.warmup_lr + t * (v - self.warmup_lr) / self.warmup_t for v in self.base_values])
        else:
            self._set(
                [self.lr_min + 0.5 * (v - self.lr_min) * (1 + math.cos(math.pi * t / self.t_initial)) for v in self.base_values]
            )
