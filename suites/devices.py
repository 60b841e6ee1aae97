"""Which device a command judges on."""

import re

from .errors import InputError


def resolve_device(name: str) -> str:
    """`cpu` or `cuda:N` from what the user asked for; `auto` is the first GPU where there is one, else the CPU.

    Raises:
        InputError: another word, or a GPU that this machine does not have.
    """
    import torch  # here, so that a command's help does not wait for it

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda:0" if count else "cpu"
    if name == "cpu":
        return name
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise InputError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    index = int(match[1] or 0)
    if index >= count:
        found = f"sees {count} GPU{'' if count == 1 else 's'}" if count else "sees no GPU"
        raise InputError(
            f"device {name}: torch {torch.__version__} {found} here; use --device cpu, or see `kernelward doctor`"
        )
    return f"cuda:{index}"
