import json


class Config(dict):
    @classmethod
    def fromfile(cls, path):
        with open(path) as f:
            return cls(json.load(f))

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)
