"""Protocols as data: the checkers' own inputs, order, flags and tolerances, and errors that a user can act on."""

from pathlib import Path

import pytest
import torch
from kernelward.suites.draw import draw_entry
from kernelward.suites.entry import Entry
from kernelward.suites.errors import InputError
from kernelward.suites.problem import problem_from_source
from kernelward.suites.protocol import AllClose, ProtocolSpec, list_protocols, load_protocol
from kernelward.suites.yamlnode import Node

PROBLEM = problem_from_source(
    """
import torch

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, 3)

    def forward(self, x, labels):
        return self.linear(x)

def get_inputs():
    return [torch.rand(4, 5), torch.randint(0, 3, (4,))]

def get_init_inputs():
    return [5]
"""
)
MINIMAL = """\
name: mine
entries:
  - {generator: own}
comparison: truth
"""


def trial_seeds() -> list[int]:
    torch.manual_seed(42)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(5)]


def own_inputs(seed: int, count: int = 1) -> list[list[torch.Tensor]]:
    torch.manual_seed(seed)
    return [[torch.rand(4, 5), torch.randint(0, 3, (4,))] for _ in range(count)]


def test_the_default_protocol_comes_first_and_uses_the_suite_against_truth() -> None:
    names = list_protocols()
    assert names[0] == "kernelward"
    assert set(names) >= {
        "kernelbench",
        "kernelbench-head",
        "kernelbench-verified",
        "kernelbench-verified-1e-2",
        "fuzz",
    }
    ours = load_protocol("kernelward")
    assert (ours.uses_suite, ours.comparison, ours.order) == (True, "truth", "candidate-first")


@pytest.mark.parametrize("name", list_protocols())
def test_every_shipped_protocol_is_named_like_its_file_and_describes_itself(name: str) -> None:
    spec = load_protocol(name)
    assert spec.name == name
    assert len(spec.description) > 40


@pytest.mark.parametrize("name", ["kernelbench", "kernelbench-head"])
def test_kernelbench_protocols_draw_the_five_inputs_of_its_checker(name: str) -> None:
    entries = load_protocol(name).entries
    assert len(entries) == 5
    for entry, seed in zip(entries, trial_seeds(), strict=True):
        assert isinstance(entry, Entry)
        drawn = draw_entry(PROBLEM, entry, seed=987654321)  # the secret seed plays no part
        assert all(torch.equal(a, b) for a, b in zip(drawn.inputs, own_inputs(seed)[0], strict=True))


@pytest.mark.parametrize("name", ["kernelbench-verified", "kernelbench-verified-1e-2"])
def test_verified_inputs_are_successive_scaled_draws_after_the_fifth_trial(name: str) -> None:
    entries = load_protocol(name).entries
    expected = own_inputs(trial_seeds()[4], count=4)
    for entry, (x, labels), factor in zip(entries, expected, (1.0, 3.0, 0.01, -1.0), strict=True):
        assert isinstance(entry, Entry)
        drawn = draw_entry(PROBLEM, entry, seed=1)
        assert torch.equal(drawn.inputs[0], x * factor)
        assert torch.equal(drawn.inputs[1], labels)


@pytest.mark.parametrize(
    ("name", "fp32", "half", "casts"),
    [
        ("kernelbench", 1e-2, 1e-2, False),
        ("kernelbench-head", 1e-4, 1e-2, True),
        ("kernelbench-verified", 1e-3, 1e-2, True),
        ("kernelbench-verified-1e-2", 1e-2, 1e-2, True),
        ("fuzz", 1e-2, 1e-2, False),
    ],
)
def test_official_protocols_state_tolerance_order_and_flags(name: str, fp32: float, half: float, casts: bool) -> None:
    spec = load_protocol(name)
    assert isinstance(spec.comparison, AllClose)
    assert spec.comparison.bounds("float32") == (fp32, fp32)
    assert spec.comparison.bounds("bfloat16") == (half, half)
    assert spec.order == "reference-first"
    assert (spec.matmul_tf32, spec.cudnn_tf32) == (False, True)  # torch's defaults
    assert spec.cast_integers is casts
    assert (spec.check_inputs, spec.repeat, spec.adversarial) == (False, False, False)


