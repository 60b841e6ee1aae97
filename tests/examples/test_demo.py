"""What the README's first screen shows of `make demo` is what it shows."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def readme_table() -> dict[str, list[str]]:
    """The cells of the README's first table by candidate: `accepted`, or the verdict with its reason."""
    rows = re.findall(r"^\|(.+)\|$", (ROOT / "README.md").read_text().partition("\n## ")[0], re.MULTILINE)
    cells = [[cell.replace("*", "").replace("`", "").partition(",")[0].strip() for cell in r.split("|")] for r in rows]
    names = [row.split("|")[0].replace("`", "").strip() for row in rows]
    return {name: row[1:] for name, row in zip(names[2:], cells[2:], strict=True)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readme_shows_what_the_demonstration_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)
    spec.loader.exec_module(demo)
    results = demo.judge(demo.CASES)
    assert demo.as_expected(results)
    table = readme_table()
    twins = table.pop("their four honest twins")
    assert list(table) == [case.what for case in demo.CASES if not case.right]
    for case, row in zip(demo.CASES, results, strict=True):
        shown = [re.sub(r"\[.*?\]", "", demo.shown(verdict, case.right)) for verdict in row.values()]
        assert shown == (twins if case.right else table[case.what])
