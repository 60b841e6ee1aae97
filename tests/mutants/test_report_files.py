"""What `kernelward report` writes: a page that fetches nothing and runs no text of its data, JSON, Markdown."""

import html
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kernelward.mutants.cli import main
from kernelward.mutants.matrix_schema import Cell, MutantRow, SubstrateRow
from kernelward.mutants.report.command import ReportOptions, run_report
from kernelward.mutants.report.facts import gather
from kernelward.mutants.report.markdown import escape
from kernelward.mutants.report.sources import Sources
from kernelward.mutants.report.stryker import stryker_report
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from reported import HOSTILE, Reported
from small_matrix import SmallMatrix

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="the page is opened in Chromium, and there is none on the path")


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def history_line(step: int, detected: int) -> str:
    families = {"<b>indexing</b>": {"detected": detected, "witnessed": 40}}
    return json.dumps({"time": 1e9 + step, "step": step, "families": families})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that one run writes, from a matrix, scored generations and a history with hostile texts."""
    folder = tmp_path_factory.mktemp("report")
    made = Reported(folder / "m.sqlite", problem=f"hostile {HOSTILE}")
    made.matrix.close()
    (folder / "history.jsonl").write_text(history_line(0, 30) + "\n" + history_line(50, 39) + "\n")
    line = {"id": "1", "row": 1, "where": HOSTILE, "error": None, "protocol": "kernelbench", "problem": HOSTILE}
    scored = [line | {"verdict": "correct", "reason": "", "entry": None},
              line | {"id": "2", "protocol": "kernelward", "verdict": "incorrect", "reason": HOSTILE, "entry": HOSTILE,
                      "err": "inf", "tolerance": 1e-3}]  # fmt: skip
    (folder / "scored.jsonl").write_text("\n".join(map(json.dumps, scored)))
    options = ReportOptions(
        matrix=folder / "m.sqlite",
        out=folder / "out" / "report.html",
        stryker=folder / "stryker.json",
        markdown=folder / "report.md",
        scored=folder / "scored.jsonl",
    )
    assert run_report(options) == 0
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "out" / "report.html").read_text(encoding="utf-8"))


def test_no_text_of_the_data_becomes_an_element(page: Page) -> None:
    assert page.of("img") == []
    assert {s.get("type") for s in page.of("script")} == {None, "text/plain", "application/json"}
    assert sum(s.get("type") is None for s in page.of("script")) == 1
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_the_page_fetches_nothing(page: Page) -> None:
    links = [v for _, attributes in page.tags for k, v in attributes.items() if k in ("href", "src", "action")]
    assert links
    assert all(link and link.startswith("#") for link in links)
    assert page.of("link") == page.of("iframe") == []
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_says_without_a_script_what_is_missed_and_what_would_catch_it(page: Page) -> None:
    text = re.sub(r"\s+", " ", " ".join(page.texts))
    assert "kernelbench 2 of 5" in text
    assert "spiky, declared shape catches 2" in text
    titles = (
        "Detected, by family",
        "What inputs add",
        "Correct kernels",
        "Coverage over training",
        "Scored generations",
    )
    assert [title for title in titles if title not in text] == []
    assert "0.42" in text  # how near a correct kernel came
    assert "zeros pass <b>it</b>" in text  # what the clean run took out
    assert "fails 1 entries <i>here</i>" in text


def test_tables_have_headers_and_what_scrolls_can_be_reached_by_keyboard(page: Page) -> None:
    assert all(th.get("scope") in ("col", "row") for th in page.of("th"))
    scrolling = [d for d in page.of("div") if d.get("class") == "scroll"]
    assert scrolling
    assert all(d.get("tabindex") == "0" and d.get("aria-label") for d in scrolling)
    assert all(s.get("aria-hidden") == "true" or s.get("aria-label") for s in page.of("svg"))


def test_a_later_report_of_the_same_matrix_is_the_same(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "report.html"
    run_report(ReportOptions(folder / "m.sqlite", again, scored=folder / "scored.jsonl"))
    assert again.read_bytes() == (folder / "out" / "report.html").read_bytes()


@pytest.fixture(scope="module")
def stryker(folder: Path) -> dict:
    return json.loads((folder / "stryker.json").read_text())


def test_stryker_states(stryker: dict) -> None:
    assert re.fullmatch(r"2(\.\d+)*", stryker["schemaVersion"])
    (name,) = [n for n in stryker["files"] if "odd" not in n]
    found = [m["status"] for m in stryker["files"][name]["mutants"]]
    # the suite of three entries misses neither of the first two; crashes are kills
    assert found == ["Killed", "Killed", "Killed", "NoCoverage", "Pending", "Timeout", "Killed",
                     "CompileError", "Ignored", "RuntimeError", "Pending"]  # fmt: skip
    (odd,) = [m for n, f in stryker["files"].items() if "odd" in n for m in f["mutants"]]
    assert (odd["status"], odd["statusReason"]) == ("Ignored", "its substrate is quarantined")


def test_stryker_survivors_and_their_tests(tmp_path: Path) -> None:
    facts = gather(Reported(tmp_path / "m.sqlite").matrix)
    report = stryker_report(facts, Sources(), "kernelbench")
    (tests,) = [t["tests"] for t in report["testFiles"].values()]
    ids = {t["id"] for t in tests}
    mutants = {m["description"]: m for f in report["files"].values() for m in f["mutants"]}
    missed = mutants["indexing: site MISSED"]
    assert missed["status"] == "Survived"
    assert "0.8" in missed["statusReason"]
    (by,) = missed["coveredBy"]
    assert by.startswith("softmax/spiky-")
    assert all(set(m.get("coveredBy", ())) | set(m.get("killedBy", ())) <= ids for m in mutants.values())


def test_stryker_fields_are_those_of_the_schema(stryker: dict) -> None:
    states = {"Killed", "Survived", "NoCoverage", "CompileError", "RuntimeError", "Timeout", "Ignored", "Pending"}
    assert {"schemaVersion", "thresholds", "files"} <= stryker.keys()
    assert all(isinstance(stryker["thresholds"][side], int) for side in ("high", "low"))
    for file in stryker["files"].values():
        assert file.keys() == {"language", "source", "mutants"}
        lines = file["source"].split("\n")
        for mutant in file["mutants"]:
            assert {"id", "mutatorName", "location", "status"} <= mutant.keys()
            assert mutant["status"] in states
            place = mutant["location"]
            assert (place["start"]["line"], place["start"]["column"]) <= (place["end"]["line"], place["end"]["column"])
            assert 1 <= place["start"]["line"] <= place["end"]["line"] <= len(lines)
            assert place["start"]["column"] >= 1


def test_markdown_shows_survivors_and_nothing_of_the_data_is_markup(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| kernelbench | 2 of 5 |" in text
    assert "0.8 x allowed" in text
    assert "Coverage at step 50: 97.50 % (39 of 40)" in text
    assert "<script" not in text
    assert "<img" not in text
    assert "@all" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    by_table = [line.count("|") for line in rows if "site MISSED" in line]
    assert set(by_table) == {6}
    assert "kernelward replay" not in text  # such a problem's mutants have ids that are none


def test_markdown_is_escaped_to_what_it_was() -> None:
    assert html.unescape(escape("a|b `c` <d> [e](https://f) @g #1")) == "a|b `c` <d> [e](https://f) @g #1"
    assert "https://" not in escape("https://x")
    assert escape("a\n\n# b") == "a &#35; b"


def test_scored_generations_need_no_matrix(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_report(ReportOptions(scored=folder / "scored.jsonl", markdown=tmp_path / "r.md")) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "uncalibrated" in text
    assert 'id="missed"' not in text
    assert "| kernelbench | 1 of 1 |" in (tmp_path / "r.md").read_text()
    with pytest.raises(InputError, match="no kill matrix"):
        run_report(ReportOptions(scored=folder / "scored.jsonl", matrix=tmp_path / "none.sqlite"))
    with pytest.raises(InputError, match="--stryker"):
        run_report(ReportOptions(scored=folder / "scored.jsonl", stryker=tmp_path / "s.json"))


def test_a_report_that_cannot_be_written_leaves_the_old_one_and_no_draft(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match="cannot write the report"):
        run_report(ReportOptions(folder / "m.sqlite", tmp_path / "report.html"))
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "r.html"
    monkeypatch.setattr("sys.argv", ["kernelward", "report", "--matrix", str(folder / "m.sqlite"), "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert f"{out}: 7 mutants of 1 problems, 2 points of training" in capsys.readouterr().out.replace("\n", "")


def in_chromium(page: Path, profile: Path, fragment: str = "") -> str:
    """The page's elements after its script has run."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
               "--virtual-time-budget=20000", "--dump-dom", f"{page.as_uri()}{fragment}"]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@browser