def test_torch_still_has_the_default_flags_that_the_official_protocols_state() -> None:
    assert torch.backends.cudnn.allow_tf32 is True
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_fuzz_multiplies_each_of_three_draws_by_a_factor_of_its_own() -> None:
    factors = []
    for entry, seed in zip(load_protocol("fuzz").entries, trial_seeds(), strict=False):
        assert isinstance(entry, Entry)
        ratio = draw_entry(PROBLEM, entry, seed=1).inputs[0] / own_inputs(seed)[0][0]
        factor = float(ratio.mean())
        torch.testing.assert_close(ratio, torch.full_like(ratio, factor))
        factors.append(factor)
    assert len(set(factors)) == 3
    assert all(1e-2 <= factor <= 1e2 for factor in factors)


def test_the_hash_follows_what_decides_and_not_the_name_or_the_description() -> None:
    def read(text: str) -> ProtocolSpec:
        return ProtocolSpec.from_node(Node.parse(text, "p.yaml"))

    base = read(MINIMAL)
    assert read(MINIMAL.replace("mine", "yours") + "description: other words\n").hash == base.hash
    assert read(MINIMAL + "repeat: false\n").hash != base.hash
    assert read(MINIMAL.replace("own}", "own, scale: 2.0}")).hash != base.hash


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        (MINIMAL + "ordr: reference-first\n", 5, ["`ordr`", "Did you mean `order`", "comparison"]),
        (MINIMAL + "order: first\n", 5, ["`order`", "'first'", "candidate-first", "reference-first"]),
        (MINIMAL.replace("truth", "exact"), 4, ["`comparison`", "'exact'", "truth"]),
        (MINIMAL.replace("truth", "{allclose: {atol: small, rtol: 1e-2}}"), 4, ["comparison.allclose.atol", "number"]),
        (MINIMAL.replace("truth", "{allclose: {atol: 1e-2}}"), 4, ["comparison.allclose", "`rtol`"]),
        (MINIMAL.replace("truth", "{allclose: {atol: -1, rtol: 1e-2}}"), 4, ["below the minimum"]),
        (MINIMAL.replace("own}", "own, drow: 1}"), 3, ["entries[0].drow", "Did you mean `draw`"]),
        (MINIMAL.replace("own}", "own, draw: -1}"), 3, ["entries[0].draw", "below the minimum"]),
        (MINIMAL.replace("own}", "own, dtype: float8}"), 3, ["entries[0].dtype", "bfloat16"]),
        (MINIMAL + "repeat: 3\n", 5, ["`repeat`", "true or false", "'3'"]),
        (MINIMAL + "name: again\n", 5, ["`name`", "twice"]),
        ("name: mine\nentries: []\ncomparison: truth\n", 2, ["at least one entry"]),
        ("name: mine\nentries: suit\ncomparison: truth\n", 2, ["'suit'", "suite"]),
        ("name: mine\nentries: suite\n", 1, ["`comparison`"]),
        ("name: mine\nentries: suite\ncomparison: truth\nentry_defaults: {draw: 1}\n", 4, ["entry_defaults"]),
        ("name: [mine\n", 2, ["not valid YAML"]),
        ("- name\n", 1, ["expected a mapping", "a list"]),
    ],
)
def test_errors_name_file_line_and_key_and_what_is_allowed(
    text: str, line: int, parts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_protocol(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: "), message
    for part in parts:
        assert part in message


def test_a_number_written_without_a_point_is_still_a_number(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(MINIMAL.replace("truth", "{allclose: {atol: 1e-4, rtol: 1e-4}}"))  # YAML 1.1 reads 1e-4 as text
    assert load_protocol(path).comparison == AllClose(1e-4, 1e-4)


def test_an_unknown_protocol_lists_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown protocol 'kernelbanch'.*kernelward.*kernelbench-head"):
        load_protocol("kernelbanch")


def test_missing_empty_and_non_text_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: cannot read it"):
        load_protocol(tmp_path / "gone.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    with pytest.raises(InputError, match=r"empty\.yaml: the file is empty"):
        load_protocol(tmp_path / "empty.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(InputError, match=r"latin\.yaml: not UTF-8"):
        load_protocol(tmp_path / "latin.yaml")
