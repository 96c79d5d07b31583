import sys

_model_entrypoints = {}


def register_model(fn):
    mod = sys.modules[fn.__module__]
    if hasattr(mod, "__all__"):
        mod.__all__.append(fn.__name__)
    else:
        mod.__all__ = [fn.__name__]
    _model_entrypoints[fn.__name__] = fn
    return fn


def create_model(model_name, **kwargs):
    return _model_entrypoints[model_name](**kwargs)
