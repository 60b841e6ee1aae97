"""Rows to score: a JSONL file of generations, or a KernelBench runs folder with what its own checker recorded."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..suites.errors import InputError
from ..suites.hashing import stable_hash
from .completion import extract_code

PROBLEM_COLUMNS = ("problem", "reference")
SOURCE_COLUMNS = ("completion", "code")
_NAMED = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_OLDER = re.compile(r"problem_(\d+)_kernel\.py")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a KernelBench run recorded about a sample.

    Attributes:
        outcome: `correct`, `incorrect`, `compile_error`, `runtime_error`, `timeout`, `out_of_memory`, `infrastructure`.
        detail: the recorded message, shortened.
    """

    outcome: str
    detail: str = ""

    @property
    def decided(self) -> bool:
        """False where the record says nothing about the kernel: no memory left, wrong architecture, a lock."""
        return self.outcome not in ("out_of_memory", "infrastructure")


@dataclass(frozen=True, slots=True)
class Row:
    """One generation.

    Attributes:
        number: line of the JSONL file, or position in the folder, from 1.
        where: the line or file, for messages.
        content: hash of everything in the row, and of which of several identical rows it is.
        problem: id or path; or None, and `reference` holds the problem's source.
        code: the candidate's source.
        columns: what is carried through to the output.
        error: why the row cannot be judged; then the other fields may be empty.
    """

    number: int
    where: str
    content: str
    problem: str | None = None
    reference: str | None = None
    code: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    recorded: Recorded | None = None
    error: str | None = None


def read_rows(source: Path) -> list[Row]:
    """All rows of a JSONL file or a runs folder, in order.

    Raises:
        InputError: nothing can be read at all, or no row has the columns; single bad rows carry their `error` instead.
    """
    if source.is_dir():
        return list(_read_folder(source))
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise InputError(f"{source}: cannot read it: {error.strerror}") from error
    parsed = [(n, _parse_line(line)) for n, line in enumerate(raw.split(b"\n"), 1) if line.strip()]
    if not parsed:
        raise InputError(f"{source}: the file is empty; it needs one JSON object per line")
    _check_columns(source, [value for _, value in parsed])
    seen: dict[str, int] = {}
    return [_json_row(source, number, value, seen) for number, value in parsed]


