"""Host code on CUDA: how kernels are launched, with how many threads, on which arguments."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree, Launch
from ...cuda_roles import excerpt
from ...cuda_syntax import Node
from ...cuda_types import arguments, call_name, number
from ...mutant import Example, Operator, Site

REPLACES = {
    "grid-minus1": ("alloc_decrement",),
    "block-size-plus1": ("alloc_increment",),
    "grid-axes-swap": ("alloc_swap",),
    "block-axes-swap": ("alloc_swap",),
}


def dimensions(tree: CudaTree, node: Node) -> list[Node]:
    """The extents that a launch's grid or block is written with: `{a, b}` of `dim3 grid(a, b)`, or the number alone."""
    node = node.bare
    if node.type == "call_expression" and call_name(node) == "dim3":
        return arguments(node)
    if node.type == "identifier":
        function = tree.function(node)
        for found in function.body.find("init_declarator", "function_declarator") if function is not None else ():
            name, declaration = found.get("declarator"), found.above("declaration")
            kind = declaration.get("type") if declaration is not None else None
            if name is None or name.text != node.text or kind is None or kind.text not in ("dim3", "auto"):
                continue
            written = found.get("value") or found.get("parameters")
            if written is not None and written.type in ("argument_list", "parameter_list", "initializer_list"):
                return written.named_children
            if written is not None:
                return dimensions(tree, written) if written.bare.type == "call_expression" else [written]
    return [node]


def _part(tree: CudaTree, launch: Launch, index: int) -> list[Node]:
    return dimensions(tree, launch.configuration[index]) if len(launch.configuration) > index else []


