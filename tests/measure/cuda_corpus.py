"""Measure the CUDA emulator on folders of public KernelBench solutions: which build, run, and agree with the reference.

    python tests/measure/cuda_corpus.py FOLDER ... --half even --stage build --out rows.jsonl
    python tests/measure/cuda_corpus.py FOLDER ... --half even --stage run --problems KernelBench --out rows.jsonl
    python tests/measure/cuda_corpus.py FOLDER ... --half all --stage read

`read` asks only whether torch's build of the two units would refuse a file (`reward.cuda.torch_units`): nothing runs.

Candidates run in the sandbox only. Rows are appended file by file, and files that `--out` has already are skipped, so
a run that was cut short goes on where it stopped. A file whose runs need more than `--file-seconds` counts as too large
for the emulator at this shape. Files are split in halves by the parity of their SHA-256: one to build on, one to
measure on. Validity is what a real compiler recorded (`eval_results.json`, `raw_data.json` beside the files) and,
without a record, NVRTC's opinion of the device code.
"""

import argparse
import ast
import collections
import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from kernelward.reward.cuda.device_code import device_program, instantiations
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported
from kernelward.reward.cuda.nvrtc import nvrtc
from kernelward.reward.cuda.split import split
from kernelward.reward.cuda.torch_units import check_units
from kernelward.reward.sandbox.engine import CompileFailure, variants
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import OutputSpec, Zygote
from kernelward.suites.compare import flatten_outputs
from kernelward.suites.problem import LoadedProblem, Problem, find_problem, load_problem

MODE = "cuda-emulator"
SEED = 7
MAX_ELEMENTS = 1 << 20
SHRINK_S = 10  # CPU seconds for finding a small shape that a problem runs at


@dataclass
class Row:
    """What was found about one file."""

    file: str
    sha: str
    problem: str | None = None
    recorded: bool | None = None
    compiled: bool | None = None
    nvrtc: str = ""
    build: str = ""
    cause: str = ""
    build_seconds: float = 0.0
    run: str = ""
    shape: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)


def files(folders: list[Path], half: str) -> Iterator[tuple[Path, str]]:
    """Distinct candidate files with `load_inline` CUDA, of one half."""
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            data = path.read_bytes()
            sha = hashlib.sha256(data).hexdigest()
            parity = "odd" if int(sha, 16) % 2 else "even"
            if sha in seen or b"__global__" not in data or b"ModelNew" not in data or half not in (parity, "all"):
                continue
            seen.add(sha)
            yield path, sha


def records(folder: Path) -> dict[str, tuple[str | None, bool | None, bool | None]]:
    """File stem -> (problem id, compiled, correct) as recorded on a GPU."""
    found: dict[str, tuple[str | None, bool | None, bool | None]] = {}
    for path in folder.rglob("eval_results.json"):
        for candidate in path.parent.glob("level_*_problem_*_kernel.py"):
            level, number = re.findall(r"level_(\d+)_problem_(\d+)_", candidate.name)[0]
            result = json.loads(path.read_text()).get(number) or {}
            result = result[0] if isinstance(result, list) else result  # a list of samples, of which file 0 is there
            found[str(candidate)] = (f"level{level}/{number}", result.get("compiled"), result.get("correctness"))
    for path in (*folder.rglob("raw_data.json"), *folder.parent.glob("raw_data.json")):
        for item in json.loads(path.read_text()):
            level, number = int(item["level"]), int(item["problem_id"]) + 1
            own = path.parent / "problems" / f"l{level}_p{number}.py"
            for candidate in folder.rglob(f"{item['file']}.py"):
                found[str(candidate)] = (str(own) if own.exists() else f"level{level}/{number}", True, True)
    return found


