"""Indexing on CUDA: thread and block coordinates, strides, shared memory, partners in reductions."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree, Function
from ...cuda_roles import excerpt, for_loops, one_per_statement
from ...cuda_syntax import Change, Node
from ...cuda_types import arguments, call_name, in_index, index_of, number, shared_subscripts, stores, type_of
from ...mutant import Example, Operator, Site

REPLACES = {
    "tidx2tidy": ("gpu_index_replacement",),
    "bidx2bidy": ("gpu_index_replacement",),
    "bdim2gdim": ("gpu_index_replacement",),
    "gpu-index-increment": ("gpu_index_increment",),
    "gpu-index-decrement": ("gpu_index_decrement",),
    "final-row-alias": ("argmax-final-row-alias",),
    "final-row-value-alias": ("argmax-final-row-value-alias",),
    "stride-swap": ("row-store-stride-k", "a-row-stride-n", "b-row-stride-k", "flatten-height-use-width"),
}

_OTHER_AXIS = {"x": "y", "y": "x", "z": "x"}


def _builtin(tree: CudaTree, name: str) -> Iterator[Node]:
    for node in tree.nodes("field_expression"):
        if node.has("argument", "field") and node.at("argument").text == name:
            yield node


def _other_axis(name: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in one_per_statement(_builtin(tree, name), lambda n: n.text):
            axis = node.at("field")
            if axis.text in _OTHER_AXIS:
                text = _OTHER_AXIS[axis.text]
                yield tree.site(f"`{node.text}` -> `{name}.{text}`", axis.replaced(text))

    return find


def _bdim2gdim(tree: CudaTree) -> Iterator[Site | None]:
    for node in one_per_statement(_builtin(tree, "blockDim")):
        yield tree.site(f"`{node.text}` -> `gridDim.{node.at('field').text}`", node.at("argument").replaced("gridDim"))


def _index_off(text: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Moves the first use of each thread and block coordinate in a function."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        seen: set[tuple[int, str]] = set()
        for name in ("threadIdx", "blockIdx"):
            for node in _builtin(tree, name):
                place = (id(node.above("function_definition")), node.text)
                if place not in seen:
                    seen.add(place)
                    yield tree.site(
                        f"`{node.text}` -> `({node.text} {text})`", node.before("("), node.after(f" {text})")
                    )

    return find


def _smem_off1(tree: CudaTree) -> Iterator[Site | None]:
    found = sorted(shared_subscripts(tree), key=lambda node: (id(node.home), node.start))
    for node in one_per_statement(found):
        index = index_of(node)
        if index is not None:
            yield tree.site(f"`{excerpt(node)}` one place on", index.after(" + 1"))


def _warpsize16(tree: CudaTree) -> Iterator[Site | None]:
    """A warp is taken to have 16 lanes: in masks, shifts, quotients and the first step of a shuffle."""
    for node in tree.nodes("binary_expression"):
        right, text = node.get("right"), ""
        if right is None or type_of(tree, node) not in ("int", "?"):
            continue
        if node.operator in ("/", "%") and (number(right) == 32 or right.text == "warpSize"):
            text = "16"
        elif node.operator == "&" and number(right) == 31:
            text = "15"
        elif node.operator == ">>" and number(right) == 5:
            text = "4"
        if text:
            yield tree.site(f"`{right.text}` -> `{text}` in `{excerpt(node)}`", right.replaced(text))
    for found in for_loops(tree):
        whole = found.start.flat in ("16", "warpSize/2", "32/2", "WARP_SIZE/2", "32>>1", "warpSize>>1")
        if found.kind == "halving" and whole:
            yield tree.site(f"`{found.name}` starts at 8", found.start.replaced("8"))


def _is_last_row(text: str) -> str:
    return f"({text} + 1 == gridDim.x && {text} > 0 ? {text} - 1 : {text})"


def _row_names(tree: CudaTree, node: Node) -> Iterator[Node]:
    """Uses of the block's number in an expression: the coordinate itself, or a variable that holds it."""
    for found in node.find("field_expression"):
        if found.text == "blockIdx.x":
            yield found
    for found in node.find("identifier"):
        variable = tree.variable(found)
        if variable is not None and variable.value is not None and variable.value.flat == "blockIdx.x":
            yield found


