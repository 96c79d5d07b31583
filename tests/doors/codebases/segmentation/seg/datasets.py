import torch
from torch.utils.data import DataLoader, Dataset

from .registry import DATASETS


@DATASETS.register_module
class Shapes(Dataset):
    def __init__(self, count, seed, size=8):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            mask = torch.zeros(size, size, dtype=torch.long)
            r, c = torch.randint(0, size - 4, (2,), generator=g).tolist()
            kind = int(torch.randint(1, 3, (1,), generator=g))
            mask[r : r + 4, c : c + 4] = kind
            mask[0, :] = 255
            img = mask.clamp(max=2).float().expand(2, size, size) * 0.5 + torch.randn(2, size, size, generator=g) * 0.2
            self.items.append(dict(img=img, gt_semantic_seg=mask, img_metas=dict(shape=(size, size))))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def build_dataset(cfg):
    return DATASETS.build(cfg)


def build_dataloader(dataset, samples_per_gpu, shuffle):
    return DataLoader(dataset, samples_per_gpu, shuffle=shuffle, drop_last=shuffle, pin_memory=True)
