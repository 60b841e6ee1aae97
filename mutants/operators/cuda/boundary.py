"""Boundaries on CUDA: comparisons, guards, the first and last rounds of loops, the steps of reductions."""

import re
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    Loop,
    base_name,
    conjuncts,
    excerpt,
    extreme,
    for_loops,
    initialisations,
    is_ceil_div,
    is_guard,
    is_sentinel,
    loop_condition,
    one_per_statement,
    returns_only,
)
from ...cuda_syntax import Change, Node
from ...cuda_types import base_variable, is_float, memory_of, number
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
    "loop-bound-minus1": (
        "matmul-a-last-k-drop",
        "matmul-a-transposed-last-k-drop",
        "matmul-b-last-k-drop",
        "arg-reduction-last-row-drop",
        "min-reduction-last-row-drop",
        "cumsum-last-output-drop",
        "pool2d-last-tap-drop",
        "literal-loop-last-skip",
    ),
    "loop-start-1": ("argmax-seed-from-second",),
    "last-block-skip": ("last-row-reduction-skip", "last-row-reduction-skip-start1"),
    "reduce-seed-first-element": ("reduce-seed-first-element-min",),
    "strided-tail-drop": ("groupnorm-sum-tail-scalar-drop", "groupnorm-sqdev-tail-scalar-drop"),
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
            if _never_ends(node, new):
                continue
            yield tree.site(f"`{old}` -> `{new}` in `{excerpt(node)}`", node.at("operator").replaced(new))

    return find


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


