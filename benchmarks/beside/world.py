"""A small world to train and to watch in: copies of the package, of some problems, substrates and suites in one folder,
which may be edited while processes work with them. Nothing outside of that folder is written.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelward.mutants.watch_options import WatchOptions
from kernelward.suites.entry import Entry
from kernelward.suites.problem import find_problem
from kernelward.suites.suite import Suite, SuiteEntry
from kernelward.suites.validity import Measured

from .trainer import Settings

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("configs", "suites", "reward", "mutants")
SUBSTRATES = ("cuda/relu__vec4", "cuda/softmax__online_warp", "cuda/mse_loss__two_stage")
PROBLEMS = ("relu", "softmax", "mse_loss")
RUN_KEY = "beside training"
PATIENCE_S = 900.0

Cell = tuple[int, int, int, str]
"""Mutant, entry, environment, variant."""


@dataclass(frozen=True, slots=True)
class World:
    """Where everything is.

    Attributes:
        root: the folder.
        per_substrate: mutants of each substrate.
    """

    root: Path
    per_substrate: int = 6

    @property
    def package(self) -> Path:
        """The package's copy; every process of the world imports this one."""
        return self.root / "path" / "kernelward"

    @property
    def problems(self) -> Path:
        """Folder of the problems."""
        return self.root / "problems"

    @property
    def substrates(self) -> Path:
        """Folder of the substrates."""
        return self.root / "substrates"

    @property
    def out(self) -> Path:
        """The watcher's folder."""
        return self.root / "calibration"

    @property
    def suites(self) -> Path:
        """The suites in use."""
        return self.root / "suites"

    @property
    def bank(self) -> Path:
        """Accepted kernels."""
        return self.root / "bank.sqlite"

    @property
    def store(self) -> Path:
        """Verdicts and audits of the training."""
        return self.root / "run.sqlite"

    @property
    def matrix(self) -> Path:
        """The kill matrix."""
        return self.out / "matrix.sqlite"

    def prepare(self) -> None:
        """Copy the package as it is now; the first time, copy the rest and calibrate it."""
        shutil.rmtree(self.package, ignore_errors=True)
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.package / room, ignore=shutil.ignore_patterns("__pycache__"))
        if not self.problems.is_dir():
            self.problems.mkdir()
            self.suites.mkdir()
            for name in PROBLEMS:
                shutil.copy(ROOT / "examples" / "problems" / f"{name}.py", self.problems)
            for name in SUBSTRATES:
                place = self.substrates / f"{name}.py"
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / "mutants" / "substrates" / f"{name}.py", place)
        done = self.root / "calibrated"
        if not done.exists():
            self.kernelward("calibrate", *self.measured(), "--budget", "20m", "--suites", str(self.root / "chosen"))
            self._put_suites()
            done.touch()

    def _put_suites(self) -> None:
        """Two entries for each problem, as the gate measured them: so few mutants choose no suite."""
        for name in PROBLEMS:
            problem = find_problem(str(self.problems / f"{name}.py"))
            statement = (
                "SELECT recipe, measured FROM entries WHERE admitted AND role = 'pool' "
                "AND problem = (SELECT id FROM problems WHERE hash = ?) ORDER BY id"
            )
            with closing(sqlite3.connect(f"file:{self.matrix}?mode=ro", uri=True)) as connection:
                rows = connection.execute(statement, (problem.hash,)).fetchall()
            items = [SuiteEntry(Entry.from_dict(json.loads(r)), (Measured.from_dict(json.loads(m)),)) for r, m in rows]
            declared = next(item for item in items if item.entry.declared_shape)
            ragged = next(i for i in items if i.entry.generator == "normal" and not i.entry.declared_shape)
            suite = Suite(problem.id, problem.hash, (ragged, declared))
            (self.suites / f"{name}.yaml").write_text(suite.to_yaml())

    def measured(self) -> list[str]:
        """Options of `kernelward calibrate`."""
        return [
            *("--problems", str(self.problems), "--substrates", str(self.substrates), "--out", str(self.out)),
            *("--device", "cpu", "--backend", "cuda", "--per-substrate", str(self.per_substrate)),
        ]

    def environment(self) -> dict[str, str]:
        """Of every process of the world."""
        own = {"KERNELWARD_BANK": str(self.bank), "XDG_CACHE_HOME": str(self.root / "cache")}
        return os.environ | own | {"PYTHONPATH": str(self.package.parent)}

    def start(self, arguments: Sequence[str], log: Path, **environment: str) -> "subprocess.Popen[bytes]":
        """Start Python in a session of its own, as from another terminal."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.environment() | environment,
                cwd=self.root,
                start_new_session=True,
            )

    def kernelward(self, *arguments: str, **environment: str) -> str:
        """Run a command to its end; its output.

        Raises:
            RuntimeError: it failed.
        """
        command = [sys.executable, "-c", _MAIN, *arguments]
        found = subprocess.run(
            command, env=self.environment() | environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        if found.returncode:
            said = found.stderr[-3000:]
            raise RuntimeError(f"kernelward {' '.join(arguments)}: exit code {found.returncode}\n{said}")
        return found.stdout

    def watch(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start `kernelward calibrate --watch`."""
        given = [*self.measured(), "--watch", "--suites", str(self.suites), "--bank", str(self.bank), *options]
        return self.start(["-c", _MAIN, "calibrate", *given], self.root / "watch.log")

    def watch_at_once(self, **changes: Any) -> "subprocess.Popen[bytes]":
        """The same without its low priority, for what has nothing to do with time."""
        options = WatchOptions(
            out=self.out,
            problems=(str(self.problems),),
            suites=self.suites,
            substrates=self.substrates,
            bank=self.bank,
            device="cpu",
            backends=("cuda",),
            per_substrate=self.per_substrate,
            nice=0,
        )
        return self.start(
            ["-m", "kernelward.mutants.watch", replace(options, **changes).to_json()], self.root / "watch.log"
        )

    def reward_config(self, name: str, **changes: Any) -> Path:
        """Write a configuration of the reward."""
        config = {
            "suites": str(self.suites),
            "rotate_every": 5,
            "run_key": RUN_KEY,
            "store": str(self.store),
            "judge": {"device": "cpu", "workers": 2},
            "shaping": {"brevity": {"weight": 0.5, "characters": 400}, "clamp": [-1.0, 2.0]},
            "bank": {"file": str(self.bank)},
            "audit": 0.1,
        } | changes
        place = self.root / f"{name}.yaml"
        place.write_text(json.dumps(config))  # JSON is YAML
        return place

    def train(self, config: Path, folder: Path, **changes: Any) -> "subprocess.Popen[bytes]":
        """Start or resume a training."""
        folder.mkdir(exist_ok=True)
        problems = tuple(str(self.problems / f"{name}.py") for name in PROBLEMS)
        values: dict[str, Any] = {"problems": problems, "steps": 100_000} | changes
        settings = Settings(str(folder), str(config), str(self.out), **values)
        (folder / "settings.json").write_text(json.dumps(asdict(settings)))
        script = str(Path(__file__).with_name("trainer.py"))
        return self.start([script, str(folder / "settings.json")], folder / "trainer.out")

    def published(self) -> dict[str, Any]:
        """What the watcher published last."""
        try:
            return json.loads((self.out / "coverage.json").read_text())
        except (OSError, ValueError):
            return {}

    def cells(self) -> dict[Cell, tuple[Any, ...]]:
        """All cells with what they hold."""
        with closing(sqlite3.connect(f"file:{self.matrix}?mode=ro", uri=True, timeout=30.0)) as connection:
            rows = connection.execute(
                "SELECT mutant, entry, environment, variant, seeds, class, errs, margin, seconds FROM cells"
            )
            return {row[:4]: row[4:] for row in rows}

    def ready(self) -> dict[int, str]:
        """The mutants that are counted, by row id."""
        with closing(sqlite3.connect(f"file:{self.matrix}?mode=ro", uri=True, timeout=30.0)) as connection:
            return dict(connection.execute("SELECT id, uid FROM mutants WHERE state = 'ready'"))

    def entry_ids(self) -> dict[int, str]:
        """All entries by row id."""
        with closing(sqlite3.connect(f"file:{self.matrix}?mode=ro", uri=True, timeout=30.0)) as connection:
            return dict(connection.execute("SELECT id, uid FROM entries"))


_MAIN = "from kernelward.mutants.cli import main; main()"


def lines(place: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file."""
    found = []
    for line in place.read_text().splitlines() if place.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def until(found: Callable[[], Any], what: str, *alive: "subprocess.Popen[bytes]", patience: float = PATIENCE_S) -> Any:
    """Wait for a value that is true.

    Raises:
        RuntimeError: it does not come, or a process that has to bring it ended.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        for process in alive:
            if process.poll() is not None:
                raise RuntimeError(f"waiting for {what}: process {process.args!r} ended with {process.returncode}")
        time.sleep(0.25)
    raise RuntimeError(f"waited {patience:.0f} s for {what}")


def end(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM, patience: float = 60.0) -> None:
    """End a process, whatever it takes."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with the block."""
    try:
        yield process
    finally:
        end(process)