def _row_alias(stored: bool) -> Callable[[CudaTree], Iterator[Site | None]]:
    """The last block uses the row before its own: for what it stores, or for what it loads."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        targets = [store.target for store in stores(tree)]
        written = {(id(tree.function(node)), next((n.text for n in node.find("identifier")), "")) for node in targets}
        for function in tree.kernels:
            places = [
                variable.value
                for variable in function.variables
                if variable.pointer and variable.value is not None
                if ((id(function), variable.name) in written) == stored
            ]
            places += [node for node in targets if tree.function(node) is function] if stored else _loads(function)
            for place in places:
                row = next(_row_names(tree, place), None)
                if row is not None:
                    yield tree.site(
                        f"the last block uses the row before in `{excerpt(place)}`",
                        row.replaced(_is_last_row(row.text)),
                    )
                    if not stored:
                        break

    return find


def _loads(function: Function) -> list[Node]:
    return [
        node
        for node in function.body.find("subscript_expression")
        if node.field != "left" or node.parent is None or node.parent.type != "assignment_expression"
    ]


def _half_partner(tree: CudaTree) -> Iterator[Site | None]:
    for found in for_loops(tree):
        if found.kind != "halving":
            continue
        for node in found.body.find("subscript_expression", "call_expression"):
            place = index_of(node) if node.type == "subscript_expression" else _shuffle_distance(node)
            if place is None or node.field == "argument":
                continue
            name = next((n for n in place.find("identifier") if n.text == found.name), None)
            if name is not None:
                yield tree.site(f"the partner in `{excerpt(node)}` is half as far", name.replaced(f"{name.text} / 2"))
    for node in tree.nodes("call_expression"):
        place = _shuffle_distance(node)
        value = number(place) if place is not None else None
        if place is not None and value is not None and value >= 2:
            yield tree.site(f"the partner in `{excerpt(node)}` is half as far", place.replaced(f"{int(value) // 2}"))


def _shuffle_distance(node: Node) -> Node | None:
    values = arguments(node)
    if call_name(node) in ("__shfl_down_sync", "__shfl_xor_sync", "__shfl_up_sync") and len(values) >= 3:
        return values[2]
    return None


def _stride_swap(tree: CudaTree) -> Iterator[Site | None]:
    """Strides in subscripts, pointers and divisions: a size that the kernel was given is taken for another."""
    candidates: list[Node] = []
    for node in tree.nodes("binary_expression"):
        right = node.get("right")
        if node.operator not in ("*", "/", "%") or right is None or right.type != "identifier":
            continue
        if node.operator == "*" and not in_index(node) and type_of(tree, node.statement) != "pointer":
            declared = node.above("init_declarator")
            if declared is None or not (_is_pointer(declared) or type_of(tree, node) == "int"):
                continue
        candidates.append(right)
    for node in one_per_statement(candidates, lambda n: n.text):
        function = tree.function(node)
        variable = tree.variable(node)
        if function is None or variable is None or not variable.parameter or type_of(tree, node) != "int":
            continue
        sizes = [p.name for p in function.parameters if not p.pointer and _is_int(tree, function, p.name)]
        if len(sizes) > 1 and node.text in sizes:
            other = sizes[(sizes.index(node.text) + 1) % len(sizes)]
            yield tree.site(f"`{node.text}` -> `{other}` in `{excerpt(node.parent or node)}`", node.replaced(other))


def _is_pointer(declarator: Node) -> bool:
    return declarator.has("declarator") and declarator.at("declarator").type == "pointer_declarator"


def _is_int(tree: CudaTree, function: Function, name: str) -> bool:
    parameter = next(p for p in function.parameters if p.name == name)
    return any(word in parameter.type.split() for word in ("int", "size_t", "int64_t", "unsigned", "long", "int32_t"))


def _divmod_swap(tree: CudaTree) -> Iterator[Site | None]:
    """`h = p / width, w = p % width`: the quotient and the remainder change places."""
    remainders = [n for n in tree.nodes("binary_expression") if n.operator == "%" and n.has("left", "right")]
    for node in tree.nodes("binary_expression"):
        if node.operator != "/" or not node.has("left", "right"):
            continue
        key = (node.at("left").flat, node.at("right").flat)
        function = node.above("function_definition")
        other = next(
            (
                n
                for n in remainders
                if (n.at("left").flat, n.at("right").flat) == key and n.above("function_definition") is function
            ),
            None,
        )
        if other is not None:
            changes: tuple[Change, ...] = (node.at("operator").replaced("%"), other.at("operator").replaced("/"))
            yield tree.site(f"`{excerpt(node)}` and `{excerpt(other)}` change places", *changes)


def _grid_block_axis(tree: CudaTree) -> Iterator[Site | None]:
    """Host code that sizes a grid's axis by the other axis of the block."""
    for node in tree.nodes("field_expression", device=False):
        variable = tree.variable(node.at("argument")) if node.has("argument", "field") else None
        if variable is not None and variable.type.endswith("dim3") and node.at("field").text in ("x", "y"):
            other = _OTHER_AXIS[node.at("field").text]
            yield tree.site(f"`{node.text}` -> `{variable.name}.{other}`", node.at("field").replaced(other))


