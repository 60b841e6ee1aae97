"""The report's facts, and what its pure parts decide."""

import base64
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.mutants.banked import PREFIX
from kernelward.mutants.matrix_schema import VARIANTS, Cell, MutantRow, SubstrateRow
from kernelward.mutants.mutant import generate
from kernelward.mutants.report import pack
from kernelward.mutants.report.catch import best_catches, worths
from kernelward.mutants.report.chart import charts
from kernelward.mutants.report.facts import HEAD, gather
from kernelward.mutants.report.history import History, Point, read_history
from kernelward.mutants.report.scored import read_scored
from kernelward.mutants.report.sources import change, collect
from kernelward.mutants.report.visible import one_line, visible
from kernelward.mutants.substrates import list_substrates
from kernelward.mutants.watch_publish import append_history
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.protocol import load_protocol
from reported import Reported

texts = st.text(alphabet=st.sampled_from("ab \n{;"), max_size=60)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory):
    return gather(Reported(tmp_path_factory.mktemp("report") / "m.sqlite").matrix)


def test_the_mutants_that_a_checker_misses_are_those_that_coverage_counts(facts) -> None:
    for line in facts.report.protocols:
        missed = sum(int(p.missed(line.name).sum()) for p in facts.problems)
        assert missed == line.ours.of - line.ours.detected, line.name
    assert facts.report.get(HEAD[0]).ours.detected < facts.report.get(HEAD[0]).ours.of


def test_a_survivor_names_the_asked_entry_that_came_closest_and_by_how_much(facts) -> None:
    (p,) = facts.problems
    column, ratio = p.checkers["kernelbench"].closest(Reported.MISSED)
    assert p.cells.entries[column].recipe == load_protocol("kernelbench").entries[1].to_dict()
    assert ratio == pytest.approx(0.8)  # a margin of 0.008 at the tolerance of 0.01


def test_kernels_that_a_policy_wrote_are_counted_apart_and_are_no_evidence_of_correctness(tmp_path: Path) -> None:
    made = Reported(tmp_path / "m.sqlite")
    row = SubstrateRow("of the bank", f"{PREFIX}abc", "cuda", "bank", made.problem, "admitted")
    guest = made.matrix.add_substrate(row)
    kinds = ("lt2le", "boundary", 1, "x", "ready", "", "", "bank")
    made.mutants += made.matrix.add_mutants([MutantRow(f"bank-{i}", guest, *kinds) for i in range(2)])  # type: ignore[arg-type]
    made.put(-1, (0.0, 1.0, 0.0), (0.5,) * 5)
    made.put(-2, (0.0, 1.0, 0.0), (0.0,) * 5)
    facts = gather(made.matrix)
    share = facts.policy_share("kernelbench")
    assert (share.detected, share.of) == (1, 2)
    assert facts.report.get("kernelbench").ours.of == 5
    assert guest not in facts.problems[0].substrates
    assert not any(mutant.origin == "bank" for mutant, _ in facts.others)


def test_an_unwitnessed_mutant_names_the_pool_entry_that_came_closest(facts) -> None:
    (p,) = facts.problems
    assert p.witnessed[Reported.UNWITNESSED] == 0
    column, ratio = p.closest(Reported.UNWITNESSED)
    assert p.cells.entries[column].recipe["generator"] == "spiky"
    assert ratio == pytest.approx(0.9)


def test_the_input_that_catches_the_most_of_what_is_missed_comes_first(facts) -> None:
    first = facts.catches("kernelbench")[0]
    assert first.name == "spiky, declared shape"
    assert (first.alone, first.together) == (2, 2)


def test_catches_are_ranked_by_what_they_add() -> None:
    hits = {"a": [1, 1, 0, 0], "b": [1, 1, 1, 0], "c": [0, 0, 0, 1], "d": [0, 0, 0, 0]}
    found = best_catches({name: np.array(row, bool) for name, row in hits.items()})
    assert [(c.name, c.alone, c.together) for c in found] == [("b", 3, 3), ("c", 1, 4)]
    assert best_catches({}) == ()


def test_an_entry_is_redundant_beside_one_that_shows_the_same_and_more() -> None:
    kills = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    first, second, third = worths(kills, [1, 1, 1])
    assert (first.word, first.within) == ("redundant", 1)
    assert (second.word, second.alone) == ("indispensable", 1)
    assert third.word == "shows nothing"


