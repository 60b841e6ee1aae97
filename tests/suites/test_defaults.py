"""Default suites: dense first, admitted, powered, with twins; and the cache that keeps them."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelward.suites import suite_cache, validity
from kernelward.suites.defaults import build_default_suite, cached_default_suite
from kernelward.suites.draw import Drawn
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.oracle import OracleError, Truth
from kernelward.suites.problem import problem_from_source
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.suite_cache import cache_folder, cache_key, cached, suite_identity
from kernelward.suites.validity import Admission, uncovered_regions, unguarded_outputs

FRAME = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

batch_size = 16
dim = 128

def get_inputs():
    return [torch.rand(batch_size, dim)]

def get_init_inputs():
    return []
"""
RELU = problem_from_source(FRAME.format(expression="torch.relu(x)"), "relu")


@pytest.fixture(scope="module")
def relu_suite() -> tuple[Suite, tuple[Admission, ...]]:
    suite, rejected = build_default_suite(RELU)
    assert suite is not None
    return suite, rejected


def test_the_first_entry_is_dense_signed_and_ragged(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    first = relu_suite[0].entries[0].entry
    assert first.generator == "normal"
    changed = dict(first.constants)
    assert set(changed) == {"batch_size", "dim"}
    assert all(isinstance(n, int) and n % 2 for n in changed.values())


def test_there_is_a_declared_shape_entry_and_targeted_ones(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    suite, _ = relu_suite
    assert any(e.entry.declared_shape and e.entry.generator == "normal" for e in suite.entries)
    assert {"thresholds", "large"} <= {e.entry.generator for e in suite.entries}
    assert not suite.calibrated
    assert not {"uncovered_regions", "unguarded_outputs"} & set(suite.provenance)
    assert suite.coverage is None


def test_two_entries_have_power_and_they_see_every_part(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    measured = [e.for_device("cpu") for e in relu_suite[0].entries]
    found = [m for m in measured if m is not None]
    assert len(found) == len(measured) >= 2
    assert sum(min(m.power) > 0.4 for m in found) >= 2
    assert uncovered_regions(found) == []
    assert unguarded_outputs(found) == []


def test_an_entry_that_an_identity_would_pass_is_rejected(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    suite, rejected = relu_suite
    refused = [a for a in rejected if a.entry.generator == "own"]
    assert refused
    assert all(a.reason == "powerless:copy" for a in refused)
    assert all(e.entry.generator != "own" for e in suite.entries)


def test_changed_shapes_have_a_twin_at_the_declared_one(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    suite, _ = relu_suite
    for item in suite.entries:
        twin = suite.twin_of(item)
        if item.entry.declared_shape:
            assert twin is None
        else:
            assert twin is not None
            assert (twin.entry.generator, twin.entry.params) == (item.entry.generator, item.entry.params)
            assert twin.for_device("cpu") is not None


def test_building_again_gives_the_same_suite(relu_suite: tuple[Suite, tuple[Admission, ...]]) -> None:
    again, _ = build_default_suite(RELU)
    assert again == relu_suite[0]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [("x * 0", "all-zero"), ("torch.dropout(x, 0.5, True)", "random"), ("x / 0", "not-finite")],
)
def test_a_problem_that_cannot_be_refereed_has_no_suite_and_says_why(expression: str, reason: str) -> None:
    suite, rejected = build_default_suite(problem_from_source(FRAME.format(expression=expression), "p"))
    assert suite is None
    assert {a.reason for a in rejected} == {reason}


def test_a_declared_shape_beyond_the_cpu_is_left_out_and_named() -> None:
    source = FRAME.format(expression="torch.softmax(x, 1)").replace("dim = 128", "dim = 4_000_000")
    suite, rejected = build_default_suite(problem_from_source(source, "wide"))
    assert suite is not None
    assert all(not e.entry.declared_shape for e in suite.entries)
    assert any(a.reason == "too-large" and "MiB at the declared shape" in a.detail for a in rejected)


def test_a_problem_whose_every_shape_is_large_has_fewer_entries() -> None:
    wide = FRAME.replace("dim = 128", "").replace("batch_size, dim", "batch_size, 1_500_000")  # no constant to shrink
    suite, _ = build_default_suite(problem_from_source(wide.format(expression="x.sum(1)"), "wide"))
    assert suite is not None
    assert 2 <= len(suite.entries) <= 3


def test_what_no_entry_sees_is_said_after_every_spare_was_tried() -> None:
    blinded = "torch.cat([x * 1e6, x * 1e-6], 1)"  # beside such neighbours a zero in the right half is within tolerance
    tried: list[str] = []
    suite, _ = build_default_suite(problem_from_source(FRAME.format(expression=blinded), "p"), progress=tried.append)
    assert suite is not None
    assert suite.provenance["uncovered_regions"] == 32  # of 8 x 8
    assert {"spiky", "integers", "ramp"} <= {entry.partition("-")[0] for entry in tried}
    assert len(suite.entries) <= 6  # what does not help is not kept


def test_a_part_that_only_a_spare_sees_gets_that_spare() -> None:
    late = "torch.cat([x.tanh(), torch.relu(x - 30)], 1)"  # the right half is zero but for spikes
    suite, _ = build_default_suite(problem_from_source(FRAME.format(expression=late), "p"))
    assert suite is not None
    assert "uncovered_regions" not in suite.provenance


def test_a_broken_problem_is_the_users_error() -> None:
    with pytest.raises(InputError):
        build_default_suite(problem_from_source(FRAME.format(expression="undefined_name(x)"), "p"))


# ---------------------------------------------------------------- cache

SUITE = Suite("p", "0" * 64, (SuiteEntry(Entry.make("own")),), provenance={"n": 1})
REJECTED = (Admission(Entry.make("normal"), False, "all-zero", "zeros"),)


def never() -> tuple[Suite, tuple[Admission, ...]]:
    raise AssertionError("built again")


def test_what_was_built_is_read_back(tmp_path: Path) -> None:
    key = "ab" * 32
    assert cached(key, lambda: (SUITE, REJECTED), tmp_path) == (SUITE, REJECTED)
    assert cached(key, never, tmp_path) == (SUITE, REJECTED)


def test_that_nothing_was_admitted_is_remembered_as_well(tmp_path: Path) -> None:
    cached("cd" * 32, lambda: (None, REJECTED), tmp_path)
    assert cached("cd" * 32, never, tmp_path) == (None, REJECTED)


def test_what_is_not_to_be_kept_is_built_again(tmp_path: Path) -> None:
    assert cached("cc" * 32, lambda: (None, REJECTED), tmp_path, lambda _: False) == (None, REJECTED)
    assert cached("cc" * 32, lambda: (SUITE, ()), tmp_path) == (SUITE, ())


def test_a_suite_for_which_memory_was_short_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, full = problem_from_source(FRAME.format(expression="x.sum(1)"), "p"), True
    compute = validity.compute_truth

    def crowded(drawn: Drawn, *args: Any, **kwargs: Any) -> Truth:
        if full:
            raise OracleError("out-of-memory", "12 GiB")
        return compute(drawn, *args, **kwargs)

    monkeypatch.setattr(validity, "compute_truth", crowded)
    suite, rejected = cached_default_suite(problem, cache_dir=tmp_path)
    assert suite is None
    assert {a.reason for a in rejected} == {"out-of-memory"}
    full = False
    suite, _ = cached_default_suite(problem, cache_dir=tmp_path)
    assert suite is not None
    full = True
    assert cached_default_suite(problem, cache_dir=tmp_path)[0] == suite


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"suite": "format: 99", "rejected": []}', '{"suite": null}'])
def test_a_damaged_file_is_built_again(damage: str, tmp_path: Path) -> None:
    cached("ef" * 32, lambda: (SUITE, ()), tmp_path)
    (file,) = tmp_path.glob("suites/ef/*.json")
    file.write_text(damage)
    assert cached("ef" * 32, lambda: (SUITE, REJECTED), tmp_path) == (SUITE, REJECTED)
    assert cached("ef" * 32, never, tmp_path) == (SUITE, REJECTED)


def test_a_builder_that_fails_leaves_nothing_behind_and_lets_the_next_one_in(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        cached("aa" * 32, lambda: (_ for _ in ()).throw(InputError("broken")), tmp_path)
    assert list(tmp_path.rglob("*.json")) == []
    assert cached("aa" * 32, lambda: (SUITE, ()), tmp_path) == (SUITE, ())


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "suites").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="default suites are not kept"):
        assert cached("bb" * 32, lambda: (SUITE, ()), tmp_path) == (SUITE, ())


def _slow(folder: Path, log: Path) -> Callable[[], tuple[Suite, tuple[Admission, ...]]]:
    def build() -> tuple[Suite, tuple[Admission, ...]]:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return SUITE, ()

    return build


def _want(folder: Path, log: Path) -> None:
    assert cached("99" * 32, _slow(folder, log), folder) == (SUITE, ())


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    workers = [fork.Process(target=_want, args=(tmp_path, log)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(log.read_text().splitlines()) == 1
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_builder_that_is_killed_does_not_block_the_next_one(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    first = fork.Process(target=_want, args=(tmp_path, log))
    first.start()
    while not log.exists():
        time.sleep(0.01)
    first.kill()
    first.join()
    _want(tmp_path, log)
    assert len(log.read_text().splitlines()) == 2


def test_the_key_follows_source_device_and_policy() -> None:
    other = problem_from_source(RELU.source + "# changed\n", "relu")
    keys = {cache_key(RELU, "cpu", "fp32"), cache_key(RELU, "cuda", "fp32"), cache_key(RELU, "cpu", "tf32")}
    assert len(keys | {cache_key(other, "cpu", "fp32")}) == 4
    assert suite_identity(RELU, "cpu", "fp32") == f"default {cache_key(RELU, 'cpu', 'fp32')}"


def test_the_key_follows_the_code_of_this_room(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(RELU, "cpu", "fp32")
    monkeypatch.setattr(suite_cache, "code_version", lambda _root: "another version")
    assert cache_key(RELU, "cpu", "fp32") != before


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "kernelward"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "kernelward"


def test_the_cached_default_suite_is_built_once(tmp_path: Path) -> None:
    problem = problem_from_source(FRAME.format(expression="x.sum(1)").replace("dim = 128", "dim = 24"), "sums")
    seen: list[str] = []
    first = cached_default_suite(problem, cache_dir=tmp_path, progress=seen.append)
    count = len(seen)
    assert count >= 2
    assert cached_default_suite(problem, cache_dir=tmp_path, progress=seen.append) == first
    assert len(seen) == count
    (file,) = tmp_path.rglob("*.json")
    assert json.loads(file.read_text())["suite"] is not None
