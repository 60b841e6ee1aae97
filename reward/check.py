"""The body of `kernelward check`: judge one file, print the verdict for people or as JSON."""

import json
import math
import os
import sys
from pathlib import Path

from ..suites.devices import resolve_device
from ..suites.errors import InputError
from .client import JudgeClient
from .task import JudgeConfig, Task
from .verdict import Outcome, Verdict

MAX_FILE = 64 << 20  # bytes that are read at all; what the screen accepts is far smaller


def run_check(
    candidate: Path,
    *,
    problem: str,
    problems: Path | None = None,
    protocol: str = "kernelward",
    device: str = "auto",
    suite: Path | None = None,
    entry: str | None = None,
    seed: int | None = None,
    all_entries: bool = False,
    speed: bool = False,
    as_json: bool = False,
) -> int:
    """Judge a candidate and print the verdict.

    Args:
        candidate: a file, or `-` for standard input.
        problem, problems: as `find_problem` takes them.
        protocol: a name, or the path of a YAML file.
        device: `auto`, `cpu` or `cuda:N`.
        suite: a suite file in place of the problem's own.
        entry, seed: replay one entry of an earlier verdict.
        all_entries: do not stop at the first failure.
        speed: measure the speed-up of a correct candidate.
        as_json: one JSON object instead of text.

    Returns:
        The exit code: 0 correct, 1 not correct, 3 no verdict.

    Raises:
        InputError: a file, the problem, the protocol, the suite or the entry is wrong.
    """
    data = _read(candidate)
    with JudgeClient(JudgeConfig(device=resolve_device(device), workers=1)) as client:
        client.start()  # it imports torch while this process does
        from ..suites.problem import find_problem
        from ..suites.protocol import load_protocol
        from ..suites.suite import load_suite

        task = Task(
            candidate=data.decode("utf-8-sig", "surrogateescape"),  # the screen names what is not UTF-8
            problem=find_problem(problem, problems),
            protocol=protocol,
            suite=None if suite is None else load_suite(suite),
            run_key=os.urandom(32),
            all_entries=all_entries,
            only_entry=entry,
            seed=seed,
            speed=speed,
        )
        load_protocol(protocol)  # the user's error is then raised at once
        verdict = client.judge(task)
    print(json.dumps(verdict.to_json(), indent=2) if as_json else describe(verdict, str(candidate)))
    return verdict.exit_code


def _read(candidate: Path) -> bytes:
    try:
        if str(candidate) == "-":
            return sys.stdin.buffer.read(MAX_FILE)
        with candidate.open("rb") as file:
            return file.read(MAX_FILE)
    except OSError as error:
        raise InputError(f"cannot read candidate {candidate}: {error.strerror or error}; check the path") from error


def describe(verdict: Verdict, name: str) -> str:
    """The verdict for people, a few lines."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    lines = [f"{name}: {verdict.verdict.value}{reason}"]
    if verdict.message:
        lines.append(f"  {verdict.message}")
    lines.append(f"  problem {verdict.problem}, protocol {verdict.protocol}, {verdict.backend or 'no'} backend")
    if verdict.engine:
        lines[-1] += f" on {verdict.engine}"
    if verdict.entry and verdict.err is not None:
        where = "closest" if verdict.verdict is Outcome.CORRECT else "decided by"
        held = f" of {verdict.tolerance:.3g}" if verdict.tolerance else ""
        err = "inf" if math.isinf(verdict.err) else f"{verdict.err:.3g}"
        lines.append(f"  {where} entry {verdict.entry}: error {err}{held}")
    if verdict.entry and verdict.seed is not None:
        lines.append(f"  replay with --entry {verdict.entry} --seed {verdict.seed}")
    if verdict.speedup is not None:
        lines.append(f"  {verdict.speedup:.2f} times as fast as the reference")
    lines.extend(f"  note: {note}" for note in verdict.notes)
    lines.append(f"  {len(verdict.entries)} entries in {verdict.seconds:.2f} s")
    return "\n".join(lines)
