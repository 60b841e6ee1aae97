"""One toolchain for all tests of the emulator: made once per machine and version of the headers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import HEAD
from kernelward.reward.cuda.emulator import EmulatedModule
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.frontend import ExtensionSource


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """Ready to build."""
    torch.set_num_threads(1)
    return Toolchain.prepare()


@pytest.fixture
def build(toolchain: Toolchain, tmp_path: Path) -> Any:
    """Compile one CUDA source with an exported function `f`."""

    def make(cuda: str, functions: tuple[str, ...] = ("f",), cpp: tuple[str, ...] = ()) -> EmulatedModule:
        return EmulatedModule.create(
            ExtensionSource("extension", cpp, (HEAD + cuda,), functions, origin="load"), toolchain, tmp_path
        )

    return make
