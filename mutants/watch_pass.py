"""One pass of the watcher: `python -m kernelward.mutants.watch_pass OPTIONS`, in a fresh process, so that it works with
the operators, protocols and versions that are installed now.

It publishes what is known before it measures, while it measures, and at its end. SIGTERM ends it early: what is
measured is kept and published. It ends with the process that started it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..reward.bank import BankError, KernelBank
from ..reward.lease import DeviceLease
from ..suites.errors import InputError
from ..suites.lifetime import end_with_process
from .watch_options import WatchOptions
from .watch_priority import EAGER, EAGER_S, PATIENCE, UNAWAITED_SHARE, Pace, give_way

PUBLISH_S = 20.0  # between two publications of one pass
PUBLISH_RESTING_S = 60.0  # the same where nobody waits for it: each costs a third of a second of a core
WRONG_INPUT, NO_RESULT = 2, 3


def run_pass(
    options: WatchOptions,
    number: int,
    changed: Iterable[str],
    stopped: list[Callable[[], None]],
    told: Callable[[], Any] = int,
    pace: Pace | None = None,
) -> dict:
    """Measure what is stale, for as long as the budget lasts, and publish.

    Args:
        number: of the pass.
        changed: the kinds that were noticed.
        stopped: gets a function that ends the pass early.
        told: called when what is known has been published, before and while mutants are measured.
        pace: of the work on a CPU; None = all of the time.

    Returns:
        What was published, with `faults`: infrastructure faults, which leave a mutant for the next pass.

    Raises:
        InputError: problems, substrates or options are wrong.
        MatrixError, BankError, OSError: something cannot be written or read now.
    """
    from ..suites.devices import resolve_device
    from .calibrate import Calibrator
    from .calibrate_command import folders_and_ids
    from .calibrate_plan import find_targets
    from .calibrate_suites import write_suites
    from .calibrate_values import CalibrateOptions
    from .matrix import Matrix

    device = resolve_device(options.device)
    folders, ids = folders_and_ids(options.problems)
    targets = find_targets(folders, ids, options.substrates)
    _none_broken([t.problem.id for t in targets], folders, options.out)
    bank = None if options.bank is None or not options.bank.is_file() else KernelBank(options.bank)
    if bank is not None:
        from .banked import with_guests

        targets = with_guests(targets, bank)
    every = PUBLISH_S if pace is None else PUBLISH_RESTING_S
    publisher = _Publisher(options, number, tuple(changed), bank, told, every)
    targets = publisher.use_suites(targets, device)
    calibration = CalibrateOptions(
        targets=tuple(targets),
        out=options.out,
        device=device,
        workers=options.workers or (8 if device.startswith("cuda") else 2),
        budget_s=options.budget_s,
        backends=options.backends,
        per_substrate=options.per_substrate,
        renew=True,
    )
    free = DeviceLease(device).idle if device.startswith("cuda") else None
    with Matrix(calibration.matrix_path) as matrix:
        host = None if bank is None else publisher.host(bank)
        calibrator = Calibrator(calibration, matrix, publisher.progress, host, free, pace, PATIENCE)
        publisher.attach(matrix, calibrator)
        stopped += [calibrator.stop, *([] if pace is None else [pace.end])]
        tally = calibrator.run()
        result = publisher.final()
        if not tally.waiting and (tally.evaluations or not (options.out / "proposed").is_dir()):
            own = [t.problem.hash for t in targets if t.substrates]
            write_suites(matrix, options.out / "proposed", calibrator.device_class, own)
        _propose(options, device, matrix, targets, set(tally.quarantined), bank, gains=not tally.waiting)
    return {**result, "faults": tally.faults}


def _propose(
    options: WatchOptions,
    device: str,
    matrix: Any,
    targets: list,
    quarantined: set[str],
    bank: KernelBank | None,
    gains: bool,
) -> None:
    """Write proposals of better suites to OUT/proposals; what was published does not wait for them."""
    from .propose import Means, propose_fixes, propose_gains

    means = Means(
        folder=options.out / "proposals",
        suites=options.suites or options.out / "suites",
        device=device,
        substrates={t.problem.hash: [s for s in t.substrates if s.name not in quarantined] for t in targets},
    )
    if bank is not None:
        propose_fixes(bank, means)
    if gains:
        device_class = device.partition(":")[0]
        propose_gains(matrix, options.out / "proposed", device_class, [t.problem for t in targets], means)


def _none_broken(found: list[str], folders: list[Path], out: Path) -> None:
    """A problem that was measured before and cannot be read now is half written: nothing is concluded from that."""
    from ..suites.folders import problem_files
    from ..suites.problem import find_problem
    from .watch_publish import read_coverage

    for name in read_coverage(out).get("suites", {}):
        if name not in found:
            for folder in folders:
                file = problem_files(folder).get(name)
                if file is not None:
                    find_problem(str(file))


class _Publisher:
    def __init__(
        self,
        options: WatchOptions,
        number: int,
        changed: tuple[str, ...],
        bank: KernelBank | None,
        told: Callable[[], Any],
        every: float,
    ) -> None:
        self.options = options
        self.number = number
        self.changed = changed
        self.bank = bank
        self._told = told
        self._every = every
        self._host: Any = None
        self._published = 0.0

    def use_suites(self, targets: list, device: str) -> list:
        """The targets, asked what their suites in use ask as well."""
        from .watch_suites import suites_in_use

        folder = self.options.suites or self.options.out / "suites"
        problems = [t.problem for t in targets]
        self.suites, self.notes = suites_in_use(problems, folder, self.options.out / "kept", device)
        self.hashes = [p.hash for p in problems]
        self.names = {p.hash: p.id for p in problems}
        asked = {digest: used.entries for digest, used in self.suites.items()}
        return [replace(t, extra=asked.get(t.problem.hash, ())) for t in targets]

    def host(self, bank: KernelBank) -> Any:
        from .banked import BankHost

        self._host = BankHost(bank)
        return self._host

    def attach(self, matrix: Any, calibrator: Any) -> None:
        self.matrix = matrix
        self.calibrator = calibrator

    def progress(self, phase: str, done: int, total: int) -> None:
        """Of the calibration: publishes when the mutants begin, and now and then while they are measured."""
        from .calibrate_mutants import COSTLY_PHASE

        if phase in ("mutants", COSTLY_PHASE) and (done == 0 or time.monotonic() - self._published > self._every):
            self._publish(total - done)
            self._told()

    def final(self) -> dict[str, Any]:
        """The publication at the end of the pass, which history keeps."""
        from .watch_publish import append_history

        found = self._publish(self.calibrator.tally.waiting + len(self.calibrator.tally.faults))
        append_history(self.options.out, found)
        return found

    def _publish(self, stale: int) -> dict[str, Any]:
        from .watch_publish import count, publish, refused_entries

        tally, device_class = self.calibrator.tally, self.calibrator.device_class
        own = count(self.matrix, device_class, self.suites, self.hashes, "substrate")
        guests = count(self.matrix, device_class, self.suites, self.hashes, "bank")
        notes = [*self.notes, *refused_entries(self.matrix, self.suites, device_class)]
        notes += [f"quarantined: {name}: {why}" for name, why in tally.quarantined.items()]
        found = {
            "time": round(time.time(), 3),
            "step": self.options.step(),
            "pass": self.number,
            "device_class": device_class,
            "suites": {
                self.names[digest]: {
                    "hash": used.suite.hash,
                    "origin": used.origin,
                    "entries": [item.entry.id for item in used.suite.entries],
                }
                for digest, used in self.suites.items()
            },
            "overall": None if own is None else own.overall,
            "families": {} if own is None else own.families,
            "problems": {} if own is None else own.problems,
            "official": {} if own is None else own.official,
            "bank": None
            if self.bank is None
            else {
                "overall": None if guests is None else guests.overall,
                "families": {} if guests is None else guests.families,
                "kernels": self.bank.counts(),
                "examined": self._host.examined,
                "waiting": self._unverified(self.bank),
                "false_accepts": self._host.false_accepts,
            },
            "stale": {"mutants": stale, "of": tally.current, "share": stale / tally.current if tally.current else 0.0},
            "evaluations": tally.evaluations,
            "evaluations_total": self.matrix.query("SELECT count(*) FROM cells")[0][0],  # a killed pass's as well
            "changed": list(self.changed),
            "warnings": notes,
        }
        publish(self.options.out, found)
        self._published = time.monotonic()
        return found

    def _unverified(self, bank: KernelBank) -> int:
        """Accepted kernels that can be verified here and were not yet."""
        return sum(k.backend in (*self.options.backends, "torch") for k in bank.kernels("new"))


def _on_gpu(options: WatchOptions) -> bool:
    """There a pass waits for the reward's lease instead, and what it shares with a trainer is not the cores."""
    from ..suites.devices import resolve_device

    return resolve_device(options.device).startswith("cuda")


