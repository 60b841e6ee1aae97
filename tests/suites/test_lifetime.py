"""What a process does when whoever started it ends."""

import os
import time
from pathlib import Path

import pytest
from outliving import outlives


def test_a_process_ends_with_its_parent_also_where_that_ended_before_it_asked(tmp_path: Path) -> None:
    started = time.monotonic()
    assert not outlives(tmp_path / "late", "late", "kernelward.suites.lifetime:end_with_process")
    assert not outlives(tmp_path / "early", "early", "kernelward.suites.lifetime:end_with_process")
    assert time.monotonic() - started < 45


def test_it_ends_as_well_where_the_kernel_cannot_wait_for_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_kernel.py").write_text(
        "import os\nfrom kernelward.suites import lifetime\n"
        "def refuse(pid):\n    raise OSError('not on this kernel')\n"
        "os.pidfd_open = refuse\nlifetime._LOOK_S = 0.05\nends = lifetime.end_with_process\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert not outlives(tmp_path / "early", "early", "old_kernel:ends")
