"""Kernels of the bank as guests; what becomes of them in a calibration is in test_watch_pass.py."""

from pathlib import Path

import pytest
import torch
from kernelward.mutants.banked import PREFIX, examine, with_guests
from kernelward.mutants.calibrate_plan import Target
from kernelward.mutants.evaluate import Evaluator
from kernelward.mutants.mutant import Substrate
from kernelward.mutants.pool import asked_pool
from kernelward.reward.bank import BankedKernel, Evidence, KernelBank
from kernelward.suites.entry import Entry
from kernelward.suites.problem import problem_from_source
from watched import KERNEL, PROBLEM


def kernel(source: str, problem: str = PROBLEM, backend: str = "triton") -> BankedKernel:
    known = problem_from_source(problem, "tiny_relu")
    return BankedKernel(known.id, known.hash, known.source, backend, source, 1.0)


@pytest.fixture
def bank(tmp_path: Path) -> KernelBank:
    return KernelBank(tmp_path / "bank.sqlite")


def test_guests_join_their_problem_the_newest_ones_and_none_that_was_found_wrong(bank: KernelBank) -> None:
    problem = problem_from_source(PROBLEM, "tiny_relu")
    for source in ("oldest", "wrong", KERNEL, "new"):
        bank.add(kernel(source))
    wrong = next(k for k in bank.kernels() if k.source == "wrong")
    bank.settle(wrong.hash, "false-accept", Evidence("e", {}, "audit").to_json())
    own = Substrate("triton/relu", "tiny_relu", "triton", "naive", KERNEL)
    (target,) = with_guests([Target(problem, (own,))], bank, most=2)
    assert [g.source for g in target.guests] == ["new"]  # the other of the two is our own kernel
    assert target.guests[0].name.startswith(PREFIX)
    assert with_guests([target], KernelBank(bank.path), most=0) == [target]


def test_kernels_of_torchs_operators_are_verified_once(bank: KernelBank) -> None:
    for source in ("first", "second"):
        bank.add(kernel(source, backend="torch"))
    (target,) = with_guests([], bank)
    assert [(g.source, g.backend) for g in target.guests] == [("first", "torch"), ("second", "torch")]
    bank.settle(target.guests[0].name.removeprefix(PREFIX), "verified", "passes 2 of 2 entries")
    (target,) = with_guests([], bank)
    assert [g.source for g in target.guests] == ["second"]


def test_a_problem_of_the_bank_alone_is_a_target_unless_its_source_is_broken(bank: KernelBank) -> None:
    bank.add(kernel("one"))
    broken = BankedKernel("bad", "0" * 64, "class Model(", "cuda", "two", 1.0)
    bank.add(broken)
    (target,) = with_guests([], bank)
    assert (target.problem.id, target.substrates, len(target.guests)) == ("tiny_relu", (), 1)


def test_the_entry_that_shows_a_kernel_wrong_can_be_replayed() -> None:
    problem = problem_from_source(PROBLEM, "tiny_relu")
    entries = [Entry.make("normal"), Entry.make("negative")]
    pool = asked_pool(problem, torch.device("cpu"), {e.id: e for e in entries})
    # Right for every input that is not negative in the first row.
    source = KERNEL.replace("tl.where(x > 0.0, x, 0.0)", "tl.where((x > 0.0) | (index < 32), x, 0.0)")
    with Evaluator("cpu") as evaluator:
        good = examine(evaluator, problem, pool, Substrate("bank/a", "tiny_relu", "triton", "bank", KERNEL))
        bad = examine(evaluator, problem, pool, Substrate("bank/b", "tiny_relu", "triton", "bank", source))
        none = examine(evaluator, problem, pool, Substrate("bank/c", "tiny_relu", "triton", "bank", "1 / 0"))
    admitted = [a.entry for a in pool.admitted]
    assert (good.state, good.detail) == ("verified", f"passes {len(admitted)} of {len(admitted)} entries")
    evidence = Evidence.from_json(bad.detail)
    assert bad.state == "false-accept"
    assert evidence is not None
    assert evidence.as_entry in admitted
    assert evidence.found_by == "calibration"
    assert evidence.err is not None
    assert evidence.tolerance is not None
    assert evidence.err > evidence.tolerance
    assert none.state == "unusable"
    assert "ZeroDivisionError" in none.detail
