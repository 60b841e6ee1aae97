"""Every operator breaks a kernel that ships, and what it makes of one is code that compilers take."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.mutant import Mutant, Substrate, generate
from kernelward.mutants.operators import OPERATORS, operators_for
from kernelward.mutants.substrates import list_substrates
from kernelward.reward.cuda.device_code import device_program, instantiations
from kernelward.reward.cuda.engine_compile import ARCHITECTURE
from kernelward.reward.cuda.engine_gpu import gpu_host_compiler
from kernelward.reward.cuda.frontend import ExtensionSource, Unsupported
from kernelward.reward.cuda.host_code import host_units
from kernelward.reward.cuda.nvrtc import NvrtcMissing, include_folders, nvrtc
from kernelward.reward.cuda.split import split
from kernelward.reward.cuda.toolchain import PreparedHost, run_tool
from kernelward.reward.sandbox.engine import CompileFailure

OURS = [s for s in list_substrates() if s.name.startswith(("cuda/", "triton/"))]
TRIES = 3


@pytest.fixture(scope="module")
def mutants() -> Mapping[str, list[Mutant]]:
    """Mutants by operator, in the order of the substrates' names."""
    found: dict[str, list[Mutant]] = {name: [] for name in OPERATORS}
    for substrate in OURS:
        for mutant in generate(substrate):
            found[mutant.operator].append(mutant)
    return MappingProxyType(found)


def test_every_operator_breaks_a_kernel_of_ours(mutants: Mapping[str, list[Mutant]]) -> None:
    assert [name for name, found in mutants.items() if not found] == []


def test_triton_operators_break_kernels_of_several_kinds(mutants: Mapping[str, list[Mutant]]) -> None:
    few = [o.name for o in operators_for("triton") if len({m.substrate for m in mutants[o.name]}) < 2]
    assert few == []


# ---- compiling -------------------------------------------------------------------------------------------------------


def compiler() -> PreparedHost | None:
    try:
        nvrtc()
        return gpu_host_compiler().prepare() if include_folders() else None
    except (NvrtcMissing, Unsupported, CompileFailure):
        return None


def extension_of(source: str) -> ExtensionSource:
    """What `load_inline` gets, read off the file: nothing of a mutant runs here."""
    texts = CudaTree(source).texts
    cpp = tuple(text.text for text in texts if text.role == "cpp")
    cuda = tuple(text.text for text in texts if text.role == "cuda")
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    arguments = {k.arg: k.value for n in calls if ast.unparse(n.func) == "load_inline" for k in n.keywords}
    labels = tuple(f"source {i}" for i in range(len(cpp) + len(cuda)))
    return ExtensionSource("mutant", cpp, cuda, tuple(ast.literal_eval(arguments["functions"])), labels=labels)


class Compilers:
    """Device code to a cubin, host code through the front end of g++; a text that was taken before is taken again."""

    def __init__(self, host: PreparedHost, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.taken: set[str] = set()
        headers = (f"--pch-dir={folder}", "--pch", "--pch-messages=false", "--pch-verbose=false")
        self.options = headers if nvrtc().version >= (12, 8) else ()

    def complaint(self, source: str) -> str:
        """The first error, or nothing where both compilers take the candidate."""
        extension = extension_of(source)
        try:
            parts = split(extension)
            program = device_program(extension, parts, ARCHITECTURE, instantiations(parts))
            if program.source not in self.taken:
                nvrtc().compile(replace(program, options=(*program.options, *self.options)))
            units = host_units(extension, parts)
        except CompileFailure as failure:
            return str(failure)
        text = "".join(f"#undef {k}\n#define {k} {v}\n" for k, v in units.defines.items()) + units.together[0]
        if text not in self.taken:
            command = [*self.host.compiler.base(), "-include", str(self.host.folder / "pch.h"), "-fsyntax-only"]
            done = run_tool([*command, "-x", "c++", "-"], self.folder, text=text)
            if done.status != 0:
                return done.errors
        self.taken |= {program.source, text}
        return ""


def few_substrates(mutants: Mapping[str, list[Mutant]]) -> Iterator[tuple[str, list[Mutant]]]:
    """Per CUDA operator its first few mutants, those of substrates that many operators break first: texts recur."""
    wanted = [o.name for o in operators_for("cuda")]
    places: dict[str, set[str]] = {}
    for name in wanted:
        for mutant in mutants[name]:
            # Headers of cooperative groups take seconds.
            if mutant.substrate != "cuda/l1norm__cooperative":
                places.setdefault(mutant.substrate, set()).add(name)
    left, order = set(wanted), []
    while left and (best := max(places, key=lambda s: (len(places[s] & left), s))) and places[best] & left:
        order.append(best)
        left -= places[best]
    for name in wanted:
        ranked = [m for s in order for m in mutants[name] if m.substrate == s]
        yield name, (ranked or mutants[name])[:TRIES]


def test_a_mutant_of_every_cuda_operator_compiles(mutants: Mapping[str, list[Mutant]], tmp_path: Path) -> None:
    host = compiler()
    if host is None:
        pytest.skip("needs NVRTC, CUDA's headers and g++ (pip install kernelward[gpu])")
    compilers = Compilers(host, tmp_path)
    broken = {}
    for name, some in few_substrates(mutants):
        complaints: list[str] = []
        for mutant in some:
            complaints.append(compilers.complaint(mutant.source))
            if not complaints[-1]:
                break
        if complaints[-1]:
            broken[name] = complaints
    assert broken == {}


def test_what_does_not_compile_is_noticed(tmp_path: Path) -> None:
    host = compiler()
    if host is None:
        pytest.skip("needs NVRTC, CUDA's headers and g++ (pip install kernelward[gpu])")
    substrate: Substrate = next(s for s in OURS if s.name == "cuda/gelu__naive")
    compilers = Compilers(host, tmp_path)
    assert compilers.complaint(substrate.source) == ""
    assert "undeclared" in compilers.complaint(substrate.source.replace("0.5f", "undeclared"))
    assert "nothing" in compilers.complaint(substrate.source.replace("return y;", "return nothing;"))


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_the_python_of_every_mutant_parses(mutants: Mapping[str, list[Mutant]], backend: str) -> None:
    for name, found in mutants.items():
        if OPERATORS[name].backend == backend:
            for mutant in found[:TRIES]:
                compile(mutant.source, mutant.id, "exec", dont_inherit=True)
