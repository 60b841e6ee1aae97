"""Triton candidates as trees: kernels, launches, exact places in the text, and what names stand for."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.mutants.mutant import apply_edits
from kernelward.mutants.substrates import list_substrates
from kernelward.mutants.triton import TritonTree, argument, argument_node
from kernelward.mutants.triton_roles import is_infinite, is_number, roles

SUBSTRATES = {s.name: s for s in list_substrates() if s.backend == "triton"}

CANDIDATE = '''
import torch
import triton
import triton.language as tl
from triton import jit
from triton.language import load as fetch, constexpr


def host_only(x):
    return x < 3


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: "tl.constexpr"):
    """Not code: i < n."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # Grüße < n
    tl.store(out_ptr + i, fetch(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit(do_not_specialize=["n"])
def called(x_ptr, n):
    pass


@jit
def imported(x_ptr, SIZE: constexpr):
    pass


class ModelNew:
    def forward(self, x):
        def cells(meta):
            return (triton.cdiv(8, meta["BLOCK"]), 2)

        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
        tuned[grid](x, x, 8)
        self.tuned[cells](x, x, 8)
        called[(4, 5)](x, 8)
        unknown[(1,)](x)
        return x
'''
TREE = TritonTree(CANDIDATE)


def test_kernels_are_found_under_every_form_of_decorator() -> None:
    assert [kernel.name for kernel in TREE.kernels] == ["tuned", "called", "imported"]
    assert [[(p.name, p.constexpr) for p in kernel.parameters] for kernel in TREE.kernels] == [
        [("x_ptr", False), ("out_ptr", False), ("n", False), ("BLOCK", True), ("EVEN", True)],
        [("x_ptr", False), ("n", False)],
        [("x_ptr", False), ("SIZE", True)],
    ]


def test_nothing_of_docstrings_decorators_or_host_code_is_in_a_kernel() -> None:
    texts = [TREE.text(node) for node in TREE.kernels[0].of(ast.Compare)]
    assert texts == ["i < n", "i < n"]


def test_launches_know_their_kernel_and_their_grid() -> None:
    found = [
        (launch.kernel.name if launch.kernel else None, [TREE.text(g) for g in launch.grid]) for launch in TREE.launches
    ]
    assert found == [
        ("tuned", ['triton.cdiv(x.numel(), meta["BLOCK"])']),
        ("tuned", ['triton.cdiv(8, meta["BLOCK"])', "2"]),
        ("called", ["4", "5"]),
    ]


def test_calls_of_the_language_are_known_by_any_name() -> None:
    kernel = TREE.kernels[0]
    assert [TREE.called(call) for call in TREE.calls(kernel, "load", "store", "arange")] == ["arange", "store", "load"]
    tree = TritonTree("from triton import language as L\nL.math.exp(x)\nnp.exp(x)\nL.extra.cuda.libdevice.erf(x)\n")
    names = [tree.called(node) for node in ast.walk(tree.module) if isinstance(node, ast.Call)]
    assert names == ["exp", None, "erf"]


def test_a_text_that_is_not_python_is_refused() -> None:
    with pytest.raises(ValueError, match="not Python"):
        TritonTree("def f(:")


def positioned(tree: TritonTree) -> list[ast.expr]:
    return [
        node
        for node in ast.walk(tree.module)
        if isinstance(node, ast.expr) and not isinstance(node, (ast.JoinedStr, ast.Starred, ast.Slice))
    ]


def assert_texts_are_the_nodes(tree: TritonTree) -> None:
    for node in positioned(tree):
        if any(isinstance(a, (ast.JoinedStr, ast.Slice)) for a in (node, *tree.ancestors(node))):
            continue
        if isinstance(node, ast.Tuple) and isinstance(tree.parent(node), ast.Subscript):
            continue  # written without parentheses
        again = ast.parse(f"({tree.text(node)})", mode="eval").body
        assert dump(again) == dump(node)


def dump(node: ast.AST) -> str:
    """A tree without whether names are read or set, which a part alone does not tell."""
    return ast.dump(node).replace("Store()", "Load()")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["é", "日本", "\U0001f600", "x", " < ", "\t"]), max_size=6).map("".join),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_places_are_exact_in_any_text(noise: str, newline: str) -> None:
    lines = [f'a = "{noise}"; b = f(c, d < e)  # {noise}', f'g("{noise}", (h + 1) * 2, k="{noise}")[i, "{noise}"]', ""]
    assert_texts_are_the_nodes(TritonTree(newline.join(lines)))


@pytest.mark.parametrize("name", sorted(SUBSTRATES)[::6])
def test_places_are_exact_in_a_substrate(name: str) -> None:
    assert_texts_are_the_nodes(TritonTree(SUBSTRATES[name].source))


@pytest.mark.parametrize(
    ("call", "name", "left"),
    [
        ("f(a, mask=m, other=0)", "mask", "f(a, other=0)"),
        ("f(a, mask=(m) & (n))", "mask", "f(a)"),
        ("f(mask=m, other=0)", "mask", "f(other=0)"),
        ("f((a), (m), other=0)", "mask", "f((a), other=0)"),
        ("f(\n    a,\n    mask=m,  # why\n    other=0,\n)", "mask", "f(\n    a,  # why\n    other=0,\n)"),
        ("f(\n    (a + b),\n    ((m)),\n)", "mask", "f(\n    (a + b),\n)"),
        ("f(mask=m)", "mask", "f()"),
    ],
)
def test_an_argument_is_taken_out_with_its_comma(call: str, name: str, left: str) -> None:
    tree = TritonTree(call)
    node = tree.module.body[0].value  # type: ignore[attr-defined]
    given_as = argument_node(node, name, 1)
    assert given_as is not None
    site = tree.site(node, "", tree.without_argument(node, given_as))
    assert apply_edits(tree.source, site.edits) == left


def test_arguments_are_found_by_name_and_by_position() -> None:
    call = ast.parse("f(a, b, c=d)", mode="eval").body
    assert isinstance(call, ast.Call)
    assert [ast.unparse(a) if a else None for a in (argument(call, "c", 2), argument(call, "x", 1))] == ["d", "b"]
    starred = ast.parse("f(*a, b)", mode="eval").body
    assert isinstance(starred, ast.Call)
    assert argument(starred, "x", 1) is None


def test_operands_fit_where_their_whole_stood() -> None:
    tree = TritonTree("a * (b + c)")
    product = tree.module.body[0].value  # type: ignore[attr-defined]
    assert tree.operand(product.left) == "a"
    assert tree.operand(product.right) == "(b + c)"
    assert tree.operand(product) == "(a * (b + c))"


def test_roles_in_a_product_of_matrices() -> None:
    tree = TritonTree(SUBSTRATES["triton/matmul__tiled"].source)
    known = roles(tree, tree.kernels[0])
    assert known.pointers == ["a_ptr", "b_ptr", "c_ptr"]
    assert (known.loaded, known.stored) == (["a_ptr", "b_ptr"], ["c_ptr"])
    assert known.bounds == ["M", "N", "K"]
    assert len(known.strides) == 6
    assert [tree.text(node) for node in known.accumulators()] == ['acc += tl.dot(a, b, input_precision="ieee")']


@pytest.mark.parametrize(
    ("name", "whole", "other"),
    [
        ("triton/argmax__columns", {"where", "index", "row", "base", "size"}, {"best", "value", "x"}),
        ("triton/mean_std__welford", {"seen", "count", "together", "columns"}, {"mean", "m2", "delta", "std"}),
        ("triton/layernorm__row", {"row", "column", "rows"}, {"eps", "x", "mean", "scale"}),
    ],
)
def test_whole_numbers_are_told_from_the_others(name: str, whole: set[str], other: set[str]) -> None:
    tree = TritonTree(SUBSTRATES[name].source)
    known = roles(tree, tree.kernels[0])
    told = {n for n in whole | other if known.is_whole(ast.parse(n, mode="eval").body)}
    assert told == whole


def test_sentinels_are_known_in_every_spelling() -> None:
    def parse(text: str) -> ast.AST:
        return ast.parse(text, mode="eval").body

    for text in ("-float('inf')", "float('-inf')", "-math.inf", "-1e30"):
        assert is_infinite(parse(text))
        assert not is_infinite(parse(text), "+")
    assert is_infinite(parse("float('inf')"), "+")
    assert not is_infinite(parse("-1e3"))
    assert is_number(parse("-1.0"), -1)
    assert not is_number(parse("True"), 1)
