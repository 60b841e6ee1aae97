"""The three rooms: what may import what, and that every package folder is shipped."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("suites", "reward", "mutants")
ALLOWED = {"suites": {"suites"}, "reward": {"suites", "reward"}, "mutants": {"suites", "reward", "mutants"}}


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a module imports, whether relatively or by the installed name."""
    package = path.relative_to(ROOT).parts[:-1]
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            dotted = [alias.name.split(".") for alias in node.names]
            rooms |= {name[1] for name in dotted if name[0] == "kernelward" and len(name) > 1}
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = list(package[: len(package) - (node.level - 1)])
            target = base + (node.module.split(".") if node.module else [alias.name for alias in node.names][:1])
            rooms.add(target[0])
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kernelward":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return rooms & set(ROOMS)


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_in_the_agreed_direction(room: str) -> None:
    wrong = {str(m.relative_to(ROOT)): imported_rooms(m) - ALLOWED[room] for m in modules(room)}
    assert {name: rooms for name, rooms in wrong.items() if rooms} == {}


@pytest.mark.parametrize(
    ("line", "rooms"),
    [
        ("from ..mutants.cli import main", {"mutants"}),
        ("from kernelward.mutants import cli", {"mutants"}),
        ("import kernelward.mutants.cli", {"mutants"}),
        ("from .verdict import Verdict", {"reward"}),
        ("import torch", set()),
    ],
)
def test_the_direction_check_sees_every_form_of_import(line: str, rooms: set[str], monkeypatch, tmp_path: Path) -> None:
    module = tmp_path / "reward" / "probe.py"
    module.parent.mkdir()
    module.write_text(line)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert imported_rooms(module) == rooms


def test_every_folder_with_modules_is_a_shipped_package() -> None:
    shipped = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values())
    folders = {str(m.parent.relative_to(ROOT)) for room in (*ROOMS, "configs") for m in modules(room)}
    data = {folder for folder in folders if folder.startswith("mutants/substrates/")}  # candidates, shipped as files
    assert folders - data == shipped


@pytest.mark.parametrize("room", ROOMS)
def test_modules_inside_a_room_import_relatively(room: str) -> None:
    absolute = [
        str(m.relative_to(ROOT))
        for m in modules(room)
        for node in ast.walk(ast.parse(m.read_text()))
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("kernelward")
    ]
    assert absolute == []
