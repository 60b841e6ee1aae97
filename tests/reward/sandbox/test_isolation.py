"""The layers: found out honestly, put in force, left out one by one, and usable by an ordinary user."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernelward.reward.sandbox import confinement, isolation, landlock, process, seccomp
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.isolation import LAYERS, IsolationReport
from kernelward.reward.sandbox.landlock import READ, READ_DIR, Rule
from kernelward.reward.sandbox.limits import Limits
from kernelward.reward.sandbox.session import Zygote
from kernelward.reward.sandbox.zygote import INHERITED

NAMESPACES = LAYERS[:5]

LOOK = """
import os, torch

def layers():
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "links": {n: os.readlink(f"/proc/self/ns/{n}") for n in ("user", "pid", "mnt", "net", "ipc")},
        "NoNewPrivs": status["NoNewPrivs"],
        "Seccomp": status["Seccomp"],
        "CapEff": status["CapEff"], "CapPrm": status["CapPrm"], "CapBnd": status["CapBnd"],
        "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "writable": [m.split()[4] for m in open("/proc/self/mountinfo") if "rw" in m.split()[5].split(",")],
    }

class ModelNew:
    def __call__(self, x):
        import json
        print("LAYERS", json.dumps(layers()))
        return x + 1
"""


def look(zygote: Zygote, limits: Limits | None = None) -> dict:
    """What a candidate sees of its own confinement."""
    with zygote.spawn(limits or Limits(output_bytes=64 << 10)) as child:
        child.load(LOOK)
        child.build([])
        child.run([torch.ones(1)], [OutputSpec((1,), torch.float32)])
        line = next(line for line in child.output().splitlines() if line.startswith("LAYERS"))
    return json.loads(line.removeprefix("LAYERS "))


def test_the_report_is_what_a_candidate_finds(zygote: Zygote) -> None:
    report = zygote.report
    seen = look(zygote)
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in seen["links"]}
    kinds = {"user": "user", "pid": "pid", "mnt": "mount", "net": "network", "ipc": "ipc"}
    for short, name in kinds.items():
        assert (seen["links"][short] != own[short]) == (f"{name}-namespace" in report)
    assert (seen["NoNewPrivs"] == "1") == ("no-new-privileges" in report)
    assert (seen["Seccomp"] == "2") == ("seccomp" in report)
    if "no-capabilities" in report:
        assert {seen[name].strip("0") for name in ("CapEff", "CapPrm", "CapBnd")} == {""}
    assert not any(report.missing.get(layer) for layer in report.layers)
    assert set(report.layers) | set(report.missing) == set(LAYERS)


def test_only_the_channel_and_the_output_are_open(zygote: Zygote) -> None:
    # Standard input, output and error, the channel, the buffers of its parameters, its inputs and its outputs, and the
    # one that lists them.
    assert look(zygote)["descriptors"] == list(range(8))


def test_the_environment_is_scrubbed(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert "secret" not in process.environment("torch", "cpu").values()
    seen = look(zygote)
    caches = {
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "CUDA_CACHE_PATH",
        "XDG_CACHE_HOME",
    }
    plain = {"HOME", "TMPDIR", "USER", "LOGNAME", "PYTHONDONTWRITEBYTECODE", "TORCHINDUCTOR_COMPILE_THREADS"}
    assert set(seen["environment"]) <= {*INHERITED, *process.ONE_THREAD, *caches, *plain}
    assert {"HOME", "TMPDIR", "TRITON_CACHE_DIR"} <= set(seen["environment"])
    assert {seen["environment"]["HOME"], seen["environment"]["TMPDIR"]} == {seen["cwd"]}


def test_only_its_own_mounts_are_writable(zygote: Zygote) -> None:
    if "mount-namespace" not in zygote.report or zygote.report.notes:
        pytest.skip("this machine cannot make mounts read-only")
    assert set(look(zygote)["writable"]) <= {isolation.PRIVATE_MOUNT, "/proc"}


@pytest.mark.parametrize(
    "without",
    [("user-namespace",), ("pid-namespace",), LAYERS],
    ids=lambda names: f"{len(names)} from {names[0]}",
)
def test_candidates_run_with_layers_left_out(without: tuple[str, ...]) -> None:
    with Zygote("torch", without=without) as zygote:
        assert not set(without) & set(zygote.report.layers)
        assert all(zygote.report.missing[layer] for layer in without)
        with zygote.spawn() as child:
            child.load("class ModelNew:\n    def __call__(self, x):\n        return x + 1\n")
            child.build([])
            assert child.run([torch.ones(1)], [OutputSpec((1,), torch.float32)]).outputs[0] == 2


def test_strict_refuses_what_best_effort_reports() -> None:
    with Zygote("torch", isolation="strict", without=("landlock",)) as zygote:
        with pytest.raises(ChildFailure) as caught:
            zygote.spawn()
        assert (caught.value.kind, caught.value.reason) == ("infra_error", "isolation")
        assert "landlock" in caught.value.message
    assert isolation.refusal(IsolationReport(LAYERS), "strict") == ""
    assert isolation.refusal(IsolationReport(()), "best-effort") == ""


def test_the_probe_reports_every_layer() -> None:
    report = isolation.probe()
    assert set(report.layers) | set(report.missing) == set(LAYERS)
    assert IsolationReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


ORDINARY = """
import os, sys
from kernelward.reward.sandbox import isolation, linux
isolation.enter_user_namespace()
os.execv(sys.executable, [sys.executable, "-c", '''
import torch
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.session import Zygote
from kernelward.reward.sandbox.zygote import INHERITED
capabilities = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
with Zygote("torch") as zygote, zygote.spawn() as child:
    child.load("class ModelNew:\\\\n    def __call__(self, x):\\\\n        return x + 1\\\\n")
    child.build([])
    print(capabilities, child.run([torch.ones(1)], [OutputSpec((1,), torch.float32)]).outputs, zygote.report.layers)
'''])
"""


def test_an_ordinary_user_can_judge() -> None:
    """A judge without any capability: what a user that is not root has."""
    if "user-namespace" not in isolation.probe():
        pytest.skip("needs a user namespace to stop being root in")
    done = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True, timeout=200, check=False)
    assert "CapEff:\\t0000000000000000" in done.stdout, done.stderr
    assert "tensor([2.])" in done.stdout, done.stderr
    assert "landlock" in done.stdout or isolation.probe().landlock_abi == 0


# -- the file system view ----------------------------------------------------------------------------------------------


def test_a_hidden_branch_is_left_out_and_its_siblings_are_not(tmp_path: Path) -> None:
    for name in ("packages/torch/lib", "packages/kernelward/suites", "packages/numpy"):
        (tmp_path / name).mkdir(parents=True)
    rules = landlock.expand(tmp_path, READ, [tmp_path / "packages" / "kernelward"])
    assert rules == [
        Rule(str(tmp_path), READ_DIR),
        Rule(str(tmp_path / "packages"), READ_DIR),
        Rule(str(tmp_path / "packages/numpy"), READ),
        Rule(str(tmp_path / "packages/torch"), READ),
    ]
    assert landlock.expand(tmp_path / "packages/kernelward/suites", READ, [tmp_path / "packages/kernelward"]) == []


def test_nothing_of_this_project_is_readable() -> None:
    rooms = confinement.room_folders()
    assert {room.name for room in rooms} >= {"suites", "reward", "mutants", "configs"}
    rules = confinement.readable("cpu", True, [])
    for rule in rules:
        path = Path(os.path.realpath(rule.path))
        for room in rooms:
            assert path != room
            assert room not in path.parents
            if path in room.parents:
                assert rule.access == READ_DIR


def test_the_interpreter_stays_readable_where_folders_are_covered() -> None:
    covered = confinement.overmounted([])
    for needed in (sys.executable, torch.__file__, os.__file__):
        real = Path(os.path.realpath(needed))
        assert not any(folder in real.parents for folder in covered)


# -- the system-call filter --------------------------------------------------------------------------------------------


def run_filter(program: bytes, number: int, argument: int = 0, arch: int = 0xC000003E) -> int:
    """A classic BPF interpreter, as far as seccomp programs use it; what the filter returns."""
    import struct

    data = struct.pack("IIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    code = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator = position = 0
    while True:
        operation, on_true, on_false, value = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        elif operation == 0x06:
            return value
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            position += on_true if test else on_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Column of the tables and the architecture's number."""
    monkeypatch.setattr(seccomp.platform, "machine", lambda: request.param)
    return {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}[request.param]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("own_pid", [None, 4711])
