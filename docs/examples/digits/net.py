"""The model of the example: 8×8 grey images of digits, 64 numbers in, 10 scores out."""

import torch


class Net(torch.nn.Module):
    """A plain module; it knows nothing of serving."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 64) to scores (n, 10)."""
        scores: torch.Tensor = self.layers(pixels)
        return scores