def _scaled(node: Node, how: str) -> str:
    value = number(node)
    if value is not None and value == int(value):
        result = {"/ 2": int(value) // 2, "* 2": int(value) * 2, "+ 1": int(value) + 1, "- 1": int(value) - 1}[how]
        return str(result)
    return f"({node.text}) {how}"


def _resize(part: int, how: str, what: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for launch in tree.launches:
            for extent in _part(tree, launch, part)[:1]:
                text = _scaled(extent, how)
                if text != "0":
                    yield tree.site(
                        f"{what} of {launch.kernel}: `{excerpt(extent)}` -> `{text}`", extent.replaced(text)
                    )

    return find


def _swap_axes(part: int, what: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for launch in tree.launches:
            extents = _part(tree, launch, part)
            if len(extents) >= 2 and extents[0].flat != extents[1].flat:
                x, y = extents[:2]
                yield tree.site(f"{what} of {launch.kernel}: x and y swapped", x.replaced(y.text), y.replaced(x.text))

    return find


def _grid_z_one(tree: CudaTree) -> Iterator[Site | None]:
    for launch in tree.launches:
        extents = _part(tree, launch, 0)
        if len(extents) == 3 and number(extents[2]) != 1:
            yield tree.site(f"grid of {launch.kernel}: z is 1", extents[2].replaced("1"))


def _shared_bytes(how: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for launch in tree.launches:
            size = launch.configuration[2] if len(launch.configuration) > 2 else None
            if size is not None and number(size) is None:
                text = how.format(size.text)
                yield tree.site(f"shared memory of {launch.kernel}: `{excerpt(size)}` -> `{text}`", size.replaced(text))

    return find


def _swap_arguments(tree: CudaTree) -> Iterator[Site | None]:
    """At most two pairs of each type in a launch: long lists of extents would outweigh everything else."""
    kernels = {kernel.name: kernel for kernel in tree.kernels}
    for launch in tree.launches:
        kernel = kernels.get(launch.kernel)
        if kernel is None or len(kernel.parameters) != len(launch.arguments):
            continue
        kinds = [(p.type, p.pointer, "const" in p.declaration.text) for p in kernel.parameters]
        counts: dict[tuple[str, int, bool], int] = {}
        for index in range(len(kinds) - 1):
            first, second = launch.arguments[index : index + 2]
            if kinds[index] == kinds[index + 1] and first.flat != second.flat and counts.get(kinds[index], 0) < 2:
                counts[kinds[index]] = counts.get(kinds[index], 0) + 1
                yield tree.site(
                    f"{launch.kernel}: `{excerpt(first)}` and `{excerpt(second)}` swapped",
                    first.replaced(second.text),
                    second.replaced(first.text),
                )


def _size_index(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression", device=False):
        function, values = node.get("function"), arguments(node)
        if function is None or function.type != "field_expression" or len(values) != 1:
            continue
        index = number(values[0])
        if function.text.endswith(".size") and index is not None:
            other = 1 if index == 0 else int(index) - 1
            yield tree.site(f"`{node.text}` -> `.size({other})`", values[0].replaced(str(other)))


def _host(code: str) -> str:
    return (
        "__global__ void k(const float* a, const float* b, float* c, int m, int n) { c[0] = a[m] + b[n]; }\n"
        f"torch::Tensor f(torch::Tensor x) {{ {code} return x; }}"
    )


def _example(old: str, new: str) -> tuple[Example, ...]:
    return (Example(_host(old), _host(new)),)


_AXES = "const dim3 grid((n + 31) / 32, (m + 7) / 8, batch), block(32, 8); k<<<grid, block>>>(a, b, c, m, n);"

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "block-size-halve",
        "boundary",
        "cuda",
        "A kernel is launched with half the threads that it is written for.",
        "Loops that step by the block's size do not mind; others leave out parts that a small output does not have.",
        _example("k<<<m, 256>>>(a, b, c, m, n);", "k<<<m, 128>>>(a, b, c, m, n);"),
        _resize(1, "/ 2", "block"),
    ),
    Operator(
        "block-size-double",
        "boundary",
        "cuda",
        "A kernel is launched with twice the threads that it is written for.",
        "Guards and strides by the block's size make it right; without them the surplus threads repeat or overwrite.",
        _example("k<<<m, THREADS>>>(a, b, c, m, n);", "k<<<m, (THREADS) * 2>>>(a, b, c, m, n);"),
        _resize(1, "* 2", "block"),
    ),
    Operator(
        "block-size-plus1",
        "boundary",
        "cuda",
        "A kernel is launched with one thread too many.",
        "The surplus thread mostly works on an element that does not exist.",
        _example("k<<<m, 256>>>(a, b, c, m, n);", "k<<<m, 257>>>(a, b, c, m, n);"),
        _resize(1, "+ 1", "block"),
    ),
    Operator(
        "grid-minus1",
        "boundary",
        "cuda",
        "A kernel is launched with one block too few.",
        "The last block may hold few elements, and fresh outputs may hold the right numbers of an earlier run.",
        _example("k<<<m, 256>>>(a, b, c, m, n);", "k<<<(m) - 1, 256>>>(a, b, c, m, n);"),
        _resize(0, "- 1", "grid"),
    ),
    Operator(
        "grid-z-one",
        "boundary",
        "cuda",
        "The third extent of a grid is left out: one batch, one group, one slice of a sum.",
        "A batch of one needs no more.",
        _example(_AXES, _AXES.replace("batch", "1")),
        _grid_z_one,
    ),
    Operator(
        "shared-bytes-halve",
        "boundary",
        "cuda",
        "A kernel gets half the shared memory that it uses.",
        "Allocations are rounded up, and memory behind them is mostly there.",
        _example("k<<<m, 256, bytes>>>(a, b, c, m, n);", "k<<<m, 256, (bytes) / 2>>>(a, b, c, m, n);"),
        _shared_bytes("({}) / 2"),
    ),
    Operator(
        "shared-bytes-zero",
        "boundary",
        "cuda",
        "A kernel gets no dynamic shared memory.",
        "Memory behind a block's own is mostly there.",
        _example("k<<<m, 256, bytes>>>(a, b, c, m, n);", "k<<<m, 256, 0>>>(a, b, c, m, n);"),
        _shared_bytes("0"),
    ),
    Operator(
        "grid-axes-swap",
        "indexing",
        "cuda",
        "The extents of the grid along x and y are swapped.",
        "Square outputs have equal extents.",
        _example(_AXES, _AXES.replace("(n + 31) / 32, (m + 7) / 8", "(m + 7) / 8, (n + 31) / 32")),
        _swap_axes(0, "grid"),
    ),
    Operator(
        "block-axes-swap",
        "indexing",
        "cuda",
        "The extents of the block along x and y are swapped.",
        "Kernels that number their threads themselves do not mind.",
        _example(_AXES, _AXES.replace("block(32, 8)", "block(8, 32)")),
        _swap_axes(1, "block"),
    ),
    Operator(
        "launch-arguments-swap",
        "indexing",
        "cuda",
        "Two neighbouring arguments of the same type are swapped in a launch.",
        "Square shapes and symmetric operations make them equal.",
        _example("k<<<m, 256>>>(a, b, c, m, n);", "k<<<m, 256>>>(b, a, c, m, n);"),
        _swap_arguments,
    ),
    Operator(
        "size-index-swap",
        "indexing",
        "cuda",
        "The host takes a length from the neighbouring dimension.",
        "Square shapes have equal lengths.",
        _example("const int m = x.size(0);", "const int m = x.size(1);"),
        _size_index,
    ),
)
