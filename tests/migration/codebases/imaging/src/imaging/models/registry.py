MODELS = {}


def register(name):
    def decorate(cls):
        MODELS[name] = cls
        return cls

    return decorate