def sources(text: str) -> list[ExtensionSource]:
    """Extensions of a candidate, from its syntax alone (nothing is executed): literals, names, `+`."""
    names: dict[str, Any] = {}

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [value(item) for item in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return value(node.left) + value(node.right)
        raise KeyError(type(node).__name__)

    def many(item: Any) -> tuple[str, ...]:
        return () if item is None else (item,) if isinstance(item, str) else tuple(item)

    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                names[node.targets[0].id] = value(node.value)
            except (KeyError, TypeError):
                continue
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "load_inline":
            keys = ("name", "cpp_sources", "cuda_sources", "functions")
            given = {k.arg: k.value for k in node.keywords} | dict(zip(keys, node.args, strict=False))
            try:
                parts = {k: many(value(given[k])) for k in keys[1:] if k in given}
            except (KeyError, TypeError):
                continue
            cpp, cuda = parts.get("cpp_sources", ()), parts.get("cuda_sources", ())
            labels = tuple(f"source[{i}]" for i in range(len(cpp) + len(cuda)))
            functions = tuple(dict.fromkeys(parts.get("functions", ())))
            found.append(ExtensionSource("extension", cpp, cuda, functions, labels=labels))
    return found


def device_validity(text: str) -> str:
    """`valid`, or what NVRTC says, or why it could not be asked."""
    try:
        extensions = sources(text)
    except SyntaxError:
        return "python: syntax error"
    if not extensions:
        return "unjudged: sources are not literals"
    for extension in extensions:
        try:
            parts = split(extension)
            nvrtc().compile(device_program(extension, parts, "sm_90", instantiations(parts)))
        except CompileFailure as failure:
            errors = re.findall(r"error: .*", str(failure))
            return f"invalid: {(errors or [str(failure)])[0][:200]}"
        except Unsupported as gap:
            return f"unjudged: {gap}"[:200]
    return "valid"


@cache
def shrunken(problem: Problem) -> LoadedProblem:
    """The problem with its integer constants halved until they are small: shapes change, divisibility mostly stays.

    Raises:
        ValueError: it runs at no small shape, or not within `SHRINK_S`.
    """
    deadline = time.process_time() + SHRINK_S
    reason: Exception | None = None
    for limit in (12, 24, 48, 96, 160, 512):
        if time.process_time() > deadline:
            break
        changes = {}
        for name, value in problem.constants.items():
            small = value
            while isinstance(value, int) and not isinstance(value, bool) and small > limit:
                small //= 2
            if small != value:
                changes[name] = small
        try:
            loaded = load_problem(problem, changes)
            init = loaded.init_inputs(SEED, "cpu")
            model = loaded.build_model(init, SEED, "cpu")
            inputs = loaded.own_draw(SEED, "cpu")
            if sum(x.numel() for x in inputs if isinstance(x, torch.Tensor)) > MAX_ELEMENTS:
                raise ValueError("too large for the emulator")
            with torch.no_grad():
                model(*inputs)
            return loaded
        except Exception as error:  # this limit breaks a shape the model relies on
            reason = error
    raise ValueError(f"{problem.id} runs at no small shape: {reason}")


def judge(session: Any, problem: Problem, row: Row, strict: bool, seconds: float) -> None:
    """Run at a shrunken shape under every variant and hold the outputs against the reference in float64.

    Args:
        seconds: for all variants together; what is left out is no verdict (`too-large`).
    """
    loaded = shrunken(problem)
    init = loaded.init_inputs(SEED, "cpu")
    model = loaded.build_model(init, SEED, "cpu")
    torch.manual_seed(SEED)
    inputs = loaded.own_draw(SEED, "cpu")
    with torch.no_grad():
        outputs = flatten_outputs(model(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]))
        double = model.double()
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        truths = flatten_outputs(double(*wide))
    if any(t.is_floating_point() and t.square().mean().sqrt() < 1e-6 for t in truths):
        raise ValueError("the reference is zero at this shape")
    specs = [OutputSpec(tuple(o.shape), o.dtype) for o in outputs]
    session.build(init, {k: v.float() if v.is_floating_point() else v for k, v in model.state_dict().items()}, SEED)
    row.shape = "; ".join(str(list(x.shape)) if isinstance(x, torch.Tensor) else str(x) for x in inputs)
    verdicts = set()
    begun = time.perf_counter()
    for variant in variants(MODE, strict):
        started = time.perf_counter()
        if started - begun > seconds:
            row.run = "too-large"
            return
        try:
            reply = session.run(inputs, specs, SEED, variant)
            err = max(float(_error(y, t)) for y, t in zip(reply.outputs, truths, strict=True))
            outcome = "ok" if err < 1e-3 else "value"
            findings = [f["code"] for f in reply.findings]
            row.cause = "; ".join(f"{f['code']}: {f['message']}" for f in reply.findings)[:900] or row.cause
            took = reply.seconds
        except ChildFailure as failure:
            outcome, err, findings = f"{failure.kind}:{failure.reason}", None, []
            took = time.perf_counter() - started
            row.cause = failure.message[:600]
            if not failure.alive:
                row.runs.append({"outcome": outcome})
                verdicts.add(outcome)
                break
        row.runs.append({"outcome": outcome, "err": err, "findings": findings, "ms": 1000 * took})
        verdicts.add(outcome)
    row.run = verdicts.pop() if len(verdicts) == 1 else "mixed: " + ", ".join(sorted(verdicts))


