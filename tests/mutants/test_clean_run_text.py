"""What the clean run writes about a correct kernel can be read again."""

import pytest
from kernelward.mutants.clean_run import closest_of, closest_text


def test_the_largest_ratio_and_its_entry_come_back() -> None:
    text = "clean run 0123456789ab" + closest_text({"own-1": 0.25, "spiky-2": 0.4321, "ramp-3": 0.0})
    assert closest_of(text) == (0.432, "spiky-2")


@pytest.mark.parametrize(
    "detail", ["", "clean run 0123456789ab", "clean run 01: fails 1 entries, own-1 for one: error 2"]
)
def test_without_one_there_is_none(detail: str) -> None:
    assert closest_text({}) == ""
    assert closest_of(detail) is None
