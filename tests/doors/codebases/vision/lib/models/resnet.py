import torch
import torch.nn as nn

from .registry import register_model

__all__ = ["ResNet"]


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1, downsample=None, norm_layer=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = norm_layer(planes)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(planes)
        self.downsample = downsample

    def zero_init_last_bn(self):
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        shortcut = x
        x = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        x += shortcut
        return self.act1(x)


class ResNet(nn.Module):
    def __init__(self, widths=(4, 6), num_classes=10, drop_rate=0.0):
        super().__init__()
        self.drop_rate = drop_rate
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        blocks, last = [], widths[0]
        for i, width in enumerate(widths):
            down = nn.Sequential(nn.Conv2d(last, width, 1, 2, bias=False), nn.BatchNorm2d(width)) if i else None
            blocks.append(BasicBlock(last, width, 2 if i else 1, down))
            last = width
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(last, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            if hasattr(m, "zero_init_last_bn"):
                m.zero_init_last_bn()

    def forward(self, x):
        x = self.layers(self.stem(x)).mean((2, 3))
        if self.drop_rate > 0.0:
            x = nn.functional.dropout(x, p=self.drop_rate, training=self.training)
        return self.fc(x)


@register_model
def resnet_tiny(**kwargs):
    return ResNet((4, 6), **kwargs)