def _loop_bound_minus1(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind == "up" and found.condition.operator in ("<", "<="):
            yield tree.site(f"the bound of `{excerpt(found.condition)}` less one", *_less_one(found.bound))


_ATOMS = ("identifier", "number_literal", "field_expression", "parenthesized_expression", "call_expression")


def _less_one(bound: Node) -> tuple[Change, ...]:
    if bound.type in (
        "identifier",
        "number_literal",
        "field_expression",
        "parenthesized_expression",
        "call_expression",
    ):
        return (bound.after(" - 1"),)
    return (bound.before("("), bound.after(") - 1"))


def _loop_start_1(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind == "up" and found.step is None and number(found.start) == 0:
            yield tree.site(f"`{found.name}` starts at 1", found.start.replaced("1"))


def _reduce_shift2(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind == "halving" and found.step is not None:
            factor = found.step if number(found.step) is not None else next(found.step.find("number_literal"), None)
            if factor is not None and number(factor) in (1, 2):
                update = found.step.parent
                text = "2" if update is not None and ">>" in update.text else "4"
                yield tree.site(f"`{found.name}` is quartered, not halved", factor.replaced(text))


def _reduce_seed(tree: CudaTree) -> Iterator[Site | None]:
    """Seeds of maxima and minima: the first element of the kernel's input in place of the infinity."""
    for name, value in initialisations(tree):
        function = tree.function(value)
        if function is None or not is_sentinel(value):
            continue
        for node in function.body.find("call_expression", "conditional_expression"):
            found = extreme(node)
            if found is None or name not in (base_name(found.first), base_name(found.second)):
                continue
            source = next((n for n in node.find("subscript_expression") if memory_of(tree, n) == "global"), None)
            base = base_variable(tree, source) if source is not None else None
            while base is not None and not base.parameter and base.value is not None:
                base = base_variable(tree, base.value)
            if base is not None and base.parameter and is_float(tree, source or node):
                yield tree.site(f"`{name}` starts from `{base.name}[0]`", value.replaced(f"{base.name}[0]"))
                break


def _guard_minus1(tree: CudaTree) -> Iterator[Site | None]:
    for node in (*tree.nodes("if_statement"), *tree.nodes("conditional_expression")):
        test = node.get("condition")
        if test is None or not is_guard(tree, test):
            continue
        for part in (piece for whole in conjuncts(test) for piece in conjuncts(whole, "||")):
            bound, back = part.at("right"), part.operator in ("<", "<=")
            early = returns_only(node.get("consequence"))
            if number(bound) is None and (back != early):
                yield tree.site(f"the bound of `{excerpt(part)}` less one", *_less_one(bound))


def _stride_double(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind == "up" and found.step is not None and found.by_threads and number(found.step) is None:
            simple = found.step.type in ("identifier", "field_expression", "parenthesized_expression")
            changes = (found.step.before("2 * "),) if simple else (found.step.before("2 * ("), found.step.after(")"))
            yield tree.site(f"`{found.name}` takes every other step of `{excerpt(found.step)}`", *changes)


def _tile_last_skip(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        wide = found.kind == "up" and found.step is not None and number(found.step) != 1
        if wide and not _thread_start(found) and found.condition.operator == "<" and found.step is not None:
            left = found.condition.at("left")
            step = found.step.text if found.step.type in ("identifier", "number_literal") else f"({found.step.text})"
            yield tree.site(f"the last round of `{excerpt(found.condition)}` is skipped", left.after(f" + {step}"))


def _thread_start(found: Loop) -> bool:
    return bool(re.search(r"thread|tid|lane|Idx", found.start.text)) or found.by_threads


def _last_block_skip(tree: CudaTree) -> Iterator[Site | None]:
    for kernel in tree.kernels:
        if any(kernel.body.find("field_expression")) and "blockIdx.x" in kernel.body.text:
            brace = kernel.body.children[0]
            yield tree.site(
                f"the last block of `{kernel.name}` does nothing",
                brace.after(" if (blockIdx.x + 1 == gridDim.x && gridDim.x > 1) return;"),
            )


def _tail_drop(tree: CudaTree) -> Iterator[Site | None]:
    """Loops over what is left when a vector loop has taken its multiples of 2, 4 or 8."""
    for found in for_loops(tree):
        if found.kind == "up" and _is_remainder(tree, found.start):
            test = found.condition
            yield tree.site(f"the tail `{excerpt(test)}` is dropped", test.replaced("false"))
    for node in tree.nodes("while_statement"):
        test = node.get("condition")
        part = test.bare if test is not None else None
        if part is not None and part.has("left", "right") and _is_remainder(tree, part.at("left")):
            yield tree.site(f"the tail `{excerpt(part)}` is dropped", part.replaced("false"))


_REMAINDER = re.compile(r"/\d+\)?\*\d+|\*\d+$|^\(?\d+\*|&~|<<[123]\b|tail|remain|(?:^|\W)rem\b")


def _is_remainder(tree: CudaTree, start: Node) -> bool:
    if _REMAINDER.search(start.flat) and number(start) is None:
        return True
    for found in start.find("identifier"):
        variable = tree.variable(found)
        if re.search(r"(?i)tail|remain|aligned", found.text):
            return True
        if variable is not None and variable.value is not None and re.search(r"/\d+\)?\*\d+|&~", variable.value.flat):
            return True
    return False


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
        name="loop-bound-minus1",
        family="boundary",
        backend="cuda",
        summary="A loop ends one round early: the last element, tap or tile is lost.",
        escapes="One term of thousands is below the tolerance; a strided loop loses it only for one remainder.",
        examples=(
            Example(
                "for (int k = 0; k < n; ++k) sum += x[k];",
                "for (int k = 0; k < n - 1; ++k) sum += x[k];",
            ),
            Example(
                "for (int k = 0; k < 2 * n; ++k) sum += x[k];",
                "for (int k = 0; k < (2 * n) - 1; ++k) sum += x[k];",
            ),
        ),
        find=_loop_bound_minus1,
    ),
    Operator(
        name="loop-start-1",
        family="boundary",
        backend="cuda",
        summary="A loop starts at its second round: the first element, tap or tile is lost.",
        escapes="One term of thousands is below the tolerance, or a maximum rarely sits in the first place.",
        examples=(Example("for (int k = 0; k < n; k++) sum += x[k];", "for (int k = 1; k < n; k++) sum += x[k];"),),
        find=_loop_start_1,
    ),
    Operator(
        name="reduce-shift2",
        family="boundary",
        backend="cuda",
        summary="A reduction tree quarters its width each round, so partial results are left out.",
        escapes="A maximum rarely sits in the lanes that are lost; a mean over few values hides in the tolerance.",
        examples=(
            Example(
                "for (int s = blockDim.x / 2; s > 0; s >>= 1) v += s;",
                "for (int s = blockDim.x / 2; s > 0; s >>= 2) v += s;",
            ),
            Example("for (int s = 16; s > 0; s /= 2) v += s;", "for (int s = 16; s > 0; s /= 4) v += s;"),
        ),
        find=_reduce_shift2,
    ),
    Operator(
        name="reduce-seed-first-element",
        family="boundary",
        backend="cuda",
        summary="A maximum or minimum starts from the tensor's first element, which other rows do not hold.",
        escapes="In random rows of one distribution the first element of all is rarely beyond a row's extreme.",
        examples=(
            _in_kernel(
                "float v = -INFINITY; for (int i = 0; i < n; ++i) v = fmaxf(v, x[m + i]);",
                "float v = x[0]; for (int i = 0; i < n; ++i) v = fmaxf(v, x[m + i]);",
            ),
        ),
        find=_reduce_seed,
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
        name="grid-stride-step-double",
        family="boundary",
        backend="cuda",
        summary="A loop shared by threads takes steps twice as long, so every other stretch is left out.",
        escapes="The grid covers the data in one step, so the loop runs once.",
        examples=(
            Example(
                "for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];",
                "for (int i = threadIdx.x; i < n; i += 2 * blockDim.x) sum += x[i];",
            ),
            Example(
                "for (int i = idx; i < n; i += blockDim.x * gridDim.x) y[i] = x[i];",
                "for (int i = idx; i < n; i += 2 * (blockDim.x * gridDim.x)) y[i] = x[i];",
            ),
        ),
        find=_stride_double,
    ),
    Operator(
        name="tile-last-iteration-skip",
        family="boundary",
        backend="cuda",
        summary="The last tile of a loop over tiles is skipped.",
        escapes="With many tiles the last one's share of a mean or a maximum is below the tolerance.",
        examples=(
            Example(
                "for (int k = 0; k < n; k += TILE) sum += x[k];",
                "for (int k = 0; k + TILE < n; k += TILE) sum += x[k];",
            ),
        ),
        find=_tile_last_skip,
    ),
    Operator(
        name="last-block-skip",
        family="boundary",
        backend="cuda",
        summary="The last block of a grid does nothing.",
        escapes="Its outputs keep what was in the memory, which often is the reference's own result.",
        examples=(
            Example(
                "__global__ void k(float* y) { y[blockIdx.x] = 1.0f; }",
                "__global__ void k(float* y) { if (blockIdx.x + 1 == gridDim.x && gridDim.x > 1) return;"
                " y[blockIdx.x] = 1.0f; }",
            ),
        ),
        find=_last_block_skip,
    ),
    Operator(
        name="strided-tail-drop",
        family="boundary",
        backend="cuda",
        summary="The scalar loop over what a vector loop leaves is dropped.",
        escapes="Sizes are multiples of four, so nothing is left over.",
        examples=(
            Example(
                "for (int i = n / 4 * 4 + t; i < n; i += b) sum += x[i];",
                "for (int i = n / 4 * 4 + t; false; i += b) sum += x[i];",
            ),
        ),
        find=_tail_drop,
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