def _parse_line(line: bytes) -> dict[str, Any] | str:
    """The object on a line, or what is wrong with it."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 text (byte {error.start} of the line)"
    except (json.JSONDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else f"expected a JSON object, found a {type(value).__name__}"


def _check_columns(source: Path, values: Sequence[dict[str, Any] | str]) -> None:
    objects = [value for value in values if isinstance(value, dict)]
    if not objects:
        raise InputError(f"{source}: no line is a JSON object (line 1: {values[0]})")
    found = sorted({key for value in objects for key in value})
    for wanted in (PROBLEM_COLUMNS, SOURCE_COLUMNS):
        if not set(wanted) & set(found):
            names = " or ".join(f"`{name}`" for name in wanted)
            raise InputError(f"{source}: no row has a column {names}; columns found: {', '.join(found) or 'none'}")


def _json_row(source: Path, number: int, value: dict[str, Any] | str, seen: dict[str, int]) -> Row:
    digest = stable_hash(value)
    content = stable_hash([digest, seen.get(digest, 0)])
    seen[digest] = seen.get(digest, 0) + 1
    where = f"{source}:{number}"
    if isinstance(value, str):
        return Row(number, where, content, error=value)
    columns = {k: v for k, v in value.items() if k not in (*PROBLEM_COLUMNS, *SOURCE_COLUMNS)}
    problem, reference = value.get("problem"), value.get("reference")
    code, completion = value.get("code"), value.get("completion")
    error = None
    if problem is None and reference is None:
        error = "no `problem` and no `reference` in this row"
    elif not isinstance(problem if problem is not None else reference, str):
        error = "`problem` and `reference` must be text"
    elif code is None and completion is None:
        error = "no `completion` and no `code` in this row"
    elif code is not None and not isinstance(code, str):
        error = f"`code` must be text, found {type(code).__name__}"
    elif code is None and not _is_completion(completion):
        error = "`completion` must be text or a list of chat messages with `content`"
    if error is not None:
        return Row(number, where, content, problem if isinstance(problem, str) else None, columns=columns, error=error)
    text = code if code is not None else extract_code(completion)
    return Row(number, where, content, problem, reference if problem is None else None, text, columns)


def _is_completion(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(isinstance(message, dict) and "content" in message for message in value)


# ---------------------------------------------------------------- runs folders


def _read_folder(folder: Path) -> Iterator[Row]:
    files = sorted(folder.glob("*_kernel.py"))
    if not files:
        runs = sorted(child.name for child in folder.iterdir() if child.is_dir() and any(child.glob("*_kernel.py")))
        hint = f"; give one of its runs: {', '.join(runs)}" if runs else ""
        raise InputError(f"{folder}: no level_L_problem_P_sample_S_kernel.py in this folder{hint}")
    records = _read_records(folder)
    samples = sorted((*_sample_of(file, folder), file) for file in files)
    for number, (level, problem, sample, file) in enumerate(samples, 1):
        reference = f"level{level}/{problem}"
        columns = {"level": level, "problem_id": problem, "sample_id": sample}
        recorded = records.get((problem, sample))
        try:
            code, error = file.read_text(encoding="utf-8"), None
        except (UnicodeDecodeError, OSError) as fault:
            code, error = "", f"cannot read the kernel: {fault}"
        content = stable_hash([reference, sample, code, error])
        yield Row(number, str(file), content, reference, None, code, columns, recorded, error)


def _sample_of(file: Path, folder: Path) -> tuple[int, int, int]:
    if match := _NAMED.fullmatch(file.name):
        level, problem, sample = (int(part) for part in match.groups())
        return level, problem, sample
    if match := _OLDER.fullmatch(file.name):
        return _level_of(folder), int(match[1]), 0
    raise InputError(f"{file}: expected a name such as level_1_problem_23_sample_0_kernel.py")


def _level_of(folder: Path) -> int:
    """The level of a run whose file names do not say it."""
    details, config = folder / "detailed_results.json", folder / "generation_config.yaml"
    found: Any = None
    if details.is_file():
        found = _load_json(details).get("run_info", {}).get("level")
    if found is None and config.is_file():
        try:
            found = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("level")
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError) as error:
            raise InputError(f"{config}: cannot read the level of the run: {error}") from error
    if found is None and (match := re.search(r"level_?(\d)", folder.name)):
        found = match[1]
    if found is None:
        raise InputError(f"{folder}: neither the file names nor generation_config.yaml say which level this run is")
    return int(found)


def _load_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: cannot read the recorded results: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object of recorded results, found a {type(value).__name__}")
    return value


def _read_records(folder: Path) -> dict[tuple[int, int], Recorded]:
    """Recorded results by (problem, sample), from any of the formats that KernelBench has written."""
    found: dict[tuple[int, int], Recorded] = {}
    results, details = folder / "eval_results.json", folder / "detailed_results.json"
    if results.is_file():
        for key, value in _load_json(results).items():
            samples = value if isinstance(value, list) else [value]
            if not key.isdigit() or not all(isinstance(sample, dict) for sample in samples):
                raise InputError(f"{results}: key {key!r}: expected a problem number with one result or a list of them")
            for sample in samples:
                found[int(key), int(sample.get("sample_id", 0))] = recorded_outcome(sample)
    elif details.is_file():
        for item in _load_json(details).get("results", []):
            if isinstance(item, dict) and isinstance(item.get("eval_result"), dict):
                found[int(item["problem_id"]), int(item.get("sample_id", 0))] = recorded_outcome(item["eval_result"])
    return found


def recorded_outcome(result: Mapping[str, Any]) -> Recorded:
    """What a recorded result says about the kernel; running out of memory says nothing about it."""
    if result.get("correctness"):
        return Recorded("correct")
    metadata = result.get("metadata") or {}
    skip = ("hardware", "device", "max_difference", "avg_difference", "correctness_trials", "runtime_error_traceback")
    detail = "; ".join(f"{k}: {v}" for k, v in metadata.items() if k not in skip)
    text = detail.lower()
    if "out of memory" in text or "outofmemory" in text:
        outcome = "out_of_memory"
    elif "no kernel image" in text or "not attached" in text or "future was none" in text or "gpu_error" in metadata:
        outcome = "infrastructure"
    elif "timed out" in text or "timeout" in text:
        outcome = "timeout"
    elif "compilation_error" in metadata:
        outcome = "compile_error"
    elif "correctness_issue" in metadata or "max_difference" in metadata:
        outcome = "incorrect"
    elif {"runtime_error", "cuda_error", "other_error"} & set(metadata):
        outcome = "runtime_error"
    else:
        outcome = "incorrect" if result.get("compiled") else "compile_error"
    return Recorded(outcome, detail[:300])
