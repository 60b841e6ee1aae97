"""The folder of suites that a run reads: whole files only, and the history of what was replaced."""

import os
import time
from pathlib import Path

import pytest
from kernelward.reward.promoted import (
    HISTORY,
    SuiteFolder,
    from_history,
    install,
    read_suite,
    sealed,
    suite_files,
    write_suite,
)
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.suite import Suite, SuiteEntry

PROBLEM, OTHER = "a" * 64, "b" * 64


def suite(*draws: int, problem: str = PROBLEM, name: str = "mine") -> Suite:
    return Suite(name, problem, tuple(SuiteEntry(Entry("own", draw=d)) for d in draws))


def settled(path: Path, text: str) -> None:
    """A file that was written a while ago."""
    path.write_text(text)
    past = time.time() - 10
    os.utime(path, (past, past))


def test_a_suite_that_was_cut_off_is_never_read(tmp_path: Path) -> None:
    whole = suite(1, 2, 3)
    text = sealed(whole)
    path = tmp_path / "mine.yaml"
    valid = 0
    for length in range(len(text)):
        path.write_text(text[:length])
        try:
            assert read_suite(path).hash == whole.hash  # only what changes no verdict may be missing
            valid += 1
        except InputError:
            pass
    assert valid < len(text) / 4
    unsealed = text[text.index("\n") + 1 :]
    path.write_text(unsealed[: unsealed.index("- recipe", unsealed.index("- recipe") + 1)])
    assert read_suite(path).hash == suite(1).hash  # without the first line nobody can tell


def test_a_file_that_was_changed_by_hand_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write_suite(path, suite(1))
    path.write_text(path.read_text().replace("draw: 1", "draw: 2"))
    with pytest.raises(InputError, match=r"mine.yaml:1: .*then delete that line"):
        read_suite(path)
    path.write_text(path.read_text().partition("\n")[2])
    assert read_suite(path) == suite(2)


def test_what_was_replaced_stays_in_the_history(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    settled(tmp_path / "sub" / "own.yaml", suite(1).to_yaml())
    place = install(tmp_path, suite(2))
    assert place == tmp_path / "sub" / "own.yaml"
    install(tmp_path, suite(3))
    assert suite_files(tmp_path) == {place: suite(3)}
    for draws in (1, 2, 3):
        assert from_history(tmp_path, suite(draws).hash) == suite(draws)
    assert from_history(tmp_path, suite(4).hash) is None
    assert not list(tmp_path.rglob("*.new"))


def test_a_run_sees_new_files_and_keeps_what_a_broken_one_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SuiteFolder(tmp_path)
    settled(tmp_path / "mine.yaml", suite(1).to_yaml())
    assert folder.read() == {PROBLEM: suite(1)}
    install(tmp_path, suite(2))
    install(tmp_path, suite(1, problem=OTHER, name="other"))
    assert folder.read() == {PROBLEM: suite(2), OTHER: suite(1, problem=OTHER, name="other")}
    text = (tmp_path / "mine.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text[: len(text) // 2])
    settled(tmp_path / "second.yaml", suite(4, problem=OTHER, name="other").to_yaml())
    for _ in range(2):
        assert folder.read()[PROBLEM] == suite(2)
        assert folder.read()[OTHER] == suite(1, problem=OTHER, name="other")
    assert caplog.text.count("what was there before is kept") == 1
    assert "a second suite for problem other; it is not used" in caplog.text
    (tmp_path / "mine.yaml").unlink()
    assert set(folder.read()) == {OTHER}


def test_a_file_without_a_seal_is_used_once_nobody_writes_to_it(tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path)
    assert folder.read() == {}
    (tmp_path / "mine.yaml").write_text(suite(1).to_yaml())
    assert folder.read() == {}
    settled(tmp_path / "mine.yaml", suite(1).to_yaml())
    assert folder.read() == {PROBLEM: suite(1)}


def test_hidden_files_and_the_history_are_no_suites(tmp_path: Path) -> None:
    install(tmp_path, suite(1))
    install(tmp_path, suite(2))
    (tmp_path / ".draft.yaml").write_text("format: [")
    assert (tmp_path / HISTORY).is_dir()
    assert SuiteFolder(tmp_path).read() == {PROBLEM: suite(2)}


def test_a_suite_of_another_rank_is_found_by_its_hash(tmp_path: Path) -> None:
    install(tmp_path, suite(1))
    folder = SuiteFolder(tmp_path)
    folder.read()
    install(tmp_path, suite(2))
    for draws in (1, 2):
        assert folder.find(suite(draws).hash) == suite(draws)
    assert folder.find(suite(3).hash) is None
    assert SuiteFolder(None).read() == {}
    assert SuiteFolder(None).find(suite(1).hash) is None
