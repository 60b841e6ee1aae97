"""Suites as YAML: nothing is lost on the way, the hash follows the content, and faults are named with their line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import suite as suite_module
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.problem import problem_from_source
from kernelward.suites.suite import Suite, SuiteEntry, find_suite, load_suite
from kernelward.suites.validity import Measured

SOURCE = """
class Model: pass
def get_inputs(): return []
def get_init_inputs(): return []
"""
PROBLEM = problem_from_source(SOURCE, "level9/1_Nothing")


def measured(device_class: str = "cpu", tolerance: float = 1e-5) -> Measured:
    return Measured(
        device_class=device_class,
        policy="fp32",
        seeds=8,
        fan_in=(17,),
        envelope=(2.5e-7,),
        tolerance=(tolerance,),
        power=(0.99,),
        regions=((1.0,) * 64,),
        controls={"zeros": (True,), "copy": (None,)},
        members={"reordered": (1e-7,)},
        scale_pool=(None,),
        bytes=4096,
    )


def example() -> Suite:
    declared = Entry.make("normal")
    ragged = Entry.make("normal", constants={"batch": 33, "shape": [3, 5]})
    return Suite(
        problem_id=PROBLEM.id,
        problem_hash=PROBLEM.hash,
        entries=(SuiteEntry(ragged, (measured(), measured("cuda")), twin=declared.id),),
        reserves=(SuiteEntry(declared, (measured(),)),),
        calibrated=True,
        coverage={"kernelward": {"detected": 9, "witnessed": 10}},
        provenance={"torch": "2.13.0"},
    )


def test_yaml_round_trip_keeps_everything() -> None:
    suite = example()
    again = Suite.from_yaml(suite.to_yaml())
    assert again == suite
    assert again.hash == suite.hash


constants = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6),
    st.one_of(
        st.integers(-(2**40), 2**40),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.none(),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8),
        st.lists(st.integers(0, 99), max_size=3),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(constants, st.sampled_from(["float32", "bfloat16"]), st.floats(1e-6, 1e6), st.integers(0, 9))
def test_any_recipe_survives_yaml(values: dict, dtype: str, scale: float, draw: int) -> None:
    entry = Entry.make("own", constants=values, params=values, dtype=dtype, scale=scale, draw=draw)
    suite = Suite("p", "0" * 64, (SuiteEntry(entry),))
    assert Suite.from_yaml(suite.to_yaml()) == suite


def test_the_hash_follows_recipes_tolerances_and_policy_but_not_provenance() -> None:
    from dataclasses import replace

    suite = example()
    assert replace(suite, provenance={}, coverage=None, calibrated=False).hash == suite.hash
    assert replace(suite, policy="tf32").hash != suite.hash
    other = suite.entries[0].with_measured(measured(tolerance=2e-5))
    assert replace(suite, entries=(other,)).hash != suite.hash


def test_measurements_are_kept_per_device_class() -> None:
    item = SuiteEntry(Entry()).with_measured(measured("cuda")).with_measured(measured("cpu"))
    newer = item.with_measured(measured("cuda", 3e-5))
    assert [m.device_class for m in newer.measured] == ["cpu", "cuda"]
    found = newer.for_device("cuda")
    assert found is not None
    assert found.tolerance == (3e-5,)
    assert newer.for_device("rocm") is None


def test_twins_are_found_among_entries_and_reserves() -> None:
    suite = example()
    twin = suite.twin_of(suite.entries[0])
    assert twin is suite.reserves[0]
    assert suite.twin_of(twin) is None


def line_of(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("format: 1", "format: 99", "reads format 1"),
        ("calibrated: true", "calibrated: yes please", "true or false"),
        ("policy: fp32\ncal", "polcy: fp32\ncal", "Did you mean `policy`"),
        ("device_class: cpu", "device_klass: cpu", "build the suite again"),
        ("    generator: normal\n    constants", "    generator: normal\n    constant", "Did you mean `constants`"),
    ],
)
def test_faults_name_the_line(old: str, new: str, part: str, tmp_path: Path) -> None:
    text = example().to_yaml()
    assert old in text
    path = tmp_path / "s.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_suite(path)
    assert part in str(caught.value)
    changed = next(line for line in new.splitlines() if line not in old.splitlines())
    assert str(caught.value).startswith(f"{path}:{line_of(path.read_text(), changed.strip())}: ")


def test_a_hash_that_is_none_and_a_twin_that_is_missing_are_refused() -> None:
    text = example().to_yaml()
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        Suite.from_yaml(text.replace(PROBLEM.hash, "abc"))
    with pytest.raises(InputError, match=r"its twin normal-\w+ is not a declared-shape entry"):
        Suite.from_yaml(text.replace("twin: normal-", "twin: normal-0"))


def test_the_same_recipe_twice_is_refused() -> None:
    entry = SuiteEntry(Entry.make("own"))
    text = Suite("p", "0" * 64, (entry,), reserves=(entry,)).to_yaml()
    with pytest.raises(InputError, match="the same recipe twice"):
        Suite.from_yaml(text)


def test_the_library_is_looked_up_by_the_hash_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "library" / "level9"
    folder.mkdir(parents=True)
    (folder / "1_Nothing.yaml").write_text(example().to_yaml())
    monkeypatch.setattr(suite_module.resources, "files", lambda _: tmp_path)
    suite_module._library.cache_clear()
    try:
        assert find_suite(PROBLEM) == example()
        assert find_suite(problem_from_source(SOURCE + "# changed\n", PROBLEM.id)) is None
    finally:
        suite_module._library.cache_clear()


@pytest.mark.parametrize("text", ["\x85", "\u2028", "é", "\x07", " ", "no", "1e3"])
def test_text_that_yaml_would_read_otherwise_survives(text: str) -> None:
    suite = Suite("p", "0" * 64, (SuiteEntry(Entry.make("own", params={"a": text}, constants={"b": text})),))
    assert Suite.from_yaml(suite.to_yaml()) == suite
