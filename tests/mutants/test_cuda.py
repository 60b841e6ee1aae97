"""What CUDA operators see of a candidate: trees, functions, variables, types, memory, loops, guards, idioms."""

from pathlib import Path

import pytest
from kernelward.mutants.cuda import CudaTree
from kernelward.mutants.cuda_roles import (
    accumulations,
    extreme,
    for_loops,
    is_barrier,
    is_ceil_div,
    is_epsilon,
    is_guard,
    is_sentinel,
    one_per_statement,
)
from kernelward.mutants.cuda_syntax import Node
from kernelward.mutants.cuda_types import is_float_literal, number, shared_subscripts, stores, type_of
from kernelward.mutants.operators import OPERATORS

KERNELS = Path(__file__).parents[2] / "examples" / "kernels" / "cuda"

BODY = """
__global__ void k(const float* __restrict__ x, float* y, int n, float eps) {
    __shared__ float s[32];
    extern __shared__ float dynamic[];
    float local[4];
    const float* row = x + blockIdx.x * n;
    float* mine = s + 4;
    double d = 1.0;
    float4 v = reinterpret_cast<const float4*>(x)[0];
    auto a = row[0];
    bool b = n > 3;
    %s
}
"""


def value(text: str) -> tuple[CudaTree, Node]:
    """The tree of a kernel that computes `text`, and that expression's node."""
    tree = CudaTree.of_snippet(BODY % f"auto result = {text};")
    node = next(n for n in tree.nodes("init_declarator") if n.at("declarator").text == "result")
    return tree, node.at("value")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x[n]", "float"),
        ("n * 2 + threadIdx.x", "int"),
        ("x + n", "pointer"),
        ("n * 0.5f", "float"),
        ("d * x[0]", "double"),
        ("1e-5", "double"),
        ("0xff", "int"),
        ("v", "vector"),
        ("v.x", "float"),
        ("a", "float"),
        ("b", "bool"),
        ("n < 3 && b", "bool"),
        ("(float)n", "float"),
        ("static_cast<int>(d)", "int"),
        ("int(d)", "int"),
        ("expf(d)", "float"),
        ("max(n, 3)", "int"),
        ("fmaxf(a, a)", "float"),
        ("__shfl_xor_sync(~0u, a, 1)", "float"),
        ("b ? x[0] : 0", "float"),
        ("(size_t)n", "int"),
        ("-n", "int"),
        ("*row", "float"),
        ("somebody_elses(n)", "?"),
        ("UNKNOWN", "?"),
    ],
)
def test_types_are_told_from_what_is_written(text: str, kind: str) -> None:
    assert type_of(*value(text)) == kind


def test_memory_is_followed_through_pointers() -> None:
    tree = CudaTree.of_snippet(BODY % "y[0] = s[1]; mine[1] = dynamic[2]; local[0] = row[n]; *y = 1.0f; y[1] += 2.0f;")
    assert [store.target.text for store in stores(tree)] == ["y[0]", "*y"]
    assert [node.text for node in shared_subscripts(tree)] == ["s[1]", "mine[1]", "dynamic[2]"]


def test_functions_variables_and_launches() -> None:
    tree = CudaTree((KERNELS / "layernorm.py").read_text())
    assert [(f.name, f.kernel, f.device) for f in tree.functions] == [
        ("warp_sum", False, True),
        ("block_sum", False, True),
        ("layernorm_kernel", True, True),
        ("layernorm_cuda", False, False),
    ]
    kernel = tree.kernels[0]
    assert [(p.name, p.type, p.pointer) for p in kernel.parameters][-2:] == [("dim", "int", 0), ("eps", "float", 0)]
    partial = tree.functions[1].variable("partial")
    assert partial is not None
    assert partial.shared
    assert partial.array == 1
    (launch,) = tree.launches
    assert launch.kernel == "layernorm_kernel"
    assert [node.text for node in launch.configuration] == ["x.numel() / dim", "128"]
    assert len(launch.arguments) == len(kernel.parameters)


def test_sites_name_lines_of_the_python_file() -> None:
    source = (KERNELS / "softmax.py").read_text()
    tree = CudaTree(source)
    for site in OPERATORS["sync-remove"].sites(tree):
        assert "__syncthreads" in source.split("\n")[site.line - 1]


def test_characters_beyond_ascii_and_unknown_attributes_do_not_shift_anything() -> None:
    tree = CudaTree.of_snippet(
        "struct __align__(16) é { float x; };\n__device__ float f(float v) { return v + 1.0f; } // ü"
    )
    (site,) = OPERATORS["plus2minus"].sites(tree)
    assert OPERATORS["plus2minus"].apply(tree, site).endswith("{ return v - 1.0f; } // ü")


def test_broken_code_is_counted_and_does_not_raise() -> None:
    tree = CudaTree.of_snippet("__global__ void k(float* y, int n) { if (n < ) y[0] = ; for (int i = 0; i <")
    assert tree.errors > 0
    for operator in OPERATORS.values():
        if operator.backend == "cuda":
            operator.sites(tree)


