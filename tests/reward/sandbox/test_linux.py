"""What a process that lost its parent does."""

import time
from pathlib import Path

from outliving import outlives


def test_a_process_ends_with_its_parent_also_where_that_ended_before_it_asked(tmp_path: Path) -> None:
    started = time.monotonic()
    assert not outlives(tmp_path / "late", "late", "kernelward.reward.sandbox.linux:end_with")
    assert not outlives(tmp_path / "early", "early", "kernelward.reward.sandbox.linux:end_with")
    assert time.monotonic() - started < 45
