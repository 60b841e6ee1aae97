"""`kernelward suite promote`: list proposals, or put one into the folder of suites that the reward reads."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..reward.bank import BankError, KernelBank, bank_path
from ..reward.config import RewardConfig
from ..reward.promoted import read_suite
from ..suites.cli import DeviceOption, JsonOption, ProblemsOption, suite_app
from ..suites.devices import resolve_device
from ..suites.errors import InputError
from ..suites.folders import abbreviates
from ..suites.hashing import short
from .promote import Proposal, objection, promote, read_proposals

PROPOSALS = Path("calibration/proposals")


@suite_app.command("promote")
def promote_suite(
    which: Annotated[
        str | None,
        typer.Argument(metavar="PROPOSAL|ID", help="A proposal's file or id, or a problem's id; none: list them."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder of suites in use; `suites` of the reward's configuration.")
    ] = None,
    proposals: Annotated[Path, typer.Option("--proposals", help="Folder of proposals.")] = PROPOSALS,
    bank: Annotated[Path | None, typer.Option("--bank", help="Accepted kernels; the reward's bank by default.")] = None,
    problems: ProblemsOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Put a proposed suite into use. A problem with false accepts and no proposal gets one first.

    Kernels known to be correct are judged by the suite once more. Exit code 1 where it may not be promoted.
    """
    options = PromoteOptions(into, proposals, bank, problems, device, as_json)
    raise typer.Exit(run_promote(which, options))


@dataclass(frozen=True, slots=True)
class PromoteOptions:
    """The command's options, under their names."""

    into: Path | None
    proposals: Path
    bank: Path | None = None
    problems: Path | None = None
    device: str = "auto"
    as_json: bool = False


def run_promote(which: str | None, options: PromoteOptions) -> int:
    """Body of the command; its exit code.

    Raises:
        InputError: there is no such proposal, or no folder to promote into.
    """
    if which is None:
        return _list(options)
    configured = RewardConfig.load()
    into = options.into or (Path(configured.suites) if configured.suites else None)
    if into is None:
        raise InputError(
            "which folder does the reward read its suites from? Name it with --into, or `suites` in the file that "
            "KERNELWARD_CONFIG names"
        )
    proposal = _find(which, options, into)
    if proposal is None:
        proposal = _made_now(which, options, into, configured)
    else:
        proposal = _checked(proposal, options, into, configured)
    why = proposal.validity.objection
    place = None
    if not why:
        place = promote(proposal, into)
    if options.as_json:
        print(json.dumps(_json(proposal) | {"promoted": place is not None, "file": place and str(place)}))
    else:
        _print(proposal, Console())
        print(f"not promoted: {why}" if place is None else f"promoted: {place}; the reward takes it up with new inputs")
    return 0 if place is not None else 1


def _find(which: str, options: PromoteOptions, into: Path) -> Proposal | None:
    if Path(which).suffix in (".yaml", ".yml"):
        return Proposal.of_suite(read_suite(Path(which)), which)
    found = list(read_proposals(options.proposals).values())
    exact = [p for p in found if p.id == which or p.suite.hash.startswith(which)]
    of_problem = [p for p in found if p.suite.problem_id == which or abbreviates(which, p.suite.problem_id)]
    fresh = [p for p in of_problem if not objection(p, into)]
    return next(reversed(exact or fresh), None)


def _made_now(which: str, options: PromoteOptions, into: Path, configured: RewardConfig) -> Proposal:
    """A proposal for a problem with false accepts."""
    from .propose import propose_fixes

    path, made = _bank(options, configured), []
    if path.is_file():
        try:
            with KernelBank(path) as bank:
                kernels = bank.kernels("false-accept")
                hashes = {k.problem_hash for k in kernels if k.problem_id == which or abbreviates(which, k.problem_id)}
                made = [p for digest in hashes for p in propose_fixes(bank, _means(options, into, configured), digest)]
        except BankError as error:
            raise InputError(f"--bank {error}") from error
    if made:
        return made[-1]
    known = ", ".join(p.id for p in read_proposals(options.proposals).values()) or "none"
    raise InputError(
        f"no proposal {which!r} in {options.proposals} (there: {known}), and no false accept of a problem of that name "
        f"that its suite in use does not catch, in {path}"
    )


