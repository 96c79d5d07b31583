class Registry:
    def __init__(self, name):
        self.name, self.module_dict = name, {}

    def register_module(self, cls):
        self.module_dict[cls.__name__] = cls
        return cls

    def build(self, cfg, **default):
        args = dict(cfg)
        return self.module_dict[args.pop("type")](**args, **default)


BACKBONES, HEADS, LOSSES, SEGMENTORS, DATASETS, HOOKS = map(
    Registry, ("backbone", "head", "loss", "segmentor", "dataset", "hook")
)
