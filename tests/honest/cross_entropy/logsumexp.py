"""Cross entropy as logsumexp minus the logit of the label."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:

        chosen = predictions.gather(1, targets[:, None]).squeeze(1)
        return (torch.logsumexp(predictions, dim=1) - chosen).mean()
