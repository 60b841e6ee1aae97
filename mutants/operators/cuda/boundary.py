"""Boundaries on CUDA: comparisons, the guards that keep threads inside the data, quotients that round up."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    conjuncts,
    excerpt,
    is_ceil_div,
    is_guard,
    less_one,
    loop_condition,
    one_per_statement,
    returns_only,
)
from ...cuda_syntax import Node
from ...cuda_types import COMPARISONS, number
from ...mutant import Example, Operator, Site

REPLACES = {
    "ceil2floor": ("ceil2floor-lit",),
    "lt2le": (
        "conditional_boundary_replacement",
        "elementwise-guard-plus1",
        "output-elements-one-extra-lane",
        "line-count-one-extra-lane",
        "flat-n-one-extra-lane",
    ),
    "le2lt": ("conditional_boundary_replacement",),
    "ge2gt": ("conditional_boundary_replacement",),
    "gt2ge": ("conditional_boundary_replacement",),
    "guard-minus1": ("elementwise-guard-minus1", "tail-guard-tighten", "last-row-reduction-skip"),
    "bound-swap": (
        "matrix-row-bound-use-n",
        "matrix-row-bound-use-m",
        "matrix-col-bound-use-n",
        "matrix-col-bound-use-m",
        "height-bound-use-width",
        "width-bound-use-height",
    ),
    "negate-condition": ("negate_conditional_replacement",),
    "and2or": ("logical_replacement",),
}


def _ceil2floor(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression", "call_expression", device=None):
        parts = is_ceil_div(node)
        if parts is not None:
            dividend, divisor = parts
            text = f"{dividend.text} / {divisor.text}"
            yield tree.site(f"`{excerpt(node)}` rounds down", node.replaced(text if _safe(node) else f"({text})"))


def _safe(node: Node) -> bool:
    """Whether a quotient in the node's place needs no parentheses."""
    return node.type == "binary_expression" or (
        node.parent is not None and node.parent.type in ("argument_list", "init_declarator", "kernel_call_syntax")
    )


