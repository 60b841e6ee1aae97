"""Run a problem's code on another device than the one it names."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Redirect(TorchFunctionMode):
    """Sends what a problem puts on a device by name to another one, where its own choice cannot be had.

    Some problem files say `device="cuda"` or `.cuda()`. That is honoured where there is a GPU, and replaced without
    one and on the meta device.
    """

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self._device = torch.device(device)
        self._active = self._device.type == "meta" or not torch.cuda.is_available()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if self._active:
            if func is torch.Tensor.cuda:
                return args[0].to(self._device)
            if func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], (str, torch.device)):
                args = (args[0], self._device, *args[2:])
            if named.get("device") is not None:
                named["device"] = self._device
        return func(*args, **named)
