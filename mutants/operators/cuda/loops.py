"""Boundaries of loops, grids and reductions on CUDA: the first and the last round, the step, the seed."""

import re
from collections.abc import Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    Loop,
    base_name,
    excerpt,
    extreme,
    for_loops,
    initialisations,
    is_sentinel,
    less_one,
)
from ...cuda_syntax import Node
from ...cuda_types import base_variable, is_float, memory_of, number
from ...mutant import Example, Operator, Site

REPLACES = {
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
}


def _loop_bound_minus1(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind == "up" and found.condition.operator in ("<", "<="):
            yield tree.site(f"the bound of `{excerpt(found.condition)}` less one", *less_one(found.bound))


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
            if base is not None and base.parameter and source is not None and is_float(tree, source):
                yield tree.site(f"`{name}` starts from `{base.name}[0]`", value.replaced(f"{base.name}[0]"))
                break


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
            yield tree.site(f"the tail `{excerpt(found.condition)}` is dropped", found.condition.replaced("false"))
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


_KERNEL = "__global__ void k(const float* x, float* y, int n, int m) {{ {0} }}"


def _in_kernel(before: str, after: str) -> Example:
    return Example(_KERNEL.format(before), _KERNEL.format(after))


OPERATORS = (
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
)
