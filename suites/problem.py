"""Problems in the KernelBench file format: find them, parse them, load them.

A problem is trusted code: it is executed in the judge's own process. Everything wrong with it is an `InputError` that
names the file and, where there is one, the line; running out of memory is not, and stays a MemoryError.
"""

import ast
import functools
import os
import random
import re
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .constants import independent_constants, module_constants, rewrite_constants
from .errors import InputError
from .folders import PROBLEMS_VARIABLE, abbreviates, id_of_file, natural, problem_files
from .hashing import sha256_text, short
from .python_syntax import parse
from .redirect import Redirect

_REQUIRED = {
    "Model": "the reference, a torch.nn.Module",
    "get_inputs": "a function that returns the list of forward inputs",
    "get_init_inputs": "a function that returns the list of constructor arguments ([] if there are none)",
}

#: Torch's global random state belongs to the whole process: whoever seeds it and then draws holds this lock.
RNG_LOCK = threading.RLock()


@dataclass(frozen=True)
class Problem:
    """One problem file.

    Attributes:
        id: `level1/23_Softmax`, a path relative to the problems folder without `.py`, or a file's stem.
        source: the text of the file.
        path: where it was read from; None for source text that came in a dataset.
    """

    id: str
    source: str
    path: Path | None = None

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the source."""
        return sha256_text(self.source)

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The parsed source.

        Raises:
            InputError: a syntax error, with its line.
        """
        try:
            return parse(self.source)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            text = getattr(error, "msg", None) or str(error)
            raise InputError(f"{self.place}, line {line}: syntax error: {text}; fix the problem file") from error

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """Module constants by name, derived ones included."""
        return module_constants(self.tree)

    @functools.cached_property
    def independent_constants(self) -> dict[str, Any]:
        """The constants that are not computed from other constants."""
        return independent_constants(self.tree)

    @property
    def place(self) -> str:
        """What to call the problem in a message."""
        return f"problem {self.path}" if self.path else f"problem {self.id}"


def problem_from_source(source: str, id: str | None = None, path: Path | None = None) -> Problem:
    """A problem from its text.

    Args:
        source: the text of a problem file.
        id: its name; by default `source-<first digits of the hash>`.
        path: the file it was read from, for messages.

    Raises:
        InputError: the text does not parse, or binds no `Model`, `get_inputs` or `get_init_inputs` at top level.
    """
    problem = Problem(id or f"source-{short(sha256_text(source))}", source, path)
    bound = set(_top_level_names(problem.tree))
    if "*" not in bound:
        for name, meaning in _REQUIRED.items():
            if name not in bound:
                raise InputError(f"{problem.place} has no {name} at top level: define {name}, {meaning}")
    return problem