def _compare(old: str, new: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        found = [n for n in tree.nodes("binary_expression") if n.operator == old and n.has("left", "right")]
        for node in found:
            if _never_ends(node, new) or _is_template(node):
                continue
            yield tree.site(f"`{old}` -> `{new}` in `{excerpt(node)}`", node.at("operator").replaced(new))

    return find


def _is_template(node: Node) -> bool:
    """Whether the grammar took `tile<32> t = ...`, with a type it does not know, for two comparisons."""
    chained = any(side.type == "binary_expression" and side.operator in COMPARISONS for side in node.children)
    return chained or (node.parent is not None and node.parent.operator in COMPARISONS)


def _never_ends(node: Node, operator: str) -> bool:
    """Whether a loop's test would then hold for ever: a variable that is halved or counts down is never below zero."""
    if not loop_condition(node):
        return False
    return operator in (">=", "<=") and 0 in (number(node.at("left")), number(node.at("right")))


def _guards(tree: CudaTree) -> Iterator[Node]:
    """`if` statements without `else` that keep a thread inside the data and do not just leave."""
    for node in tree.nodes("if_statement"):
        if node.has("condition", "consequence") and node.get("alternative") is None:
            test = node.at("condition")
            if test.named_children and is_guard(tree, test) and not returns_only(node.get("consequence")):
                yield node


def _guard_drop_if(tree: CudaTree) -> Iterator[Site | None]:
    for node in _guards(tree):
        test = node.at("condition").bare
        yield tree.site(f"`if ({excerpt(test)})` always holds", test.replaced("true"))


def _guard_conjunct_drop(tree: CudaTree) -> Iterator[Site | None]:
    for node in (*tree.nodes("if_statement"), *tree.nodes("conditional_expression")):
        test = node.get("condition")
        if test is None or not test.bare.has("left", "right") or not is_guard(tree, test):
            continue
        if test.bare.operator in ("&&", "||"):
            neutral = "true" if test.bare.operator == "&&" else "false"
            for part in conjuncts(test, test.bare.operator):
                yield tree.site(f"`{excerpt(part)}` dropped from `{excerpt(test)}`", part.replaced(neutral))


def _guard_drop_ternary(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("conditional_expression"):
        if node.has("condition", "consequence", "alternative") and is_guard(tree, node.at("condition")):
            value = node.at("consequence")
            if any(value.find("subscript_expression", "pointer_expression", "call_expression")):
                test = node.at("condition")
                yield tree.site(f"`{excerpt(test)} ? ... : ...` always holds", test.replaced("true"))


def _return_guard_drop(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("if_statement"):
        test = node.get("condition")
        if test is not None and is_guard(tree, test) and returns_only(node.get("consequence")):
            yield tree.site(f"`{excerpt(node)}` never holds", test.bare.replaced("false"))


def _guard_minus1(tree: CudaTree) -> Iterator[Site | None]:
    for node in (*tree.nodes("if_statement"), *tree.nodes("conditional_expression")):
        test = node.get("condition")
        if test is None or not is_guard(tree, test):
            continue
        for part in (piece for whole in conjuncts(test) for piece in conjuncts(whole, "||")):
            bound, back = part.at("right"), part.operator in ("<", "<=")
            early = returns_only(node.get("consequence"))
            if number(bound) is None and (back != early):
                yield tree.site(f"the bound of `{excerpt(part)}` less one", *less_one(bound))


def _bound_swap(tree: CudaTree) -> Iterator[Site | None]:
    for node in (*tree.nodes("if_statement"), *tree.nodes("conditional_expression")):
        test = node.get("condition")
        if test is None or not is_guard(tree, test):
            continue
        parts = [p for whole in conjuncts(test) for p in conjuncts(whole, "||") if p.operator in ("<", ">=")]
        bounds = [part.at("right") for part in parts if part.at("right").type == "identifier"]
        for index, bound in enumerate(bounds):
            other = next((b for b in bounds[index + 1 :] + bounds[:index] if b.text != bound.text), None)
            if other is not None:
                yield tree.site(f"`{bound.text}` -> `{other.text}` in `{excerpt(test)}`", bound.replaced(other.text))


def _negate_condition(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("if_statement"):
        test = node.get("condition")
        if test is not None and test.named_children and "declaration" not in {n.type for n in test.walk()}:
            part = test.bare
            yield tree.site(f"`{excerpt(part)}` negated", part.before("!("), part.after(")"))


def _and2or(tree: CudaTree) -> Iterator[Site | None]:
    found = [n for n in tree.nodes("binary_expression") if n.operator == "&&" and not loop_condition(n)]
    for node in one_per_statement(found):
        yield tree.site(f"`&&` -> `||` in `{excerpt(node)}`", node.at("operator").replaced("||"))


_ALIGNED = "Shapes are multiples of the block, so the places that go wrong are never visited."
_KERNEL = "__global__ void k(const float* x, float* y, int n, int m) {{ {0} }}"


def _in_kernel(before: str, after: str) -> Example:
    return Example(_KERNEL.format(before), _KERNEL.format(after))


OPERATORS = (
    Operator(
        name="ceil2floor",
        family="boundary",
        backend="cuda",
        summary="A quotient that rounds up rounds down: a grid or a count of tiles loses its partial block.",
        escapes=_ALIGNED,
        examples=(
            Example("int tiles = (n + 31) / 32;", "int tiles = n / 32;"),
            Example(
                "void f(at::Tensor x, int n) { k<<<(n + b - 1) / b, b>>>(x.data_ptr<float>(), n); }",
                "void f(at::Tensor x, int n) { k<<<n / b, b>>>(x.data_ptr<float>(), n); }",
            ),
            Example("int tiles = ceil_div(n, TILE);", "int tiles = n / TILE;"),
        ),
        find=_ceil2floor,
    ),
    Operator(
        name="lt2le",
        family="boundary",
        backend="cuda",
        summary="`<` becomes `<=`: one element, row or round too many.",
        escapes="The extra access reads or writes the next row or the allocator's slack, where nobody looks.",
        examples=(Example("if (i < n) y[i] = x[i];", "if (i <= n) y[i] = x[i];"),),
        find=_compare("<", "<="),
    ),
    Operator(
        name="le2lt",
        family="boundary",
        backend="cuda",
        summary="`<=` becomes `<`: one element, row or round too few.",
        escapes="The element that is lost contributes zero, or equality never occurs in the inputs.",
        examples=(Example("if (j <= i) sum += x[j];", "if (j < i) sum += x[j];"),),
        find=_compare("<=", "<"),
    ),
    Operator(
        name="ge2gt",
        family="boundary",
        backend="cuda",
        summary="`>=` becomes `>`: an early return lets one thread too many through, or a row zero is lost.",
        escapes="Equality never occurs: grids fit exactly, values are continuous.",
        examples=(Example("if (i >= n) return;", "if (i > n) return;"),),
        find=_compare(">=", ">"),
    ),
    Operator(
        name="gt2ge",
        family="boundary",
        backend="cuda",
        summary="`>` becomes `>=`: one element, row or round too many, or a tie decided otherwise.",
        escapes="Equality never occurs in continuous inputs, or both branches agree there.",
        examples=(Example("if (i > n) return;", "if (i >= n) return;"),),
        find=_compare(">", ">="),
    ),
    Operator(
        name="lt2gt",
        family="boundary",
        backend="cuda",
        summary="`<` becomes `>`: a loop or a guarded statement runs where it should not, and the reverse.",
        escapes="Outputs are so small that leaving them at zero passes, or only padding is affected.",
        examples=(Example("if (i < n) y[i] = x[i];", "if (i > n) y[i] = x[i];"),),
        find=_compare("<", ">"),
    ),
    Operator(
        name="guard-drop-if",
        family="boundary",
        backend="cuda",
        summary="The test that keeps threads inside the data always holds.",
        escapes=_ALIGNED,
        examples=(Example("if (i < n) y[i] = x[i];", "if (true) y[i] = x[i];"),),
        find=_guard_drop_if,
    ),
    Operator(
        name="guard-conjunct-drop",
        family="boundary",
        backend="cuda",
        summary="One of the tests that keep threads inside the data is forgotten.",
        escapes="One of the sizes is a multiple of the block, or padding is never reached at this kernel size.",
        examples=(
            Example("if (row < m && col < n) y[row] = col;", "if (true && col < n) y[row] = col;"),
            Example("if (row >= m || col >= n) return;", "if (false || col >= n) return;"),
        ),
        find=_guard_conjunct_drop,
    ),
    Operator(
        name="guard-drop-ternary",
        family="boundary",
        backend="cuda",
        summary="A guarded load is made whether or not the place exists.",
        escapes=_ALIGNED,
        examples=(Example("float v = i < n ? x[i] : 0.0f;", "float v = true ? x[i] : 0.0f;"),),
        find=_guard_drop_ternary,
    ),
    Operator(
        name="return-guard-drop",
        family="boundary",
        backend="cuda",
        summary="Threads beyond the data do not leave early.",
        escapes=_ALIGNED,
        examples=(Example("if (i >= n) return;", "if (false) return;"),),
        find=_return_guard_drop,
    ),
    Operator(
        name="guard-minus1",
        family="boundary",
        backend="cuda",
        summary="A guard stops one place early: the last element is never read or written.",
        escapes="The last element is left as it was, in reused memory often the right answer; or it is one of many.",
        examples=(
            _in_kernel(
                "int i = threadIdx.x; if (i < n) y[i] = x[i];", "int i = threadIdx.x; if (i < n - 1) y[i] = x[i];"
            ),
            _in_kernel("int i = threadIdx.x; if (i >= n) return;", "int i = threadIdx.x; if (i >= n - 1) return;"),
        ),
        find=_guard_minus1,
    ),
    Operator(
        name="bound-swap",
        family="boundary",
        backend="cuda",
        summary="An index is tested against another dimension's size.",
        escapes="Matrices and images are square, or both sizes exceed what the grid covers.",
        examples=(Example("if (row < m && col < n) y[row] = col;", "if (row < n && col < n) y[row] = col;"),),
        find=_bound_swap,
    ),
    Operator(
        name="negate-condition",
        family="boundary",
        backend="cuda",
        summary="An `if` takes the other branch.",
        escapes="Outputs are so small that leaving them unwritten passes, or the case never occurs.",
        examples=(Example("if (t < s) a[t] += a[t + s];", "if (!(t < s)) a[t] += a[t + s];"),),
        find=_negate_condition,
    ),
    Operator(
        name="and2or",
        family="boundary",
        backend="cuda",
        summary="Of two tests one is enough.",
        escapes="Shapes are multiples of the block, so both tests hold everywhere.",
        examples=(Example("if (row < m && col < n) y[row] = col;", "if (row < m || col < n) y[row] = col;"),),
        find=_and2or,
    ),
)
