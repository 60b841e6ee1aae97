"""Reading compute-sanitizer's reports, and running it where there is one."""

from pathlib import Path

import pytest
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
