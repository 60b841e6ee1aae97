"""Warm zygotes that the sandbox's tests share."""

from collections.abc import Iterator

import pytest
from kernelward.reward.sandbox.session import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The mode `torch` on the CPU, behind everything this machine offers."""
    with Zygote("torch") as made:
        made.report  # noqa: B018 - wait until it is warm
        yield made
