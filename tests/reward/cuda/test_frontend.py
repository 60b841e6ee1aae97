"""What the front end captures is what torch would have compiled."""

import textwrap
from pathlib import Path

import pytest
import torch.utils.cpp_extension as cpp_extension
from kernelward.reward.cuda.frontend import (
    MAX_SOURCE_BYTES,
    ExtensionSource,
    Unsupported,
    file_source,
    inline_source,
    intercepted,
    record,
)
from kernelward.reward.sandbox.engine import CompileFailure


def captured(candidate: str) -> list[ExtensionSource]:
    sources, error = record(textwrap.dedent(candidate))
    assert error is None
    return sources


def test_sources_that_are_put_together_at_run_time_are_captured_whole() -> None:
    (source,) = captured(
        """
        from torch.utils.cpp_extension import load_inline
        TILE = 16
        body = f"#define TILE {TILE}\\n"
        parts = ["__global__ void k() {}", body + "torch::Tensor f(torch::Tensor x) { return x; }"]
        module = load_inline(name="a" + "b", cpp_sources="torch::Tensor f(torch::Tensor x);", cuda_sources=parts,
                             functions=["f"], extra_cuda_cflags=["-O3 --use_fast_math", "-DN=4"])
        """
    )
    assert source.name == "ab"
    assert source.cpp == ("torch::Tensor f(torch::Tensor x);",)
    assert source.cuda[1].startswith("#define TILE 16\ntorch::Tensor f")
    assert source.functions == ("f",)
    assert source.flags.cuda_cflags == ("-O3", "--use_fast_math", "-DN=4")
    assert source.labels == ("cpp_sources[0]", "cuda_sources[0]", "cuda_sources[1]")


def test_every_extension_of_a_candidate_is_captured_however_the_function_is_reached() -> None:
    sources = captured(
        """
        import torch
        import torch.utils.cpp_extension as ext
        from torch.utils import cpp_extension
        for i in range(2):
            ext.load_inline(f"loop{i}", "", "__global__ void k() {}", functions="f")
        cpp_extension.load_inline("dict", ["int f();"], functions={"f": "documented"})
        torch.utils.cpp_extension.load_inline("module", cpp_sources="", cuda_sources="PYBIND11_MODULE(x, m) {}")
        """
    )
    assert [s.name for s in sources] == ["loop0", "loop1", "dict", "module"]
    assert [s.functions for s in sources] == [("f",), ("f",), ("f",), ()]


def test_load_reads_the_files_and_the_headers_beside_them(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('#include "tile.cuh"\n__global__ void k() {}\n')
    (tmp_path / "main.cpp").write_text("void launch();\n")
    (tmp_path / "tile.cuh").write_text("#define TILE 16\n")
    source = file_source("files", [tmp_path / "main.cpp", str(tmp_path / "k.cu")])
    assert source.cpp == ("void launch();\n",)
    assert source.cuda[0].startswith('#include "tile.cuh"')
    assert source.headers == {"tile.cuh": "#define TILE 16\n"}
    assert source.labels == ("main.cpp", "k.cu")
    assert source.origin == "load"


def test_torchs_functions_are_put_back_and_the_candidates_exception_is_returned() -> None:
    before = cpp_extension.load_inline
    sources, error = record("from torch.utils.cpp_extension import load_inline\nload_inline('a', 'x')\n1 / 0")
    assert isinstance(error, ZeroDivisionError)
    assert len(sources) == 1
    assert cpp_extension.load_inline is before


def test_what_the_builder_returns_is_what_the_candidate_gets() -> None:
    with intercepted(lambda source: f"module {source.name}"):
        assert cpp_extension.load_inline("abc", "int f();") == "module abc"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "a b"}, "bad-extension-name"),
        ({"name": "../../etc"}, "bad-extension-name"),
        ({"name": "x" * 500}, "bad-extension-name"),
        ({"functions": ["f); system(1"]}, "bad-function-name"),
        ({"cpp_sources": "x" * (MAX_SOURCE_BYTES + 1)}, "source-too-large"),
    ],
)
def test_names_and_sizes_that_no_compiler_should_see_are_compile_failures(arguments: dict, reason: str) -> None:
    with pytest.raises(CompileFailure) as caught:
        inline_source(**({"name": "a", "cpp_sources": "int f();"} | arguments))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "arguments",
    [{"sycl_sources": "x"}, {"with_sycl": True}, {"is_python_module": False}],
)
def test_kinds_of_extension_that_are_no_cuda_module_are_unsupported(arguments: dict) -> None:
    with pytest.raises(Unsupported):
        inline_source("a", "int f();", **arguments)


def test_wrong_calls_fail_as_they_do_in_torch() -> None:
    with pytest.raises(TypeError):
        inline_source("a", "int f();", no_such_argument=1)
    with pytest.raises(ValueError, match="Expected 'functions'"):
        inline_source("a", "int f();", functions=3)


def test_a_missing_or_unreadable_source_file_is_a_compile_failure(tmp_path: Path) -> None:
    with pytest.raises(CompileFailure, match=r"gone\.cu"):
        file_source("a", [tmp_path / "gone.cu"])
    (tmp_path / "bytes.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(CompileFailure, match="UTF-8"):
        file_source("a", [tmp_path / "bytes.cu"])