def test_a_browser_lists_survivors_and_shows_hostile_texts_as_texts(folder: Path, tmp_path: Path) -> None:
    shown = Page(in_chromium(folder / "out" / "report.html", tmp_path, "#problem-0"))
    text = " ".join(shown.texts)
    assert "owned" not in shown.texts[: shown.texts.index("kernelward report") + 1]
    assert shown.of("img") == []
    assert "site MISSED" in text
    assert "0.8 of what it allows" in text
    assert "onerror=alert(1)>\\u202e|`@all`" in text  # a mutant's detail, in the section of its problem
    assert "kernelward replay" not in text
    assert any("7 mutants by 8 entries" in (c.get("aria-label") or "") for c in shown.of("canvas"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page and its Markdown of a matrix without hostile texts."""
    folder = tmp_path_factory.mktemp("honest")
    Reported(folder / "m.sqlite", problem="relu").matrix.close()
    options = ReportOptions(folder / "m.sqlite", folder / "report.html", markdown=folder / "report.md")
    assert run_report(options) == 0
    return folder


def replays(folder: Path) -> re.Pattern[str]:
    return re.compile(rf"kernelward replay relu-0000000\d \w+-\w{{12}} --device cpu --matrix {folder}/m\.sqlite")


def test_markdown_has_a_command_for_every_survivor_that_it_lists(honest: Path) -> None:
    lines = (honest / "report.md").read_text().splitlines()
    listed = [line for line in lines if line.startswith("| lt2le")]
    assert sum(bool(replays(honest).fullmatch(line)) for line in lines) == len(listed) >= 2


@browser
def test_a_browser_shows_a_survivor_with_the_command_that_reproduces_it(honest: Path, tmp_path: Path) -> None:
    shown = Page(in_chromium(honest / "report.html", tmp_path))
    assert any(replays(honest).fullmatch(text) for text in shown.texts)


def ten_thousand(path: Path) -> None:
    """Ten problems of a thousand mutants each, every one shown by at least one of six entries or by none."""
    generators = ("normal", "spiky", "negative", "offset", "ramp", "ties")
    for number in range(10):
        made = SmallMatrix(path, mutants=0, entries=[Entry.make(g) for g in generators], problem=f"problem {number}")
        substrate = made.matrix.add_substrate(
            SubstrateRow(f"hash {number}", f"cuda/kernel{number}", "cuda", "tiled", made.problem, "admitted")
        )
        rows = [
            MutantRow(
                f"{number:08x}{i:08x}", substrate, f"operator{i % 40}", "indexing", i + 1, f"`a{i}` -> `b`", "ready"
            )
            for i in range(1000)
        ]
        cells = []
        for i, id in enumerate(made.matrix.add_mutants(rows)):
            for at, entry in enumerate(made.entries):
                err = 1e-2 * (i % 97 + 1) if i % 7 <= at else 1e-6 * (i % 89 + 1)
                outcome = "value" if err > made.tolerance else "pass"
                cells.append(Cell(id, entry, made.environment, "strict", 3, outcome, (err,), err))  # type: ignore[arg-type]
        made.matrix.put_cells(cells)
        made.matrix.close()


def test_ten_thousand_mutants_make_a_small_page_that_opens_fast(tmp_path: Path) -> None:
    ten_thousand(tmp_path / "m.sqlite")
    out = tmp_path / "report.html"
    started = time.monotonic()
    run_report(ReportOptions(tmp_path / "m.sqlite", out))
    assert time.monotonic() - started < 120  # 5 s on an idle core
    assert out.stat().st_size < 3 * 2**20
    if CHROMIUM is not None:
        ready = re.search(r'data-ready="(\d+)"', in_chromium(out, tmp_path / "profile"))
        assert ready is not None
        assert int(ready[1]) < 10_000  # milliseconds; about 600 on a busy machine


def test_a_history_beside_a_delta_is_another_machine_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Reported(tmp_path / "m.sqlite", problem="relu")
    made.matrix.export_delta(tmp_path / "m.delta")
    made.matrix.close()
    (tmp_path / "history.jsonl").write_text(history_line(0, 30) + "\n" + history_line(50, 39) + "\n")
    pages = []
    for source in ("m.sqlite", "m.delta"):
        assert run_report(ReportOptions(tmp_path / source, tmp_path / "report.html")) == 0
        pages.append("points" in capsys.readouterr().out)
    assert pages == [True, False]