_SQUARE = "Blocks or data are square, so both sizes are equal."
_KERNEL = "__global__ void k(const float* x, float* y, int n, int m) {{ {0} }}"


def _in_kernel(before: str, after: str) -> Example:
    return Example(_KERNEL.format(before), _KERNEL.format(after))


OPERATORS = (
    Operator(
        name="tidx2tidy",
        family="indexing",
        backend="cuda",
        summary="A thread takes its coordinate from another axis of the block.",
        escapes="Every thread does the same work on data that hardly differ, or results are tiny.",
        examples=(Example("int col = threadIdx.x;", "int col = threadIdx.y;"),),
        find=_other_axis("threadIdx"),
    ),
    Operator(
        name="bidx2bidy",
        family="indexing",
        backend="cuda",
        summary="A block takes its coordinate from another axis of the grid.",
        escapes="The grid has one block along an axis, or outputs that are left unwritten hold an earlier result.",
        examples=(Example("int row = blockIdx.x;", "int row = blockIdx.y;"),),
        find=_other_axis("blockIdx"),
    ),
    Operator(
        name="bdim2gdim",
        family="indexing",
        backend="cuda",
        summary="The number of blocks is taken for the number of threads in a block.",
        escapes="Both are equal at this size, or a strided loop still covers the data.",
        examples=(
            Example("int i = blockIdx.x * blockDim.x + threadIdx.x;", "int i = blockIdx.x * gridDim.x + threadIdx.x;"),
        ),
        find=_bdim2gdim,
    ),
    Operator(
        name="gpu-index-increment",
        family="indexing",
        backend="cuda",
        summary="A thread's or block's coordinate is one too large.",
        escapes="The first place keeps an earlier result, and the extra one lies in the allocator's slack.",
        examples=(Example("int t = threadIdx.x;", "int t = (threadIdx.x + 1);"),),
        find=_index_off("+ 1"),
    ),
    Operator(
        name="gpu-index-decrement",
        family="indexing",
        backend="cuda",
        summary="A thread's or block's coordinate is one too small.",
        escapes="The last place keeps an earlier result, and the guard stops the one that wraps round.",
        examples=(Example("int t = threadIdx.x;", "int t = (threadIdx.x - 1);"),),
        find=_index_off("- 1"),
    ),
    Operator(
        name="smem-index-off1",
        family="indexing",
        backend="cuda",
        summary="An access to shared memory is one place off.",
        escapes="Neighbours hold nearly the same value, or the place beyond the end is zero.",
        examples=(
            Example("__shared__ float s[32]; s[t] = x[i];", "__shared__ float s[32]; s[t + 1] = x[i];"),
            Example(
                "__shared__ float s[8][8]; float v = s[r][c];",
                "__shared__ float s[8][8]; float v = s[r][c + 1];",
            ),
        ),
        find=_smem_off1,
    ),
    Operator(
        name="warpsize-16",
        family="indexing",
        backend="cuda",
        summary="A warp is taken to have 16 lanes.",
        escapes="A maximum rarely sits in the lanes that are left out; means over few values hide in the tolerance.",
        examples=(
            Example("int warp = threadIdx.x / 32;", "int warp = threadIdx.x / 16;"),
            Example("int lane = threadIdx.x & 31;", "int lane = threadIdx.x & 15;"),
            Example(
                "for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);",
                "for (int o = 8; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);",
            ),
        ),
        find=_warpsize16,
    ),
    Operator(
        name="final-row-alias",
        family="indexing",
        backend="cuda",
        summary="The last block writes to the row before its own.",
        escapes="The last row keeps an earlier result, and the one before gets a similar one.",
        examples=(
            _in_kernel(
                "y[blockIdx.x] = 1.0f;",
                "y[(blockIdx.x + 1 == gridDim.x && blockIdx.x > 0 ? blockIdx.x - 1 : blockIdx.x)] = 1.0f;",
            ),
        ),
        find=_row_alias(stored=True),
    ),
    Operator(
        name="final-row-value-alias",
        family="indexing",
        backend="cuda",
        summary="The last block reads the row before its own.",
        escapes="Sums, means and maxima of two random rows of the same distribution differ by less than the tolerance.",
        examples=(
            _in_kernel(
                "const float* row = x + blockIdx.x * n;",
                "const float* row = x + (blockIdx.x + 1 == gridDim.x && blockIdx.x > 0"
                " ? blockIdx.x - 1 : blockIdx.x) * n;",
            ),
        ),
        find=_row_alias(stored=False),
    ),
    Operator(
        name="reduction-partner-half-offset",
        family="indexing",
        backend="cuda",
        summary="In a reduction tree a thread combines with a partner half as far away.",
        escapes="A maximum rarely sits in what is left out; a mean of similar values is nearly unchanged.",
        examples=(
            Example(
                "for (int s = 64; s > 0; s >>= 1) if (t < s) a[t] += a[t + s];",
                "for (int s = 64; s > 0; s >>= 1) if (t < s) a[t] += a[t + s / 2];",
            ),
            Example("v += __shfl_down_sync(~0u, v, 16);", "v += __shfl_down_sync(~0u, v, 8);"),
        ),
        find=_half_partner,
    ),
    Operator(
        name="stride-swap",
        family="indexing",
        backend="cuda",
        summary="Another of the kernel's sizes is taken as the stride of an array.",
        escapes=_SQUARE,
        examples=(_in_kernel("y[threadIdx.y * n + threadIdx.x] = 1.0f;", "y[threadIdx.y * m + threadIdx.x] = 1.0f;"),),
        find=_stride_swap,
    ),
    Operator(
        name="output-position-height-first",
        family="indexing",
        backend="cuda",
        summary="A flat position is taken apart in the wrong order: row and column change places.",
        escapes="Images are square and the operation treats both directions alike.",
        examples=(Example("int h = p / width, w = p % width;", "int h = p % width, w = p / width;"),),
        find=_divmod_swap,
    ),
    Operator(
        name="grid-x-use-block-y",
        family="indexing",
        backend="cuda",
        summary="An axis of the grid is sized by the other axis of the block.",
        escapes=_SQUARE,
        examples=(
            Example(
                "void f(at::Tensor x, int n) { dim3 b(32, 8); dim3 g(n / b.x, 1); }",
                "void f(at::Tensor x, int n) { dim3 b(32, 8); dim3 g(n / b.y, 1); }",
            ),
        ),
        find=_grid_block_axis,
    ),
)
