"""Substrates: what can be said of every one without running it. Whether they are correct is the gate's to say."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.mutant import Substrate
from kernelward.mutants.substrates import FOLDER, list_substrates, load_substrate
from kernelward.reward.cuda.device_code import device_program, instantiations
from kernelward.reward.cuda.frontend import ExtensionSource
from kernelward.reward.cuda.gaps import emulator_gap
from kernelward.reward.cuda.nvrtc import NvrtcMissing, include_folders, nvrtc
from kernelward.reward.cuda.split import split
from kernelward.reward.screen import ScreenPolicy, screen
from kernelward.suites.errors import InputError
from kernelward.suites.problem import find_problem

PROBLEMS = Path(__file__).resolve().parents[2] / "examples" / "problems"
ALL = list_substrates()
OURS = [s for s in ALL if s.name.startswith(("cuda/", "triton/"))]
CUDA = [s for s in ALL if s.backend == "cuda"]

MINIMAL = '"""A line.\n\nproblem: relu\nstyle: naive\n"""\n\nimport triton\n\n\nclass ModelNew:\n    pass\n'


def compilers_at_hand() -> bool:
    try:
        nvrtc()
    except NvrtcMissing:
        return False
    return bool(include_folders())


def extension_of(substrate: Substrate) -> ExtensionSource:
    """What `load_inline` gets, read off the file: nothing of it runs."""
    texts = CudaTree(substrate.source).texts
    cpp = tuple(text.text for text in texts if text.role == "cpp")
    cuda = tuple(text.text for text in texts if text.role == "cuda")
    calls = (node for node in ast.walk(ast.parse(substrate.source)) if isinstance(node, ast.Call))
    arguments = {k.arg: k.value for call in calls if ast.unparse(call.func) == "load_inline" for k in call.keywords}
    functions = tuple(ast.literal_eval(arguments["functions"]))
    labels = tuple(f"source {i}" for i in range(len(cpp) + len(cuda)))
    return ExtensionSource("substrate", cpp, cuda, functions, labels=labels)


def named(substrates: list[Substrate]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("substrate", substrates, ids=lambda s: s.name)


@named(ALL)
def test_no_substrate_is_refused_by_the_screen(substrate: Substrate) -> None:
    assert [finding for finding in screen(substrate.source) if finding.hard] == []


@named([s for s in OURS if s.backend == "cuda"])
def test_every_cuda_substrate_of_ours_computes_with_its_own_kernels(substrate: Substrate) -> None:
    assert screen(substrate.source, ScreenPolicy(torch_ops="deny")) == []


@named(OURS)
def test_every_substrate_of_ours_solves_a_problem_of_ours(substrate: Substrate) -> None:
    assert find_problem(substrate.problem, PROBLEMS).id == substrate.problem
    assert substrate.name.startswith(f"{substrate.backend}/")


@named([s for s in OURS if s.backend == "cuda"])
def test_the_grammar_understands_every_cuda_substrate_of_ours(substrate: Substrate) -> None:
    assert CudaTree(substrate.source).errors == 0


@named(CUDA)
def test_every_cuda_substrate_is_within_what_the_emulator_runs(substrate: Substrate) -> None:
    assert emulator_gap(substrate.source) is None


@pytest.mark.skipif(not compilers_at_hand(), reason="needs NVRTC and CUDA's headers (pip install kernelward[gpu])")
@named(CUDA)
def test_the_device_code_of_every_cuda_substrate_compiles(substrate: Substrate) -> None:
    extension = extension_of(substrate)
    parts = split(extension)
    assert parts.kernels
    assert nvrtc().compile(device_program(extension, parts, "sm_90", instantiations(parts))).image


def test_frequent_problems_are_solved_in_several_styles() -> None:
    for backend, least in (("cuda", 24), ("triton", 10)):
        problems = Counter(s.problem for s in OURS if s.backend == backend)
        assert len(problems) >= least
    assert len({(s.problem, s.backend, s.style) for s in OURS}) >= 0.9 * len(OURS)
    styles = {s.style for s in OURS if s.problem == "matmul" and s.backend == "cuda"}
    assert {"naive", "tiled", "register-tiled", "split-k", "double-buffered", "tensor-core"} <= styles


def test_names_and_sources_are_unique_and_sorted() -> None:
    names = [s.name for s in ALL]
    assert names == sorted(set(names))
    assert len({s.hash for s in ALL}) == len(ALL)


def test_a_file_of_the_package_has_the_same_name_alone() -> None:
    first = OURS[0]
    assert first.path is not None
    assert load_substrate(first.path) == first
    assert first.path.is_relative_to(FOLDER)


def test_a_substrate_elsewhere_is_named_by_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "relu__mine.py"
    file.parent.mkdir()
    file.write_text(MINIMAL)
    assert load_substrate(file).name == "mine/relu__mine"
    assert [s.name for s in list_substrates(tmp_path)] == ["mine/relu__mine"]
    assert load_substrate(file).style == "naive"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL.replace("style: naive\n", ""), "no line `style: ...`"),
        (MINIMAL.replace("problem: relu\n", "problem:\n"), "no line `problem: ...`"),
        (MINIMAL.replace("import triton", "import math"), "neither a CUDA nor a Triton kernel"),
        (MINIMAL + "(", "not valid Python"),
    ],
)
def test_a_file_that_is_no_substrate_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_substrate(file)


def test_what_cannot_be_read_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_substrate(tmp_path / "absent.py")
    with pytest.raises(InputError, match="no folder"):
        list_substrates(tmp_path / "absent")