def test_a_candidate_without_cuda_has_no_sites() -> None:
    tree = CudaTree("import torch\n")
    assert tree.texts == ()
    assert all(
        operator.sites(tree) == ()
        for operator in OPERATORS.values()
        if operator.family == "boundary" and operator.backend == "cuda"
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("(n + 31) / 32", ("n", "32")),
        ("(n + b - 1) / b", ("n", "b")),
        ("(b - 1 + n) / b", ("n", "b")),
        ("(n - 1 + (b)) / b", ("n", "b")),
        ("ceil_div(n, 8)", ("n", "8")),
        ("cdiv(n, 8)", ("n", "8")),
        ("(n + 30) / 32", None),
        ("(n + b) / b", None),
        ("n / b", None),
    ],
)
def test_quotients_that_round_up(text: str, parts: tuple[str, str] | None) -> None:
    found = is_ceil_div(value(text)[1])
    assert (None if found is None else (found[0].text, found[1].text)) == parts


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("n < 3", True),
        ("n < 3 && (n >= 0 || n > 9)", True),
        ("x[0] < 3.0f", False),
        ("n == 3", False),
        ("n < 3 && a > 0.0f", False),
    ],
)
def test_guards_compare_indices_alone(text: str, holds: bool) -> None:
    assert is_guard(*value(text)) is holds


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("fmaxf(a, d)", ("max", "a", "d", True)),
        ("std::min(a, d)", ("min", "a", "d", True)),
        ("a > d ? a : d", ("max", "a", "d", False)),
        ("(a < d) ? a : d", ("min", "a", "d", False)),
        ("a < d ? d : a", ("max", "d", "a", False)),
        ("a > d ? d : n", None),
        ("fmaf(a, d, a)", None),
    ],
)
def test_maxima_and_minima(text: str, kind: tuple[str, str, str, bool] | None) -> None:
    found = extreme(value(text)[1])
    assert (None if found is None else (found.kind, found.first.text, found.second.text, found.call)) == kind


def test_numbers_epsilons_and_sentinels() -> None:
    assert [number(value(text)[1]) for text in ("-1e-5f", "0x1F", "(2)", "-(3.5)", "n", "1'000")] == [
        -1e-5,
        31,
        2,
        -3.5,
        None,
        1000,
    ]
    assert [is_float_literal(value(text)[1]) for text in ("1.0", "1e3", "2.f", "0xf", "7")] == [True] * 3 + [False] * 2
    assert [is_epsilon(*value(text)) for text in ("eps", "(float)eps", "1e-5f", "0.0f", "0.5f", "n")] == [True] * 3 + [
        False
    ] * 3
    sentinels = ("-INFINITY", "-FLT_MAX", "-1e30f", "std::numeric_limits<float>::lowest()", "-3.4e38f", "0.0f", "n")
    assert [is_sentinel(value(text)[1]) for text in sentinels] == [True] * 5 + [False] * 2


def test_loops_sums_and_barriers() -> None:
    tree = CudaTree.of_snippet(
        BODY
        % """
    for (int i = threadIdx.x; i < n; i += blockDim.x) a += x[i];
    for (int j = 0; j < n; ++j) n += j;
    for (int o = 16; o > 0; o >>= 1) local[0] += a;
    for (int o = 16; o > 0; o = o / 2) { }
    for (int i = n - 1; i >= 0; i--) { }
    for (;;) { }
    __syncthreads(); block.sync(); cg::sync(block); __syncwarp(); tile.sync();
    """
    )
    found = [(loop.name, loop.kind, loop.start.text, loop.bound.text, loop.by_threads) for loop in for_loops(tree)]
    assert found == [
        ("i", "up", "threadIdx.x", "n", True),
        ("j", "up", "0", "n", False),
        ("o", "halving", "16", "0", False),
        ("o", "halving", "16", "0", False),
        ("i", "down", "n - 1", "0", False),
    ]
    assert [found.target.text for found in accumulations(tree)] == ["a", "local[0]"]
    assert sum(is_barrier(node) for node in tree.nodes("expression_statement")) == 3


def test_a_pragma_between_loops_is_no_body() -> None:
    code = "for (int i = 0; i < n; ++i)\n#pragma unroll\n    for (int j = 0; j < m; ++j) a += 1.0f;"
    tree = CudaTree.of_snippet(code)
    assert tree.errors == 0
    assert [loop.body.type for loop in for_loops(tree)] == ["for_statement", "expression_statement"]


def test_template_arguments_are_no_comparisons() -> None:
    tree = CudaTree.of_snippet("cg::thread_block_tile<32> tile = cg::tiled_partition<32>(block); if (a < b) c = d;")
    assert len(OPERATORS["lt2le"].sites(tree)) == 1
    assert OPERATORS["gt2ge"].sites(tree) == ()


def test_one_place_per_statement() -> None:
    tree = CudaTree.of_snippet("a = b + c + d; e = f + g;")
    assert [node.text for node in one_per_statement(tree.nodes("binary_expression"))] == ["b + c + d", "f + g"]