def test_the_filter_denies_exactly_its_table(machine: tuple[int, int], device: str, own_pid: int | None) -> None:
    column, arch = machine
    program = seccomp.program(device, own_pid)
    denied = {numbers[column] for numbers in seccomp.DENIED.values()} - {-1}
    denied |= {seccomp.CLONE3[column]}
    if device == "cpu":
        denied |= {n[column] for n in seccomp.DENIED_ON_CPU.values()} | {seccomp.SOCKET[column]}
    if own_pid is not None:
        denied |= {n[column] for n in seccomp.SIGNALS.values()}
    conditional = {seccomp.CLONE[column], seccomp.SOCKET[column], seccomp.KILL[column], seccomp.TGKILL[column]}
    for number in set(range(470)) - conditional | denied:
        allowed = run_filter(program, number, arch=arch) == 0x7FFF0000
        assert allowed == (number not in denied), number
    assert run_filter(program, 0, arch=0x40000003) != 0x7FFF0000  # 32-bit calls


def test_the_filter_looks_at_first_arguments(machine: tuple[int, int]) -> None:
    column, arch = machine
    allow = 0x7FFF0000

    def verdict(name: tuple[int, int], argument: int, device: str = "cuda", own: int | None = 4711) -> bool:
        return run_filter(seccomp.program(device, own), name[column], argument, arch) == allow

    assert verdict(seccomp.CLONE, 0x3D0F00)  # a thread
    assert verdict(seccomp.CLONE, 17)  # a fork
    assert not verdict(seccomp.CLONE, 0x10000000 | 17)  # a user namespace
    assert verdict(seccomp.SOCKET, 1)
    assert not verdict(seccomp.SOCKET, 2)
    assert not verdict(seccomp.SOCKET, 1, device="cpu")
    for kill in (seccomp.KILL, seccomp.TGKILL):
        assert verdict(kill, 4711)
        assert not verdict(kill, 4712)
        assert not verdict(kill, 0xFFFFFFFF)
        assert verdict(kill, 4712, own=None)


