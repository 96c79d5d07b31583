from . import backbones, heads, losses, point_head, segmentors
from ..registry import SEGMENTORS


def build_segmentor(cfg):
    return SEGMENTORS.build(cfg)