def _bank(options: PromoteOptions, configured: RewardConfig) -> Path:
    return options.bank or bank_path(configured.bank.file if configured.bank else None)


def _means(options: PromoteOptions, into: Path, configured: RewardConfig) -> Any:
    from .propose import Means, by_problem
    from .substrates import list_substrates

    return Means(
        folder=options.proposals,
        suites=into,
        device=resolve_device(options.device),
        substrates=by_problem(list_substrates(), options.problems),
        judge=replace(configured.judge, official=None),
    )


def _checked(proposal: Proposal, options: PromoteOptions, into: Path, configured: RewardConfig) -> Proposal:
    """The proposal with its validity as it is now, where the problem's source is at hand."""
    from ..suites.problem import find_problem, problem_from_source
    from .propose import check, suite_in_use

    suite = proposal.suite
    problem = None
    try:
        problem = find_problem(suite.problem_id, options.problems)
    except InputError:
        path = _bank(options, configured)
        if path.is_file():
            with KernelBank(path) as bank:
                kernel = next(iter(bank.kernels(problem_hash=suite.problem_hash)), None)
            if kernel is not None:
                problem = problem_from_source(kernel.problem_source, kernel.problem_id)
    if problem is None or problem.hash != suite.problem_hash:
        return proposal  # what was found when it was made has to do
    means = _means(options, into, configured)
    with means.client() as client:
        return replace(proposal, validity=check(problem, suite, suite_in_use(problem, means), client, means))


def _list(options: PromoteOptions) -> int:
    found = list(read_proposals(options.proposals).values())
    if options.as_json:
        print(json.dumps([_json(p) for p in found]))
        return 0
    console = Console()
    if not found:
        console.print(f"no proposals in {options.proposals}", highlight=False)
        return 0
    for p in found:
        reason = f"{len(p.cases)} false accepts" if p.gained is None else f"{p.gained:+.2%} of the witnessed mutants"
        cost = f"{p.bytes_before >> 10} KiB -> {p.bytes_after >> 10} KiB"
        said = f"not to be promoted: {p.validity.objection}" if p.validity.objection else "may be promoted"
        console.print(f"{p.id}: {reason}; {cost}; {said}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _print(proposal: Proposal, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"{proposal.suite.problem_id}: suite {short(proposal.suite.hash)} in place of {short(proposal.base)}")
    for case in proposal.cases:
        say(
            f"  false accept {short(case.kernel)}, found by {case.found_by} at {case.entry} (seed {case.seed}): "
            f"now {case.verdict} at {case.at_entry} (seed {case.at_seed})"
        )
    for family, gain in proposal.gain.items():
        say(f"  {family}: {gain.before} -> {gain.after} of {gain.witnessed} mutants")
    say(f"  entries {proposal.bytes_before >> 10} KiB -> {proposal.bytes_after >> 10} KiB")
    validity = proposal.validity
    say(f"  kernels known to be correct: {len(validity.accepted)} accepted, {len(validity.rejected)} rejected")
    for line in (*validity.refused, *validity.rejected, *validity.undecided):
        say(f"    {line}")


def _json(proposal: Proposal) -> dict[str, Any]:
    return {
        "proposal": proposal.id,
        "problem": proposal.suite.problem_id,
        "suite": proposal.suite.hash,
        "base": proposal.base,
        "why": proposal.why,
        "false_accepts": [asdict(case) for case in proposal.cases],
        "gain": {family: asdict(gain) for family, gain in proposal.gain.items()},
        "gained": proposal.gained,
        "bytes": [proposal.bytes_before, proposal.bytes_after],
        "validity": asdict(proposal.validity),
        "objection": proposal.validity.objection,
    }
