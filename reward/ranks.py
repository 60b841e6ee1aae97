"""What a process must agree on with the other ranks of its run: the run key and the device."""

import logging
import os
import secrets
import sys
from typing import Any

from ..suites import devices
from ..suites.errors import InputError
from .config import RUN_KEY_VARIABLE

_log = logging.getLogger(__name__)
_STORE_KEY = "kernelward/run_key"


def shared_run_key(configured: str | None) -> bytes:
    """The secret that every rank of a run draws its inputs from.

    In order: the configured text, the environment variable KERNELWARD_RUN_KEY, a random key that the ranks agree on
    through the process group's key-value store (no collective operation: a rank that never calls cannot block the
    others), a random key.
    """
    text = configured or os.environ.get(RUN_KEY_VARIABLE)
    if text:
        return text.encode()
    key = secrets.token_hex(32)
    store = _process_group_store()
    if store is not None:
        return bytes(store.compare_set(_STORE_KEY, "", key))
    if _world_size() > 1:
        _log.warning(
            "several ranks but no process group yet: each rank draws its own inputs, so completions of one group may "
            "be judged on different ones; set %s to the same secret on every rank",
            RUN_KEY_VARIABLE,
        )
    return key.encode()


def agreed(name: str, value: str) -> str:
    """One value for all ranks: that of the first rank which asks under this name. No collective operation."""
    store = _process_group_store()
    return value if store is None else bytes(store.compare_set(f"kernelward/{name}", "", value)).decode()


def from_rank_zero(name: str, value: str) -> str:
    """One value for all ranks: rank zero's. Every rank has to ask; the others wait for it."""
    store = _process_group_store()
    if store is None:
        return value
    import torch.distributed as dist

    if dist.get_rank() == 0:
        store.set(f"kernelward/{name}", value)
        return value
    return bytes(store.get(f"kernelward/{name}")).decode()


def several_ranks() -> bool:
    """Whether this process is one of several ranks."""
    return _process_group_store() is not None or _world_size() > 1


def resolve_device(configured: str) -> str:
    """`cpu` or `cuda:N`; `auto` is the rank's own GPU where this process sees one.

    Raises:
        InputError: a device of another kind, or a GPU that is not there.
    """
    device = devices.resolve_device(configured)
    if configured != "auto" or device == "cpu":
        return device
    import torch

    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def device_here(device: str, visible_gpus: str | None) -> str:
    """A device that the trainer's process named, for a process that may see no GPU at all.

    TRL's asynchronous trainer runs rewards with CUDA_VISIBLE_DEVICES="". There `cuda:N` can only count the machine's
    GPUs, so the trainer's N-th visible one has to be named by its number.

    Args:
        device: `cpu` or `cuda:N`, N counting what the trainer sees.
        visible_gpus: CUDA_VISIBLE_DEVICES in the trainer's process, None where it was not set.

    Raises:
        InputError: the trainer's variable holds names instead of numbers, or fewer GPUs than N.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if device == "cpu" or not hidden or not visible_gpus:
        return device
    visible = [v.strip() for v in visible_gpus.split(",")]
    index = int(device.partition(":")[2] or 0)
    if index >= len(visible) or not visible[index].isdigit():
        raise InputError(
            f"{device} cannot be found from a process that sees no GPU: the trainer's CUDA_VISIBLE_DEVICES is "
            f"{visible_gpus!r}; list the GPUs there by number"
        )
    return f"cuda:{visible[index]}"


def _world_size() -> int:
    value = os.environ.get("WORLD_SIZE", "1")
    return int(value) if value.isdigit() else 1


def _process_group_store() -> Any:
    """The default process group's key-value store; None without a group of several ranks."""
    if "torch" not in sys.modules:
        return None
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None
    return dist.distributed_c10d._get_default_store()
