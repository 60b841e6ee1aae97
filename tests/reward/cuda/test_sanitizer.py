"""Reading compute-sanitizer's reports, and running it where there is one."""

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from kernelward.reward.cuda import sanitizer
from kernelward.reward.cuda.cache import default_root
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler
from kernelward.reward.cuda.sanitizer import SanitizerReport, find_sanitizer, parse_report, sanitize

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at shift(float *, int)+0x70 in kernelward.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7f6510c00fa0 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 4,000 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch [0x1234] in extension.so
=========
========= Invalid __shared__ read of size 4 bytes
=========     at reduce(float *)+0x120
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x400 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified" on CUDA API call to cudaMemcpy.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cudaMemcpy [0x99]
=========
========= ERROR SUMMARY: 3 errors
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at softmax(const float *, float *)+0x2a0 in kernelward.cu:19
=========     and Read access at softmax(const float *, float *)+0x310 in kernelward.cu:22 [1016 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_memory_errors_are_read_with_kernel_line_and_place() -> None:
    report = parse_report(MEMCHECK, "memcheck")
    write, read = report.errors
    assert write.kind == "Invalid __global__ write of size 4 bytes"
    assert (write.kernel, write.where) == ("shift(float *, int)", "kernelward.cu:12")
    assert "thread (31,0,0)" in write.detail
    assert "Host Frame" not in write.detail
    assert (read.kernel, read.where) == ("reduce(float *)", "")
    assert report.total == 3
    assert not report.clean


def test_an_api_error_alone_is_kept() -> None:
    text = '========= Program hit cudaErrorInvalidValue (error 1) due to "x" on CUDA API call to cudaMemcpy.\n'
    report = parse_report(text + "========= ERROR SUMMARY: 1 error\n", "memcheck")
    assert [error.kind.split(" (")[0] for error in report.errors] == ["Program hit cudaErrorInvalidValue"]


def test_races_are_read_with_both_places() -> None:
    (race,) = parse_report(RACECHECK, "racecheck").errors
    assert race.kind.startswith("Race reported between Write access")
    assert race.where == "kernelward.cu:19"
    assert "kernelward.cu:22 [1016 hazards]" in race.detail


def test_nothing_found_is_clean_and_a_tool_that_did_not_work_is_not() -> None:
    assert parse_report(CLEAN, "memcheck").clean
    for text in ("", "========= COMPUTE-SANITIZER\n", "========= Error: Failed to initialize\n"):
        report = parse_report(text, "memcheck")
        assert report.trouble
        assert not report.clean


def test_a_report_of_many_errors_is_bounded() -> None:
    block = "========= Invalid __global__ read of size 4 bytes\n=========     at k()+0x10\n=========\n"
    report = parse_report(block * 500 + "========= ERROR SUMMARY: 500 errors\n", "memcheck")
    assert len(report.errors) == 50
    assert report.total == 500


PROBLEM = """
import torch

N = 64


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""
CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline("sanitized", "torch::Tensor run(torch::Tensor x);", r"""
__global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  BARRIER;
  y[threadIdx.x + OFFSET] = tile[63 - threadIdx.x] - tile[63 - threadIdx.x] + x[threadIdx.x] + 1;
}
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  k<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), 64);
  return y;
}
""", functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''


def candidate(barrier: str = "__syncthreads()", offset: str = "0") -> str:
    return CANDIDATE.replace("BARRIER", barrier).replace("OFFSET", offset)


@pytest.mark.skipif(find_sanitizer() is not None, reason="compute-sanitizer is installed here")
def test_without_the_program_the_report_says_so_and_is_not_clean() -> None:
    report = sanitize(candidate(), PROBLEM)
    assert report == SanitizerReport("memcheck", trouble=report.trouble)
    assert "compute-sanitizer is not installed" in report.trouble


STAND_IN = """#!{python}
import os, sys

arguments = sys.argv[1:]
with open(arguments[arguments.index("--log-file") + 1], "w") as log:
    log.write("========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors\\n")
os.closerange(3, 1 << 16)
module, home = arguments[-2:]
watched = '''
import runpy, sys, torch
if not torch.cuda.is_available():
    torch.cuda.get_device_capability = lambda *args: (9, 0)
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__")
'''
os.execv(sys.executable, [sys.executable, "-P", "-c", watched, module, home])
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the tool's place that finds nothing and closes every descriptor that it inherits; its folder."""
    program = tmp_path / "tools" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_build_reaches_the_watched_process_though_the_tool_closes_its_descriptors(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_host_compiler().prepare()
    root = stand_in / "cache" / "cuda"
    root.mkdir(parents=True)
    (root / "host").symlink_to(default_root() / "host")
    monkeypatch.setenv("KERNELWARD_CACHE", str(root.parent))
    report = sanitize(candidate(), PROBLEM)
    if torch.cuda.is_available():
        assert report.clean
    else:  # only what was built is looked for a driver for
        assert "no CUDA driver on this machine" in report.trouble
    builds = [path for path in (root / "builds").iterdir() if len(path.name) == 64]
    assert [path.name for path in builds[0].iterdir() if path.stat().st_size]
    _gone(stand_in)


def _gone(folder: Path) -> None:
    """Nothing is left that was started for this folder."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(str(folder).encode() in _command(entry) for entry in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.1)
    raise AssertionError("a process of the check is still there")


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_workshop_that_does_not_start_is_trouble_and_no_finding(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = stand_in / "python"
    broken.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    report = sanitize(candidate(), PROBLEM)
    assert report == SanitizerReport("memcheck", trouble="the process that compiles did not start: no torch here")


def test_the_newest_toolkit_that_has_the_program_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "_TOOLKITS", tmp_path)
    assert find_sanitizer() is None
    for version in ("cuda-9.2", "cuda-13.0", "cuda-12.4", "cuda-13.1"):
        (tmp_path / version / "bin").mkdir(parents=True)
        if version != "cuda-13.1":
            (tmp_path / version / "bin" / "compute-sanitizer").touch()
    assert find_sanitizer() == tmp_path / "cuda-13.0" / "bin" / "compute-sanitizer"
    (tmp_path / "cuda-9.2").rename(tmp_path / "cuda")
    assert find_sanitizer() == tmp_path / "cuda" / "bin" / "compute-sanitizer"


def _worked(report: SanitizerReport) -> SanitizerReport:
    if report.trouble:
        pytest.skip(f"compute-sanitizer does not work on this machine: {report.trouble}")
    return report


@pytest.mark.gpu
@pytest.mark.slow
def test_a_write_behind_the_output_is_found(tmp_path: Path) -> None:
    assert _worked(sanitize(candidate(), PROBLEM)).clean
    report = _worked(sanitize(candidate(offset="64"), PROBLEM))
    assert any("write" in error.kind for error in report.errors)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_missing_barrier_is_found() -> None:
    assert _worked(sanitize(candidate(), PROBLEM, "racecheck")).clean
    report = _worked(sanitize(candidate(barrier="__syncwarp()"), PROBLEM, "racecheck"))
    assert any("Race" in error.kind or "hazard" in error.kind for error in report.errors)
