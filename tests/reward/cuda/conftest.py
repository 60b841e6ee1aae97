"""One toolchain for all tests of the emulator: made once per machine and version of the headers."""

import pytest
import torch
from kernelward.reward.cuda.emulator_build import Toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Ready to build."""
    torch.set_num_threads(1)
    return Toolchain.prepare()