def test_of_two_entries_that_show_the_same_the_dearer_is_redundant() -> None:
    kills = np.array([[1, 1], [1, 1]], bool)
    assert [w.within for w in worths(kills, [9, 1])] == [1, -1]
    assert [w.within for w in worths(kills, [1, 1])] == [-1, 0]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_what_is_called_redundant_can_be_taken_away(rows: list[list[bool]]) -> None:
    kills = np.array(rows, bool)
    found = worths(kills, [3, 1, 2, 2])
    kept = [i for i, w in enumerate(found) if w.within < 0]
    assert (kills[:, kept].any(axis=1) == kills.any(axis=1)).all()
    assert all(w.alone == 0 for w in found if w.within >= 0)


@given(texts, texts)
def test_a_change_gives_the_mutant_back(before: str, after: str) -> None:
    found = change(before, after)
    lines = before.split("\n")
    for hunk in reversed(found.hunks):
        lines[hunk.line - 1 : hunk.line - 1 + hunk.removed] = hunk.added
    assert "\n".join(lines) == after


def test_the_span_of_a_change_is_the_text_that_is_replaced() -> None:
    found = change("a\nif (i < n) x\nb", "a\nif (i <= n) x\nb").span
    assert (found.line, found.column, found.end_line, found.end_column, found.replacement) == (2, 8, 2, 8, "=")


def test_mutants_are_made_again_from_their_substrates_by_their_operators_alone() -> None:
    substrate = next(s for s in list_substrates() if s.name == "cuda/relu__vec4")
    made = generate(substrate)
    rows = Reported.rows_of(substrate, made[::3])
    sources = collect(rows, [substrate])
    assert set(sources.changes) == {m.id for m in made[::3]}
    assert sources.substrates == {substrate.hash: substrate.source}


def test_a_substrate_that_changed_has_no_source() -> None:
    substrate = next(s for s in list_substrates() if s.name == "cuda/relu__vec4")
    rows = Reported.rows_of(substrate, generate(substrate)[:2], digest="of another text")
    assert collect(rows, [substrate]).changes == {}


def test_cell_codes_keep_which_side_of_the_tolerance_a_ratio_is_on(tmp_path: Path) -> None:
    matrix = Reported(tmp_path / "m.sqlite")
    facts = gather(matrix.matrix).problems[0]
    ratios = np.array([0.0, 1e-9, 0.99999, 1.0, 1.00001, 1e9, math.inf, math.nan], np.float32)
    facts.ratio[0, : len(ratios)] = ratios
    facts.cells.grid.classes[0, : len(ratios)] = -1
    codes = pack.cell_codes(facts)[0, : len(ratios)].astype(int)
    one = 16 + pack.STEPS // 2
    assert codes[0] == pack.STATES.index("pass")
    assert codes[6] == pack.STATES.index("value")
    assert codes[7] == pack.STATES.index("missing")
    assert [c > one for c in codes[1:6]] == [False, False, False, True, True]


def test_blocks_are_the_same_for_the_same_facts_and_come_back(facts) -> None:
    index = pack.index_block(facts)
    text = pack.block(index)
    assert text == pack.block(index)
    assert index["replay"] == ["kernelward replay", f"--device cpu --matrix {facts.report.matrix}"]
    assert json.loads(gzip.decompress(base64.b64decode(text))) == index


@given(st.text(max_size=40))
def test_a_visible_text_can_be_written_and_hides_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert not set(shown) & set("\u202e\u200b\x00\x1b")
    assert "\n" not in one_line(text)


def point(time: float, step: int | None, detected: int, suite: str = "") -> Point:
    return Point(time, step, {"indexing": (detected, 10)}, suites=suite)


