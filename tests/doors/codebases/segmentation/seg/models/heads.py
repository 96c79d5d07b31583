import torch.nn.functional as F
from torch import nn

from ..registry import HEADS, LOSSES


@HEADS.register_module
class FCNHead(nn.Module):
    def __init__(self, channels, num_classes, losses):
        super().__init__()
        self.num_classes = num_classes
        self.conv_seg = nn.Conv2d(channels, num_classes, 1)
        self.dropout = nn.Dropout2d(0.0)
        self.loss_decode = nn.ModuleList(LOSSES.build(each) for each in losses)

    def forward(self, feats):
        return self.conv_seg(self.dropout(feats[0]))

    def losses(self, logit, label):
        logit = F.interpolate(logit, size=label.shape[-2:], mode="bilinear", align_corners=False)
        out = {f"loss_{type(fn).__name__}": fn(logit, label) for fn in self.loss_decode}
        valid = label != 255
        out["acc_seg"] = ((logit.argmax(1) == label) & valid).float().sum() / valid.float().sum()
        return out
