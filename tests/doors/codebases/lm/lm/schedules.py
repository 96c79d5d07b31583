from torch.optim.lr_scheduler import LambdaLR
def get_scheduler(optimizer, warmup, total):
    def f(step):
        return step / max(1, warmup) if step < warmup else max(0.0, (total - step) / max(1, total - warmup))
    return LambdaLR(optimizer, f)
