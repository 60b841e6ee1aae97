"""Python's parser is asked by one thread at a time, everywhere."""

import ast
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelward.suites import python_syntax

ROOT = Path(__file__).resolve().parents[2]


def test_two_threads_never_parse_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, inside, most = ast.parse, threading.Semaphore(1), []

    def slowly(source: str) -> ast.Module:
        most.append(inside.acquire(blocking=False))
        time.sleep(0.02)
        inside.release()
        return plain(source)

    monkeypatch.setattr(python_syntax, "ast", SimpleNamespace(parse=slowly))  # pytest parses as well
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(python_syntax.parse, ["x = 1"] * 8))
    assert [ast.unparse(tree) for tree in found] == ["x = 1"] * 8
    assert most == [True] * 8


def test_a_source_that_does_not_parse_leaves_the_parser_free() -> None:
    for _ in range(2):
        with pytest.raises(SyntaxError):
            python_syntax.parse("x =")
    assert python_syntax.parse("x = 1").body


def test_no_module_of_ours_asks_the_parser_itself() -> None:
    own = Path(python_syntax.__file__).name
    modules = [p for room in ("suites", "reward", "mutants") for p in (ROOT / room).rglob("*.py") if p.name != own]
    assert len(modules) > 200
    assert [str(p.relative_to(ROOT)) for p in modules if re.search(r"\bast\.parse\(", p.read_text())] == []