def _top_level_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (n.asname or n.name for n in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Lambda():
                pass
            case _:
                yield from _top_level_names(node)


# ---------------------------------------------------------------- finding


def find_problem(ref: str, problems: Path | None = None) -> Problem:
    """The problem that a user named.

    Args:
        ref: a file, a folder with one problem in it, or an id such as `level1/23_Softmax` or `level1/23`.
        problems: folder that ids are looked up in: a KernelBench checkout, its `KernelBench/` folder, or any folder of
            problem files. By default the folder that KERNELBENCH_DIR names.

    Raises:
        InputError: nothing, or more than one problem, goes by that name; or the file is not a problem.
    """
    if not ref.strip():
        raise InputError("no problem was named: give a file, or an id such as level1/23_Softmax")
    path = Path(ref).expanduser()
    if path.is_file():
        return _read(path, id_of_file(path))
    if path.is_dir():
        found = problem_files(path)
        if len(found) != 1:
            some = ", ".join(sorted(found)[:5]) or "no .py files"
            raise InputError(f"folder {path} holds {len(found)} problems, not one ({some}): name one of them")
        ((id, file),) = found.items()
        return _read(file, id)
    if path.suffix == ".py" and (path.is_absolute() or (problems is None and PROBLEMS_VARIABLE not in os.environ)):
        raise InputError(f"no problem file {path}: check the path")
    root = problems or (Path(os.environ[PROBLEMS_VARIABLE]) if os.environ.get(PROBLEMS_VARIABLE) else None)
    if root is None:
        raise InputError(
            f"problem {ref!r} is neither a file nor a folder; to look it up as an id, name a folder of problems "
            f"(--problems DIR, or the environment variable {PROBLEMS_VARIABLE})"
        )
    return _by_id(ref, root.expanduser())


def _by_id(ref: str, root: Path) -> Problem:
    known = problem_files(root)
    wanted = ref.removesuffix(".py").strip("/")
    if wanted in known:
        return _read(known[wanted], wanted)
    matches = sorted(id for id in known if abbreviates(wanted, id))
    if len(matches) == 1:
        return _read(known[matches[0]], matches[0])
    if matches:
        raise InputError(
            f"problem {ref!r} is ambiguous in {root}: it could be {', '.join(matches[:5])}; give the id in full"
        )
    some = ", ".join(sorted(known)[:5])
    raise InputError(
        f"no problem {ref!r} in {root}: "
        + (f"it holds {len(known)} problems ({some}, ...)" if known else "it holds no problem files")
    )


def list_problems(root: Path) -> list[Problem]:
    """All problems below a folder, by level and number, then by name.

    A `.py` file that binds no `Model` is not a problem and is left out.

    Raises:
        InputError: `root` is not a folder, or a problem file in it cannot be read or parsed.
    """
    problems = []
    for id, file in sorted(problem_files(root).items(), key=lambda item: natural(item[0])):
        text = _text(file)
        if re.search(r"\bModel\b", text):
            problems.append(problem_from_source(text, id, file))
    return problems


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read problem {path}: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"problem {path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error


def _read(path: Path, id: str) -> Problem:
    return problem_from_source(_text(path), id, path)


# ---------------------------------------------------------------- loading


def kernelbench_trial_seeds(n: int, seed: int = 42) -> list[int]:
    """The first `n` seeds that KernelBench's checker draws its inputs under, from the global seed 42 (its default).

    Computed with a generator of our own, which yields the numbers of the global CPU generator after
    `torch.manual_seed(seed)`.
    """
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(n)]


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), numpy and random; hold `RNG_LOCK` from here to the end of the draw."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():  # without one, torch.manual_seed files the call, stack trace and all, for later
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class LoadedProblem:
    """A problem's module, executed with some constants changed. Trusted code, run in the judge."""

    def __init__(self, problem: Problem, constants: Mapping[str, Any], module: types.ModuleType) -> None:
        self.problem = problem
        self.constants = dict(constants)
        self._module = module

    def init_inputs(self, seed: int, device: torch.device | str = "cpu") -> list[Any]:
        """Constructor arguments, drawn on `device` after seeding everything.

        Raises:
            InputError: `get_init_inputs` raises, or does not return a list or tuple.
        """
        return self._drawn("get_init_inputs", seed, device)

    def own_draw(self, seed: int, device: torch.device | str = "cpu", skip: int = 0) -> list[Any]:
        """What `get_inputs` returns on `device` after seeding everything and throwing away `skip` earlier draws.

        On the CPU and with a seed of `kernelbench_trial_seeds` these are the inputs KernelBench's checker draws.

        Raises:
            InputError: `get_inputs` raises, or does not return a list or tuple.
        """
        return self._drawn("get_inputs", seed, device, skip)

    def build_model(
        self,
        init_inputs: list[Any],
        seed: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        draw_device: torch.device | str | None = None,
    ) -> nn.Module:
        """The reference, constructed after seeding everything, with its floating-point state as `dtype` on `device`.

        The model stays in the mode its constructor leaves it in (training, as in KernelBench's checker).

        Args:
            init_inputs: constructor arguments, as `init_inputs` returns them.
            seed: seed of the parameters' random values.
            device: where the model ends up.
            dtype: floating-point dtype of parameters and buffers.
            draw_device: where the parameters are drawn, `device` by default; `cpu` is what KernelBench's checker does.

        Raises:
            InputError: the constructor raises, or what it makes is no torch.nn.Module.
        """
        with self._guarded("Model.__init__"), RNG_LOCK, torch.no_grad():
            seed_everything(seed)
            with torch.device(draw_device if draw_device is not None else device), Redirect(draw_device or device):
                model = self._module.Model(*init_inputs)
        if not isinstance(model, nn.Module):
            raise InputError(f"{self.problem.place}: Model makes a {type(model).__name__}, not a torch.nn.Module")
        return model.to(device=device, dtype=dtype)

    def _drawn(self, function: str, seed: int, device: torch.device | str, skip: int = 0) -> list[Any]:
        with self._guarded(function), RNG_LOCK, torch.no_grad():
            seed_everything(seed)
            with torch.device(device), Redirect(device):
                for _ in range(skip):
                    getattr(self._module, function)()
                values = getattr(self._module, function)()
        if not isinstance(values, (list, tuple)):
            raise InputError(
                f"{self.problem.place}: {function}() returns a {type(values).__name__}; it must return a list"
            )
        return list(values)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        with blame(self.problem, what, self.constants):
            yield


