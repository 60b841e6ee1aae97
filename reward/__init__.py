"""Judging one candidate: sandbox, protocols, verdicts, shaping, and the reward function for trainers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .function import KernelReward

    reward_fn: KernelReward

__all__ = ["KernelReward", "reward_fn"]


def __getattr__(name: str) -> Any:
    """Load on first use, so that tools that only read verdicts stay light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .function import KernelReward

    # `reward_fn` is one object for the whole process: its judge and its cache are shared by all users.
    value: Any = KernelReward if name == "KernelReward" else KernelReward()
    globals()[name] = value
    return value