def test_signals_stay_inside_without_namespaces_and_without_landlock() -> None:
    """The last wall: the filter alone keeps a candidate from killing its supervisor."""
    source = """
import os, signal
class ModelNew:
    def __call__(self, x):
        for pid in (os.getppid(), -1, 1):
            try:
                os.kill(pid, signal.SIGKILL)
                print("LEAK", pid)
            except PermissionError:
                pass
        return x + 1
"""
    with Zygote("torch", without=(*NAMESPACES, "landlock")) as zygote:
        if "seccomp" not in zygote.report:
            pytest.skip("this kernel has no system-call filters")
        with zygote.spawn() as child:
            child.load(source)
            child.build([])
            assert child.run([torch.ones(1)], [OutputSpec((1,), torch.float32)]).outputs[0] == 2
            assert child.output() == ""


def test_compilers_are_readable_wherever_they_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bin", "libexec", "home"):
        (tmp_path / "tools" / folder).mkdir(parents=True)
    compiler = tmp_path / "tools" / "bin" / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    readable = {rule.path for rule in confinement.readable("cpu", own_proc=True, extra=())}
    assert {str(compiler), str(compiler.parent), str(tmp_path / "tools" / "libexec")} <= readable
    assert not any(path.startswith(str(tmp_path / "tools" / "home")) for path in readable)
    assert str(tmp_path / "tools") not in readable