def _error(y: torch.Tensor, truth: torch.Tensor) -> float:
    if not truth.is_floating_point():
        return 0.0 if torch.equal(y.to(truth.dtype), truth) else float("inf")
    scale = truth.abs() + truth.square().mean().sqrt().clamp_min(1e-12)
    err = ((y.double() - truth).abs() / scale).max().item() if truth.numel() else 0.0
    return err if err == err else float("inf")


def read(path: Path, row: Row) -> None:
    """Whether torch's build would refuse a file for what one unit hides; nothing is compiled."""
    try:
        found = sources(path.read_text(errors="replace"))
    except (SyntaxError, KeyError, TypeError, AttributeError) as error:
        row.build, row.cause = "unread", f"{type(error).__name__}: {error}"[:300]
        return
    row.build = "let pass" if found else "unread"
    try:
        for extension in found:
            check_units(extension)
    except CompileFailure as failure:
        row.build, row.cause = "refused", str(failure)


def measure(zygote: Zygote, path: Path, row: Row, arguments: argparse.Namespace) -> None:
    """Fill a row."""
    text = path.read_text(errors="replace")
    if not arguments.no_nvrtc:
        row.nvrtc = device_validity(text)
    with zygote.spawn(Limits(load_s=60, build_s=60, run_s=arguments.seconds)) as session:
        started = time.perf_counter()
        try:
            session.load(text)
            row.build = "ok"
        except ChildFailure as failure:
            row.build = f"{failure.kind}:{failure.reason}"
            row.cause = failure.message[:600]
            return
        finally:
            row.build_seconds = time.perf_counter() - started
        level = re.search(r"\bl(?:evel)?(\d)[/_]", row.problem or "")
        if arguments.stage == "run" and row.problem is not None and level and level.group(1) in arguments.levels:
            try:
                problem = find_problem(row.problem, arguments.problems)
                judge(session, problem, row, not arguments.plain, arguments.file_seconds)
            except ChildFailure as failure:
                row.run, row.cause = f"{failure.kind}:{failure.reason}", failure.message[:600]
            except Exception as error:  # a problem that cannot be shrunk is not the candidate's fault
                row.run, row.cause = "problem", f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    """Measure and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--half", choices=("even", "odd", "all"), default="even")
    parser.add_argument("--stage", choices=("read", "build", "run"), default="build")
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--no-nvrtc", action="store_true")
    parser.add_argument("--recorded-only", action="store_true", help="only files recorded as correct")
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--file-seconds", type=float, default=40.0)
    parser.add_argument("--levels", default="12", help="levels to run; level 3 takes minutes to shrink")
    parser.add_argument("--match", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, tuple[str | None, bool | None, bool | None]] = {}
    for folder in arguments.folders:
        known |= records(folder)
    rows: list[Row] = []
    done: set[str] = set()
    if arguments.out and arguments.out.exists():
        rows = [Row(**json.loads(line)) for line in arguments.out.read_text().splitlines()]
        done = {row.sha for row in rows}
    with Zygote(MODE) as zygote:
        for index, (path, sha) in enumerate(files(arguments.folders, arguments.half)):
            problem, compiled, recorded = known.get(str(path), (None, None, None))
            if (
                index % arguments.every
                or (arguments.recorded_only and not recorded)
                or arguments.match not in str(path)
                or sha in done
            ):
                continue
            row = Row(str(path), sha, problem, recorded, compiled)
            if arguments.stage == "read":
                read(path, row)
            else:
                measure(zygote, path, row, arguments)
            rows.append(row)
            if arguments.out:
                with arguments.out.open("a") as out:
                    out.write(json.dumps(asdict(row)) + "\n")
            if len(rows) >= arguments.limit:
                break
    print("files", len(rows))
    for name in ("nvrtc", "build", "run"):
        counts = collections.Counter(str(getattr(row, name)).split(":")[0] for row in rows)
        print(name, dict(counts.most_common()))
    if arguments.stage == "read":
        by_record = collections.Counter((row.compiled, row.build) for row in rows)
        for (compiled, found), count in sorted(by_record.items(), key=str):
            print(f"compiled on record: {compiled}; {found}: {count}")
    seconds = sorted(row.build_seconds for row in rows if row.build == "ok")
    if seconds:
        print(f"build seconds: median {seconds[len(seconds) // 2]:.2f}, 90 % {seconds[int(0.9 * len(seconds))]:.2f}")


if __name__ == "__main__":
    main()
