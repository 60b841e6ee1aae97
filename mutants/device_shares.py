"""Entries that need gigabytes of a GPU, in the gate and in kernels' rows: as many at a time as its memory holds."""

import torch

from ..reward.lease import DeviceShares

LARGE = 512 << 20  # bytes of inputs, outputs and parameters from which an entry waits for its shares
NEEDED = 20  # so many times as many are in use at once: copies, the float64 run, eighty bytes an element to count terms
#: Of the device. The rest is for truths that are kept (`evaluate.TRUTH_SHARE`), small entries, and contexts: half a GiB
#: each, and a dozen lanes have three.
_SHARED = 0.5


def is_large(device: torch.device, size: int) -> bool:
    """Whether an entry of so many bytes waits for its shares of a device."""
    return device.type == "cuda" and size >= LARGE


def shares(device: torch.device) -> DeviceShares:
    """Those of a GPU."""
    _, total = torch.cuda.mem_get_info(device)
    return DeviceShares(str(device), int(_SHARED * total))
