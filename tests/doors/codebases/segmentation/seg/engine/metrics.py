import torch


def mean_iou(pred, label, num_classes, ignore_index):
    mask = label != ignore_index
    pred, label = pred[mask], label[mask]
    intersect = torch.histc(pred[pred == label].float(), bins=num_classes, min=0, max=num_classes - 1)
    area = torch.histc(pred.float(), num_classes, 0, num_classes - 1) + torch.histc(label.float(), num_classes, 0, num_classes - 1)
    return (intersect / (area - intersect).clamp(min=1)).mean().item()
