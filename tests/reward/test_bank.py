"""The bank of accepted kernels."""

import math
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from kernelward.reward.bank import BankedKernel, BankError, Evidence, KernelBank, bank_path, kernel_hash

KERNEL = BankedKernel("relu", "a" * 64, "class Model: ...", "torch", "class ModelNew: ...", 1.0, 3, "abc")
WRONG = Evidence("negative-1", {"generator": "negative"}, "audit", "value", 7, math.inf, 1e-6, "element 3")


def test_a_kernel_is_kept_once_with_what_it_was_accepted_under(tmp_path: Path) -> None:
    with KernelBank(tmp_path / "bank.sqlite") as bank:
        assert bank.add(KERNEL)
        assert not bank.add(replace(KERNEL, epoch=9, accepted_at=5.0))
        assert bank.add(replace(KERNEL, problem_hash="b" * 64))
        (kept, other) = bank.kernels()
    assert replace(kept, id=0, hash="") == KERNEL
    assert kept.hash == kernel_hash(KERNEL.source, KERNEL.problem_hash) != other.hash


def test_a_false_accept_is_never_taken_back(tmp_path: Path) -> None:
    with KernelBank(tmp_path / "bank.sqlite") as bank:
        bank.add(KERNEL)
        (kernel,) = bank.kernels("new")
        assert kernel.evidence is None
        assert bank.settle(kernel.hash, "verified", "30 entries")
        assert bank.settle(kernel.hash, "false-accept", WRONG.to_json())
        assert not bank.settle(kernel.hash, "verified")
        (found,) = bank.false_accepts()
        assert found.evidence == WRONG
        assert WRONG.as_entry.generator == "negative"
        assert found.decided_at is not None
        assert bank.false_accepts(found.decided_at + 1) == []
        assert bank.counts() == {"new": 0, "verified": 0, "false-accept": 1, "unusable": 0}


def test_a_full_bank_lets_go_of_the_oldest_of_the_commonest_problem(tmp_path: Path) -> None:
    with KernelBank(tmp_path / "bank.sqlite", most=4) as bank:
        rare = replace(KERNEL, problem_hash="b" * 64)
        for kernel in (rare, *(replace(KERNEL, source=f"k{i}") for i in range(6))):
            bank.add(kernel)
        assert [k.source for k in bank.kernels()] == [rare.source, "k3", "k4", "k5"]
        assert bank.kernels(after=bank.kernels()[-2].id)[0].source == "k5"


def test_evidence_goes_last(tmp_path: Path) -> None:
    with KernelBank(tmp_path / "bank.sqlite", most=2) as bank:
        for i in range(2):
            bank.add(replace(KERNEL, source=f"k{i}"))
        bank.settle(kernel_hash("k0", KERNEL.problem_hash), "false-accept", WRONG.to_json())
        bank.add(replace(KERNEL, source="k2"))
        assert [k.source for k in bank.kernels()] == ["k0", "k2"]


def test_the_bank_is_bounded_in_size_as_well(tmp_path: Path) -> None:
    each = len(KERNEL.problem_source) + 100
    with KernelBank(tmp_path / "bank.sqlite", most_bytes=3 * each) as bank:
        assert not bank.add(replace(KERNEL, source="x" * (3 * each)))
        for i in range(5):
            assert bank.add(replace(KERNEL, source=str(i) * 100))
        assert [k.source[0] for k in bank.kernels()] == ["2", "3", "4"]


def test_many_threads_and_a_second_process_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from kernelward.reward.bank import *\n"
        "k = BankedKernel('relu', 'a' * 64, 'm', 'torch', '', 1.0)\n"
        "b = KernelBank(Path(sys.argv[1]))\n"
        "[b.add(replace(k, source=f's{i}')) for i in range(40)]"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)])
    bank = KernelBank(path)
    threads = [
        threading.Thread(
            target=lambda: [bank.add(replace(KERNEL, source=f"s{i}", problem_source="m")) for i in range(40)]
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.wait(timeout=120) == 0
    assert sorted(k.source for k in bank.kernels()) == sorted(f"s{i}" for i in range(40))


def test_a_file_that_is_no_bank_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    path.write_text("not a database, but long enough to be read as one" * 10)
    with pytest.raises(BankError, match=r"bank.sqlite: file is not a database"):
        KernelBank(path).counts()


def test_where_the_bank_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KERNELWARD_BANK", raising=False)
    assert bank_path() == tmp_path / "kernelward" / "bank.sqlite"
    monkeypatch.setenv("KERNELWARD_BANK", "/elsewhere/bank.sqlite")
    assert bank_path() == Path("/elsewhere/bank.sqlite")
    assert bank_path("mine.sqlite") == Path("mine.sqlite")


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"entry": "x", "nonsense": 1}'])
def test_a_damaged_detail_is_no_evidence(text: str) -> None:
    assert Evidence.from_json(text) is None
