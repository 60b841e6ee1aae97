"""Tensor cores on CUDA: fragments' layouts, strides and sums (`wmma`), and products in less than fp32."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import accumulations, excerpt, for_loops
from ...cuda_syntax import LOOPS, Node
from ...cuda_types import arguments, call_name, is_float, number
from ...mutant import Example, Operator, Site


def _calls(tree: CudaTree, *names: str) -> Iterator[Node]:
    for node in tree.nodes("call_expression"):
        if call_name(node) in names:
            yield node


def _swap_words(first: str, second: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    other = {first: second, second: first}

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in tree.nodes("type_identifier", "identifier", device=None):
            if node.text in other:
                yield tree.site(f"`{node.text}` -> `{other[node.text]}`", node.replaced(other[node.text]))

    return find


def _leading_dimension(tree: CudaTree) -> Iterator[Site | None]:
    moves = [c for c in _calls(tree, "load_matrix_sync", "store_matrix_sync") if len(arguments(c)) >= 3]
    for call in moves:
        stride = arguments(call)[2]
        others = [arguments(c)[2].text for c in moves if tree.function(c) is tree.function(call)]
        found = next((text for text in others if "".join(text.split()) != stride.flat), f"{stride.text} + 8")
        yield tree.site(f"leading dimension `{stride.text}` -> `{found}`", stride.replaced(found))


def _products(tree: CudaTree) -> Iterator[tuple[Node, list[Node]]]:
    """`mma_sync(d, a, b, c)` as statements, with their arguments."""
    for call in _calls(tree, "mma_sync"):
        statement = call.parent
        if statement is not None and statement.type == "expression_statement" and len(arguments(call)) >= 4:
            yield statement, arguments(call)


def _accumulate_drop(tree: CudaTree) -> Iterator[Site | None]:
    for statement, (target, _, _, added, *_) in _products(tree):
        if target.flat == added.flat:
            yield tree.site(
                f"`{excerpt(statement)}` forgets what `{target.text}` held",
                statement.before(f"{{ wmma::fill_fragment({target.text}, 0.0f); "),
                statement.after(" }"),
            )


def _fills(tree: CudaTree) -> Iterator[Node]:
    for call in _calls(tree, "fill_fragment"):
        if call.parent is not None and call.parent.type == "expression_statement" and arguments(call):
            yield call.parent


def _outermost(node: Node) -> Node:
    """The largest loop around a statement that holds nothing else, or the statement."""
    found = node
    for above in node.ancestors():
        if above.type == "compound_statement" and len(above.named_children) == 1:
            continue
        if above.type not in LOOPS:
            break
        found = above
    return found


def _fill_in_loop(tree: CudaTree) -> Iterator[Site | None]:
    for fill in _fills(tree):
        whole = _outermost(fill)
        name = next(arguments(fill.named_children[0])[0].find("identifier")).text
        siblings = whole.parent.children if whole.parent is not None else []
        later = [node for node in siblings if node.type in LOOPS and node.start > whole.end and node.has("body")]
        for node in later:
            body = node.at("body")
            if body.type == "compound_statement" and any(
                call_name(call) == "mma_sync" and name in call.text for call in body.find("call_expression")
            ):
                inside = body.children[0].after(f" {whole.text}")
                yield tree.site(f"`{excerpt(whole)}` in every round", inside)
                break


def _fill_drop(tree: CudaTree) -> Iterator[Site | None]:
    for fill in _fills(tree):
        yield tree.site(f"`{excerpt(fill)}` dropped", fill.replaced(";"))


def _fragment_index(tree: CudaTree) -> Iterator[Site | None]:
    for _, values in _products(tree):
        for value in values[1:3]:
            indices = value.get("indices") if value.type == "subscript_expression" else None
            if indices is not None and indices.named_children and number(indices.named_children[0]) is None:
                yield tree.site(f"`{value.text}` -> index 0", indices.named_children[0].replaced("0"))


def _term_drop(tree: CudaTree) -> Iterator[Site | None]:
    found = list(_products(tree))
    for statement, values in found:
        same = [s for s, v in found if s.parent is statement.parent and v[0].flat == values[0].flat]
        if len(same) > 1:
            yield tree.site(f"`{excerpt(statement)}` dropped", statement.replaced(";"))


def _k_step_double(tree: CudaTree) -> Iterator[Site | None]:
    for loop in for_loops(tree):
        if loop.step is None or loop.kind != "up" or loop.by_threads:
            continue
        # The loop whose own body loads fragments, not one around it.
        loads = [c for c in loop.body.find("call_expression") if call_name(c) == "load_matrix_sync"]
        if loads and all(_stepping_loop(load) is loop.node for load in loads):
            yield tree.site(f"`{excerpt(loop.step)}` -> twice that", loop.step.replaced(f"2 * ({loop.step.text})"))


def _stepping_loop(node: Node) -> Node | None:
    """The nearest loop around a node that does not step by one."""
    return next((a for a in node.ancestors() if a.type == "for_statement" and a.has("update") and "+=" in a.text), None)


def _tf32_rounding_drop(tree: CudaTree) -> Iterator[Site | None]:
    for call in _calls(tree, "__float_to_tf32"):
        if len(arguments(call)) == 1:
            inner = arguments(call)[0].text
            yield tree.site(f"`{excerpt(call)}` not rounded", call.replaced(f"({inner})"))


def _round_operand(how: str, before: str, after: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for operand in _operands(tree):
            yield tree.site(f"`{excerpt(operand)}` as {how}", operand.replaced(f"{before}{operand.text}{after}"))
        for call in _calls(tree, "__float_to_tf32"):
            if how != "tf32" and len(arguments(call)) == 1:
                value = arguments(call)[0]
                yield tree.site(f"`{excerpt(value)}` as {how}", value.replaced(f"{before}{value.text}{after}"))

    return find


def _operands(tree: CudaTree) -> Iterator[Node]:
    """The first factor of sums of products in loops: `a * b` of `sum += a * b` and `fmaf(a, b, sum)`."""
    for found in accumulations(tree):
        product = found.value.bare
        if product.type == "binary_expression" and product.operator == "*" and product.has("left", "right"):
            left, right = product.at("left"), product.at("right")
            if left.flat != right.flat and found.node.above(*LOOPS) is not None and is_float(tree, left):
                yield left
    for call in _calls(tree, "fmaf", "fma", "__fmaf_rn"):
        if len(arguments(call)) == 3 and call.above(*LOOPS) is not None:
            first, second, third = arguments(call)
            target = call.parent
            sums = (
                target is not None
                and target.type == "assignment_expression"
                and target.has("left")
                and target.at("left").flat == third.flat
            )
            if sums and first.flat != second.flat and is_float(tree, first):
                yield first


_WHY_OPERAND = "Errors of single products are small and their signs differ, so loose tolerances cannot tell."

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "wmma-layout-swap",
        "tensor-core",
        "cuda",
        "A fragment is declared row-major instead of column-major, or the other way round.",
        "Symmetric or constant tiles are the same either way.",
        (
            Example(
                "wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;",
                "wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::col_major> a;",
            ),
        ),
        _swap_words("row_major", "col_major"),
    ),
    Operator(
        "wmma-store-layout-swap",
        "tensor-core",
        "cuda",
        "A result tile is stored transposed.",
        "Tiles on the diagonal of a symmetric product are their own transposes.",
        (
            Example(
                "wmma::store_matrix_sync(p, acc, 16, wmma::mem_row_major);",
                "wmma::store_matrix_sync(p, acc, 16, wmma::mem_col_major);",
            ),
        ),
        _swap_words("mem_row_major", "mem_col_major"),
    ),
    Operator(
        "wmma-leading-dimension",
        "tensor-core",
        "cuda",
        "A fragment is loaded or stored with the stride of another matrix, or of an unpadded one.",
        "Matrices of equal width have equal strides.",
        (
            Example(
                "wmma::load_matrix_sync(a, p, LDA);\nwmma::load_matrix_sync(b, q, LDB);",
                "wmma::load_matrix_sync(a, p, LDB);\nwmma::load_matrix_sync(b, q, LDB);",
            ),
        ),
        _leading_dimension,
    ),
    Operator(
        "mma-accumulate-drop",
        "tensor-core",
        "cuda",
        "A product replaces what the accumulator held.",
        "With a single slice along the summed dimension there is nothing to lose.",
        (
            Example(
                "wmma::mma_sync(acc, a, b, acc);", "{ wmma::fill_fragment(acc, 0.0f); wmma::mma_sync(acc, a, b, acc); }"
            ),
        ),
        _accumulate_drop,
    ),
    Operator(
        "mma-fill-in-loop",
        "tensor-core",
        "cuda",
        "The accumulator is cleared in every round of the loop over slices.",
        "With a single slice along the summed dimension there is a single round.",
        (
            Example(
                "wmma::fill_fragment(acc, 0.0f);\nfor (int k = 0; k < K; k += 8) { wmma::mma_sync(acc, a, b, acc); }",
                "wmma::fill_fragment(acc, 0.0f);\n"
                "for (int k = 0; k < K; k += 8) { wmma::fill_fragment(acc, 0.0f); wmma::mma_sync(acc, a, b, acc); }",
            ),
        ),
        _fill_in_loop,
    ),
    Operator(
        "mma-fill-drop",
        "tensor-core",
        "cuda",
        "The accumulator starts with whatever its registers hold.",
        "Registers are often zero in a fresh block.",
        (Example("wmma::fill_fragment(acc, 0.0f);", ";"),),
        _fill_drop,
    ),
    Operator(
        "mma-fragment-index",
        "tensor-core",
        "cuda",
        "A product takes the first of several fragments instead of its own.",
        "Inputs whose rows or columns are alike give equal fragments.",
        (Example("wmma::mma_sync(acc[i], a[i], b, acc[i]);", "wmma::mma_sync(acc[i], a[0], b, acc[i]);"),),
        _fragment_index,
    ),
    Operator(
        "mma-term-drop",
        "tensor-core",
        "cuda",
        "One of several products that make up a more precise one is left out.",
        "What is lost is a correction of relative size 2^-11.",
        (
            Example(
                "{ wmma::mma_sync(acc, low, b, acc); wmma::mma_sync(acc, a, b, acc); }",
                "{ ; wmma::mma_sync(acc, a, b, acc); }",
            ),
        ),
        _term_drop,
    ),
    Operator(
        "mma-k-step-double",
        "tensor-core",
        "cuda",
        "The loop over a tile's slices skips every second one.",
        "Zeros in the skipped half, as in triangular or padded inputs, hide it.",
        (
            Example(
                "for (int k = 0; k < 32; k += 8) { wmma::load_matrix_sync(a, p + k, LDA); }",
                "for (int k = 0; k < 32; k += 2 * (8)) { wmma::load_matrix_sync(a, p + k, LDA); }",
            ),
        ),
        _k_step_double,
    ),
    Operator(
        "tf32-rounding-drop",
        "tensor-core",
        "cuda",
        "Operands go to the tensor core without being rounded to TF32, so they are cut off.",
        "The difference is half a unit in the eleventh bit.",
        (Example("a.x[i] = wmma::__float_to_tf32(v);", "a.x[i] = (v);"),),
        _tf32_rounding_drop,
    ),
    Operator(
        "operand-tf32",
        "tensor-core",
        "cuda",
        "One operand of a sum of products keeps 10 bits of its fraction, as on a tensor core.",
        _WHY_OPERAND,
        (
            Example(
                "float sum = 0.0f, a, b;\nfor (int k = 0; k < K; ++k) sum += a * b;",
                "float sum = 0.0f, a, b;\n"
                "for (int k = 0; k < K; ++k) sum += __uint_as_float(__float_as_uint(a) & 0xffffe000u) * b;",
            ),
        ),
        _round_operand("tf32", "__uint_as_float(__float_as_uint(", ") & 0xffffe000u)"),
    ),
    Operator(
        "operand-bf16",
        "tensor-core",
        "cuda",
        "One operand of a sum of products keeps 7 bits of its fraction.",
        _WHY_OPERAND,
        (
            Example(
                "float sum = 0.0f, a, b;\nfor (int k = 0; k < K; ++k) sum = fmaf(a, b, sum);",
                "float sum = 0.0f, a, b;\n"
                "for (int k = 0; k < K; ++k) sum = fmaf(__uint_as_float(__float_as_uint(a) & 0xffff0000u), b, sum);",
            ),
        ),
        _round_operand("bf16", "__uint_as_float(__float_as_uint(", ") & 0xffff0000u)"),
    ),
)
