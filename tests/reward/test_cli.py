"""The console script: exit codes, messages, and what never happens (a traceback, exit code 1 for a fault of ours)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from kernelward.reward import cli
from kernelward.suites.errors import InputError
from typer.testing import CliRunner

PROGRAM = [sys.executable, "-c", "from kernelward.mutants.cli import main; main()"]


def program_that(raises: BaseException) -> typer.Typer:
    program = typer.Typer(cls=cli.Commands, pretty_exceptions_enable=False)

    @program.command()
    def work() -> None:
        raise raises

    @program.command()
    def rest() -> None:
        """A second command, so that the first one is called by its name."""

    return program


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("the file is wrong"), 2),
        (RuntimeError("a bug"), 3),
        (EOFError(), 3),  # typer's own answer to this one would be 1
        (BrokenPipeError(), 141),
        (OSError(32, "Broken pipe"), 141),
        (OSError(28, "No space left on device"), 3),
        (KeyError("x"), 3),
        (MemoryError(), 3),
        (AssertionError(), 3),
        (KeyboardInterrupt(), 130),
        (typer.Exit(1), 1),
        (typer.BadParameter("no such thing"), 2),
    ],
)
def test_every_exception_has_its_exit_code(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_silence_output", lambda: None)  # the runner's standard output is no pipe
    result = CliRunner().invoke(program_that(error), ["work"])
    assert result.exit_code == code


def test_an_error_of_the_user_is_one_line_and_one_of_ours_says_how_to_report_it(monkeypatch) -> None:
    monkeypatch.delenv("KERNELWARD_DEBUG", raising=False)
    theirs = CliRunner().invoke(program_that(InputError("f.yaml:3: key `x`: wrong")), ["work"])
    assert theirs.stderr == "kernelward: f.yaml:3: key `x`: wrong\n"
    ours = CliRunner().invoke(program_that(RuntimeError("first\nsecond")), ["work"])
    assert ours.stderr.startswith("kernelward: internal error: RuntimeError: first second\n")
    assert "KERNELWARD_DEBUG=1" in ours.stderr
    assert "kernelward doctor --json" in ours.stderr
    assert "Traceback" not in ours.stderr


def test_the_traceback_is_there_for_who_asks(monkeypatch) -> None:
    monkeypatch.setenv("KERNELWARD_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(program_that(RuntimeError("a bug")), ["work"]).stderr


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_bad_usage_is_exit_code_2() -> None:
    for args in (
        ["check"],
        ["check", "x"],
        ["score", "x"],
        ["nonsense"],
        ["score", "x", "--out", "y", "--workers", "0"],
    ):
        result = CliRunner().invoke(cli.app, args)
        assert result.exit_code == 2, (args, result.output)


def test_help_does_not_import_torch() -> None:
    code = "import sys; from kernelward.reward.cli import app\n"
    code += "try: app(['score', '--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.rstrip().endswith("False"), done.stdout[-300:] + done.stderr


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["score", "gone.jsonl", "--out", "OUT"], "gone.jsonl: cannot read it"),
        (["score", "COLUMNS", "--out", "OUT"], "columns found: answer, question"),
        (["score", "GOOD", "--out", "OUT", "--protocol", "kernelbanch"], "unknown protocol 'kernelbanch'"),
        (["score", "GOOD", "--out", "no/such/out.jsonl"], "none of the 1 rows can be judged"),
        (["score", "GOOD", "--out", "OUT", "--device", "cuda:7"], "device cuda:7"),
        (["doctor", "--problems", "nowhere"], "no folder of problems"),
    ],
)
def test_wrong_input_is_exit_code_2(args: list[str], part: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "columns.jsonl").write_text('{"question": 1, "answer": 2}\n')
    (tmp_path / "good.jsonl").write_text('{"problem": "p.py", "code": "x"}\n')
    names = {"OUT": "out.jsonl", "COLUMNS": "columns.jsonl", "GOOD": "good.jsonl"}
    if "cuda:7" in args:
        source = "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
        (tmp_path / "p.py").write_text(source)
    done = CliRunner().invoke(cli.app, [names.get(a, a) for a in args])
    assert done.exit_code == 2, done.output
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_interrupting_a_run_is_exit_code_130_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x + 1\n"
        "def get_inputs(): return [torch.rand(4)]\ndef get_init_inputs(): return []\n"
    )
    (tmp_path / "slow.py").write_text(
        "import time, torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        time.sleep(600)\n"
    )
    command = [*PROGRAM, "check", str(tmp_path / "slow.py"), "--problem", str(tmp_path / "p.py")]
    command += ["--protocol", "kernelbench", "--device", "cpu"]
    marker = f"TEST_RUN={tmp_path}"
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TEST_RUN": str(tmp_path)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    deadline = time.monotonic() + 200
    while len(processes_with(marker)) < 2:  # the command and its judge: the imports of the command are over
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    deadline = time.monotonic() + 60
    while left := processes_with(marker):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def processes_with(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if marker.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it ended, or belongs to another user
                continue
    return found


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen([*PROGRAM, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.wait(120)
    assert "Traceback" not in stderr
