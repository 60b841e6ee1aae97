"""What the child makes of an exception: memory of the device that ran out is told apart from the candidate's errors."""

import pytest
import torch
from kernelward.reward.sandbox.child import failure

NVML = (
    "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
    '"c10/cuda/CUDACachingAllocator.cpp":1135, please report a bug to PyTorch.'
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB."), "device-memory"),
        (RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"), "device-memory"),
        (RuntimeError(NVML), "device-memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda-error"),
        (RuntimeError("this kernel is out of memory of its past"), "refused"),
        (MemoryError(), "memory-limit"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "memory-limit"),
        (SystemExit(0), "exited"),
        (KeyError("x"), "exception"),
    ],
)
def test_an_exception_gets_the_reason_that_says_whose_fault_it_is(error: BaseException, reason: str) -> None:
    assert failure(error)["reason"] == reason