def test_a_history_with_a_torn_line_is_read_without_it(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    counts = {"indexing": {"detected": 9, "witnessed": 10, "unknown": 0}, "memory": {"detected": 1, "witnessed": 1}}
    more = {
        "bank": {"overall": {"detected": 1, "witnessed": 2}},
        "stale": {"share": 0.1},
        "suites": {"p": {"hash": "h"}},
    }
    steps = (None, 1, 2)
    lines = [json.dumps({"time": 5, "step": step, "families": counts, **more}) for step in steps]
    impossible = json.dumps({"time": 5, "step": 3, "families": {"memory": {"detected": 2, "witnessed": 1}}})
    path.write_text("\n".join([*lines, lines[0][:20], "[]", '{"time": "x"}', impossible]))
    history = read_history(path)
    assert [p.step for p in history.points] == [1, 2]
    assert (history.before, history.unread, history.by_step) == (1, 4, True)
    first = history.points[0]
    assert (first.overall, first.bank, first.stale, first.suites) == ((10, 11), (1, 2), 0.1, "p:h")


def test_what_a_watcher_appends_is_read(tmp_path: Path) -> None:
    counts = {"detected": 3, "witnessed": 4, "unknown": 1, "share": 0.75, "low": 0.2, "high": 1.0}
    stale = {"mutants": 1, "of": 4, "share": 0.25}
    published = {"time": 1.5, "step": None, "overall": counts, "families": {"memory": counts}, "bank": None}
    append_history(tmp_path, {**published, "stale": stale, "suites": {}, "problems": {}, "official": {}})
    (found,) = read_history(tmp_path / "history.jsonl").points
    assert (found.overall, found.stale, found.step) == ((3, 4), 0.25, None)


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="--history"):
        read_history(path)


def test_charts_follow_steps_and_mark_a_new_suite() -> None:
    history = History((point(100, 0, 5, "a"), point(200, 10, 9, "b"), point(300, 20, 10, "b")))
    whole, family = charts(history)
    assert (whole.title, family.title) == ("all families", "indexing")
    places = [float(pair.split(",")[0]) for pair in whole.line.split()]
    assert places == sorted(places)
    assert whole.changes == (places[1],)
    assert "step 20: 100.0 % (10 of 10); lowest: step 0: 50.0 %" in whole.summary


def test_a_history_of_one_point_without_a_step_is_drawn() -> None:
    assert "second 0: 50.0 %" in charts(History((point(100, None, 5),)))[0].summary
    assert charts(History(())) == ()


def scored_line(row: int, protocol: str, verdict: str, reason: str = "", **more: object) -> str:
    values = {"id": f"{row}-{protocol}", "row": row, "where": f"g.jsonl:{row}", "error": None, "problem": "relu"}
    return json.dumps({**values, "protocol": protocol, "verdict": verdict, "reason": reason, **more})


def test_scored_rows_are_counted_by_verdict_and_reason_and_disputed_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    lines = [
        scored_line(1, "kernelbench", "infra_error"),
        scored_line(1, "kernelbench", "correct"),  # judged again: the last line counts
        scored_line(1, "kernelward", "incorrect", "value", entry="spiky-1", err=2.0, tolerance=1e-3),
        scored_line(2, "kernelbench", "correct"),
        scored_line(2, "kernelward", "infra_error"),
        json.dumps({"id": "bad", "row": 3, "where": "g.jsonl:3", "error": "no code"}),
        '{"id": "torn',
        scored_line(4, "kernelbench", "splendid"),
    ]
    path.write_text("\n".join(lines))
    scored = read_scored(path)
    assert scored.reasons == {
        "kernelbench": {("correct", ""): 2},
        "kernelward": {("incorrect", "value"): 1, ("infra_error", ""): 1},
    }
    (disputed,) = scored.disputed
    assert disputed.verdicts == {"kernelbench": "correct", "kernelward": "incorrect (value)"}
    assert disputed.entry == "spiky-1: error 2, tolerance 0.001"
    assert (scored.unread, scored.summary.bad_rows) == (2, (("g.jsonl:3", "no code"),))


def test_a_file_that_score_did_not_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    path.write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="--scored"):
        read_scored(path)


def test_a_race_under_adversarial_schedules_is_no_nearness_of_a_protocol_that_runs_plainly(tmp_path: Path) -> None:
    made = Reported(tmp_path / "m.sqlite")
    where = (made.mutants[Reported.MISSED], made.official[0], made.environment)
    made.matrix.put_cells([Cell(*where, VARIANTS[1], 3, "race", (math.inf,), math.inf)])
    (p,) = gather(made.matrix).problems
    assert p.checkers["kernelbench"].closest(Reported.MISSED)[1] == pytest.approx(0.8)


def test_labels_say_recipe_and_shape() -> None:
    from kernelward.mutants.report.facts import entry_kind, entry_label

    entry = Entry.make("normal", params={"sigma": 4.0}, constants={"n": 33}, scale=3.0)
    row = Reported.row(entry)
    assert entry_label(row) == "normal(sigma=4.0) x 3, n=33"
    assert entry_kind(row) == "normal(sigma=4.0) x 3, changed shape"
