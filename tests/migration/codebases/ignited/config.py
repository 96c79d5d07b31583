from dataclasses import dataclass
from typing import Optional


@dataclass
class Config:
    seed: int = 7
    epochs: int = 3
    batch_size: int = 8
    lr: float = 0.1
    amp: bool = False
    patience: int = 5
    backend: Optional[str] = None
    output_dir: str = "logs"
