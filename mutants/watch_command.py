"""The command `kernelward calibrate --watch`."""

from collections.abc import Sequence
from pathlib import Path

from ..reward.bank import bank_path
from ..suites.errors import InputError
from .calibrate_command import folders_and_ids, seconds_of
from .watch import watch
from .watch_options import WatchOptions


def run_watch(
    problems: Sequence[str],
    budget: str | None,
    out: Path,
    device: str,
    workers: int | None,
    backends: Sequence[str] | None,
    substrates: Path | None,
    per_substrate: int | None,
    suites: Path | None,
    bank: Path | None,
) -> int:
    """Watch until it is interrupted; the arguments are those of `run_calibrate`.

    Args:
        budget: time for mutants in each pass; 60 s by default.
        suites: folder of the suites in use; `out`/suites by default. They are read, and never written.
        bank: of accepted kernels; by default the one that the reward has where nothing is configured.

    Returns:
        130 after an interrupt, 0 after SIGTERM.

    Raises:
        InputError: the options are wrong, or the folder cannot be used.
    """
    folders_and_ids(problems)  # what is wrong now will not become right by watching
    if bank is not None and bank.is_dir():
        raise InputError(f"--bank {bank}: that is a folder; name the file")
    options = WatchOptions(
        out=out,
        problems=tuple(problems),
        suites=suites,
        substrates=substrates,
        bank=bank or bank_path(),
        device=device,
        workers=workers,
        backends=tuple(backends or WatchOptions(out).backends),
        per_substrate=per_substrate,
        budget_s=WatchOptions(out).budget_s if budget is None else seconds_of(budget),
    )
    return watch(options)