def load_problem(problem: Problem, constants: Mapping[str, Any] | None = None) -> LoadedProblem:
    """Execute a problem's module with some of its constants changed.

    Raises:
        InputError: an unknown constant, or the module raises while it is executed.
    """
    changes = dict(constants or {})
    tree = rewrite_constants(problem.tree, changes)
    name = f"kernelward_problem_{short(problem.hash)}"
    module = types.ModuleType(name)
    module.__file__ = str(problem.path) if problem.path else None
    with blame(problem, "the module", changes):
        code = compile(tree, _filename(problem), "exec", dont_inherit=True)
        with _registered(name, module):
            exec(code, module.__dict__)
    for required, meaning in _REQUIRED.items():
        if not callable(getattr(module, required, None)):
            raise InputError(f"{problem.place} has no {required}: define {required}, {meaning}")
    return LoadedProblem(problem, changes, module)


def _filename(problem: Problem) -> str:
    return str(problem.path) if problem.path else f"<{problem.id}>"


@contextmanager
def _registered(name: str, module: types.ModuleType) -> Iterator[None]:
    """Dataclasses look their module up in sys.modules while the class body runs."""
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before


@contextmanager
def blame(problem: Problem, what: str, constants: Mapping[str, Any]) -> Iterator[None]:
    """Turn what the problem's code raises into an InputError with its line, and lack of memory into MemoryError.

    Args:
        problem: whose code runs in the block.
        what: what runs, for the message.
        constants: changed constants, for the message.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise MemoryError(f"{problem.place}: {what} ran out of memory: {error}") from error
        if isinstance(error, ModuleNotFoundError):
            raise InputError(f"{problem.place} imports {error.name}, which is not installed: install it") from error
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == _filename(problem)]
        where = f", line {lines[-1]}" if lines else ""
        changed = f" (with {', '.join(f'{k}={v}' for k, v in constants.items())})" if constants else ""
        raise InputError(
            f"{problem.place}{where}: {what} raises {type(error).__name__}: {error}{changed}; fix the problem file"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the host or of a device, ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(
        re.search(r"not enough memory|can't allocate memory|out of memory", str(error), re.IGNORECASE)
    )


def forward(model: nn.Module, inputs: list[Any], seed: int) -> Any:
    """The model's outputs without gradients; random operators draw from `seed`."""
    with RNG_LOCK, torch.no_grad():
        seed_everything(seed)
        return model(*inputs)
