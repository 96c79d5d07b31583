import torch
from torch import nn

from ..registry import BACKBONES, HEADS, SEGMENTORS


@SEGMENTORS.register_module
class EncoderDecoder(nn.Module):
    def __init__(self, backbone, decode_head):
        super().__init__()
        self.backbone = BACKBONES.build(backbone)
        self.decode_head = HEADS.build(decode_head)

    def forward(self, img, img_metas, return_loss=True, **kwargs):
        if return_loss:
            return self.forward_train(img, img_metas, **kwargs)
        return self.simple_test(img, img_metas)

    def forward_train(self, img, img_metas, gt_semantic_seg):
        return self.decode_head.losses(self.decode_head(self.backbone(img)), gt_semantic_seg)

    def simple_test(self, img, img_metas):
        return self.decode_head(self.backbone(img)).argmax(dim=1)

    def _parse_losses(self, losses):
        loss = sum(value for key, value in losses.items() if "loss" in key)
        log_vars = {key: value.item() for key, value in losses.items()}
        log_vars["loss"] = loss.item()
        return loss, log_vars

    def train_step(self, data):
        losses = self(**data)
        loss, log_vars = self._parse_losses(losses)
        return dict(loss=loss, log_vars=log_vars, num_samples=len(data["img"]))