def with_rests(options: WatchOptions) -> tuple[WatchOptions, Pace]:
    """A pass that nobody waits for: as many seconds of work, with rests between them.

    To start a pass costs a dozen seconds of a core (torch and SciPy are imported, in three processes), which no rest
    makes up for: short passes at a sixth of the time cost a reward on two cores 7 %, most of it that.
    """
    return replace(options, budget_s=options.budget_s / UNAWAITED_SHARE), Pace(UNAWAITED_SHARE)


def _on_own_device(options: WatchOptions) -> WatchOptions:
    """Kernels are measured on the first GPU that a process sees: let that be the one that was asked for."""
    kind, _, index = options.device.partition(":")
    if kind != "cuda" or int(index or 0) == 0:
        return options
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(index)] if int(index) < len(visible) else index
    return replace(options, device="cuda:0")


def main(arguments: list[str] | None = None) -> int:
    """Entry point: a `Supervisor`'s request, as JSON."""
    request = json.loads((arguments or sys.argv[1:])[0])
    end_with_process(request["parent"])
    stopped: list[Callable[[], None]] = []
    signal.signal(signal.SIGTERM, lambda *_: [stop() for stop in stopped] if stopped else os._exit(NO_RESULT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the watcher decides
    options = _on_own_device(WatchOptions.from_json(request["options"]))
    give_way(min(EAGER, options.nice) if request["eager"] else options.nice)
    patience = threading.Timer(EAGER_S, give_way, [options.nice])
    patience.daemon = True
    patience.start()
    from .matrix_schema import MatrixError

    try:
        pace = None
        if options.nice and not request["awaited"] and not _on_gpu(options):
            options, pace = with_rests(options)
        result = run_pass(options, request["pass"], request["changed"], stopped, lambda: give_way(options.nice), pace)
    except InputError as error:
        print(error, file=sys.stderr)
        return WRONG_INPUT
    except OSError as error:
        print(f"{error.filename or ''}: {error.strerror or error}; it is tried again later", file=sys.stderr)
        return NO_RESULT
    except (MatrixError, BankError) as error:
        print(f"{error}; it is tried again later", file=sys.stderr)
        return NO_RESULT
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
