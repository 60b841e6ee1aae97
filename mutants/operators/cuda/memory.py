"""Memory on CUDA: vector accesses, alignment, widths of offsets, caches, and memory that nobody has set."""

import re
from collections.abc import Iterator

from ...cuda import CudaTree, Function
from ...cuda_roles import excerpt, is_accumulator
from ...cuda_syntax import Change, Node
from ...cuda_types import arguments, base_variable, call_name, identifiers, index_of, memory_of, number, stores, type_of
from ...mutant import Example, Operator, Site

_VECTOR = re.compile(r"\b(?:float|double|int|uint)[24]\b|\b(?:half2|__half2|__nv_bfloat162)\b")
_WIDE = re.compile(
    r"(?:std::)?(?:u?int64_t|size_t|ssize_t|ptrdiff_t|long\s+long(?:\s+int)?|unsigned\s+long\s+long|long)"
)
_REST = re.compile(r"(?<![\w.])[48]\*(?![\d.])\w|\w\*[48](?![\w.])|/[48]\*[48]|&~[37]")
_ALIGNMENT = re.compile(r"%(?:16|8)(?!\w)|&(?:15|7|0x[fF]|0x7)(?!\w)|(?i:aligned)")
_DIVISIBLE = re.compile(r"%[248]==0|&[37]\)?==0|(?i:vectori[sz]able)")


def _has_vectors(tree: CudaTree) -> bool:
    return any(_VECTOR.search(root.text) for root in tree.roots)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def _rests(function: Function) -> set[str]:
    """Names of positions behind the last whole vector: `rest = 4 * quads + i`."""
    return {
        node.at("declarator").text
        for node in function.body.find("init_declarator")
        if node.has("declarator", "value") and _REST.search(node.at("value").flat) and "/" not in node.at("value").flat
    }


def _vector_tail_drop(tree: CudaTree) -> Iterator[Site | None]:
    if not _has_vectors(tree):
        return
    for function in tree.functions:
        rests = _rests(function)
        for node in function.body.find("if_statement", "for_statement"):
            body = node.get("body") or node.get("consequence")
            if body is None or node.get("alternative") is not None or _VECTOR.search(node.text):
                continue
            head = node.home.text[node.start : body.start]
            flat = "".join(head.split())
            names = identifiers(node.at("condition")) if node.has("condition") else set()
            starts_behind = bool(_REST.search(flat)) or bool(names & rests)
            writes = any(body.find("assignment_expression", "kernel_call_syntax"))
            if starts_behind and writes and "<" in flat:
                yield tree.site(f"`{excerpt(node)}` dropped", node.replaced(";"))


def _alignment_assumed(tree: CudaTree) -> Iterator[Site | None]:
    if not _has_vectors(tree):
        return
    for node in tree.nodes("init_declarator", device=None):
        if node.has("value") and _ALIGNMENT.search(node.at("value").flat) and "uintptr_t" in node.text:
            value = node.at("value")
            yield tree.site(f"`{excerpt(value)}` -> `true`", value.replaced("true"))
    for node in tree.nodes("if_statement", device=None):
        if node.has("condition", "consequence") and "uintptr_t" in node.at("condition").text:
            test = node.at("condition").bare
            if _ALIGNMENT.search(test.flat):
                found = "true" if test.flat.endswith("==0") else "false"
                yield tree.site(f"`{excerpt(test)}` -> `{found}`", test.replaced(found))


def _divisibility_assumed(tree: CudaTree) -> Iterator[Site | None]:
    if not _has_vectors(tree):
        return
    for node in tree.nodes("binary_expression", device=None):
        if node.operator == "==" and _DIVISIBLE.search(node.flat) and "uintptr_t" not in node.text:
            yield tree.site(f"`{excerpt(node)}` -> `true`", node.replaced("true"))


def _vector_count_ceil(tree: CudaTree) -> Iterator[Site | None]:
    if not _has_vectors(tree):
        return
    for node in tree.nodes("binary_expression", device=None):
        if node.operator != "/" or not node.has("left", "right") or number(node.at("right")) not in (4, 8):
            continue
        left, width = node.at("left"), node.at("right").text
        if left.type in ("identifier", "call_expression", "field_expression") and type_of(tree, left) in ("int", "?"):
            text = f"({left.text} + {width} - 1) / {width}"
            yield tree.site(f"`{excerpt(node)}` -> `{text}`", node.replaced(text))


def _lane_repeat(tree: CudaTree) -> Iterator[Site | None]:
    previous = {"y": "x", "z": "y", "w": "z"}
    for node in tree.nodes("field_expression"):
        lane = node.get("field")
        if lane is None or lane.text not in previous or not node.has("argument"):
            continue
        if type_of(tree, node.at("argument")) != "vector" or _is_target(node):
            continue
        if lane.text == "w" or (lane.text == "y" and re.search(r"(?:float|half|double|int)2", _declared(tree, node))):
            yield tree.site(f"`{node.text}` -> `.{previous[lane.text]}`", lane.replaced(previous[lane.text]))


def _declared(tree: CudaTree, node: Node) -> str:
    variable = tree.variable(next(node.find("identifier"), node))
    return variable.type if variable is not None else ""


def _is_target(node: Node) -> bool:
    """Whether an expression is what an assignment writes."""
    return node.field == "left" and node.parent is not None and node.parent.type == "assignment_expression"


# ---- offsets ---------------------------------------------------------------------------------------------------------


def _offset_int32(tree: CudaTree) -> Iterator[Site | None]:
    """One site per candidate: data of that size is rare, and every kernel fails on the same."""
    changes: list[Change] = []
    for node in tree.nodes("cast_expression", "call_expression"):
        kind = node.get("type") if node.type == "cast_expression" else node.get("function")
        if kind is not None and kind.type == "template_function" and call_name(node) == "static_cast":
            kind = next(kind.find("type_descriptor"), kind)
        if kind is not None and _WIDE.fullmatch(kind.text.strip()):
            changes.append(kind.replaced("int"))
    for kernel in tree.kernels:
        for parameter in kernel.parameters:
            kind = parameter.declaration.get("type")
            if kind is not None and not parameter.pointer and _WIDE.fullmatch(parameter.type.strip()):
                changes.append(kind.replaced("int"))
    if changes:
        yield tree.site("lengths and offsets of kernels in 32 bits", *changes)


# ---- what memory holds -----------------------------------------------------------------------------------------------


def _ldg_on_written(tree: CudaTree) -> Iterator[Site | None]:
    written: dict[int, set[str]] = {}
    for store in stores(tree):
        function, variable = tree.function(store.node), base_variable(tree, store.target)
        if function is not None and variable is not None:
            written.setdefault(id(function), set()).add(variable.name)
    for node in tree.nodes("subscript_expression"):
        function, variable = tree.function(node), base_variable(tree, node)
        if function is None or variable is None or variable.name not in written.get(id(function), set()):
            continue
        if not function.kernel:  # a pointer that a device function takes may lead to shared memory
            continue
        if _is_target(node) or memory_of(tree, node) != "global" or type_of(tree, node) not in ("float", "int"):
            continue
        above = node.parent
        if index_of(node) is None or above is None or above.type in ("pointer_expression", "subscript_expression"):
            continue
        yield tree.site(f"`{excerpt(node)}` through the read-only cache", node.replaced(f"__ldg(&{node.text})"))


def _zeroed_drop(tree: CudaTree) -> Iterator[Site | None]:
    names = {"zeros": "empty", "zeros_like": "empty_like"}
    for node in tree.nodes("call_expression", device=False):
        name = call_name(node)
        function = node.get("function")
        if name in names and function is not None and function.text.rsplit("::", 1)[0] in ("torch", "at"):
            text = function.text[: -len(name)] + names[name]
            yield tree.site(f"`{excerpt(node)}` not set to zero", function.replaced(text))
        elif name in ("cudaMemset", "cudaMemsetAsync") or name.endswith(".zero_"):
            statement = node.statement
            if statement is node.parent and statement.type == "expression_statement":
                yield tree.site(f"`{excerpt(node)}` dropped", statement.replaced(";"))


def _in_place(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression", device=False):
        function = node.get("function")
        if call_name(node) == "empty_like" and function is not None and len(arguments(node)) == 1:
            value = arguments(node)[0]
            if value.type == "identifier" and node.parent is not None and node.parent.type == "init_declarator":
                yield tree.site(f"the result overwrites `{value.text}`", node.replaced(value.text))


def _unset_accumulator(tree: CudaTree) -> Iterator[Site | None]:
    """The first of each function."""
    seen: set[int] = set()
    for node in tree.nodes("init_declarator"):
        if not node.has("declarator", "value"):
            continue
        value = node.at("value")
        if number(value) != 0 and (value.type != "initializer_list" or value.named_children):
            continue
        target = node.at("declarator")
        name = next((n.text for n in target.find("identifier")), "")
        kind = node.parent.get("type") if node.parent is not None else None
        if name and kind is not None and kind.text in ("float", "double") and is_accumulator(tree, name, node):
            function = tree.function(node)
            if function is not None and id(function) not in seen:
                seen.add(id(function))
                yield tree.site(f"`{excerpt(node)}` left unset", node.replaced(target.text))


_VECTOR_TAIL = "float4 v = ((const float4*)x)[i];\nconst int rest = 4 * quads + i;\nif (rest < n) y[rest] = x[rest];"

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "vector-tail-drop",
        "memory",
        "cuda",
        "The elements behind the last whole vector are not worked on.",
        "Declared sizes are multiples of four, and fresh outputs may hold the right numbers of an earlier run.",
        (Example(_VECTOR_TAIL, _VECTOR_TAIL.replace("if (rest < n) y[rest] = x[rest];", ";")),),
        _vector_tail_drop,
    ),
    Operator(
        "vector-alignment-assumed",
        "memory",
        "cuda",
        "Vector accesses are made whatever the addresses are.",
        "Whole tensors are aligned; only views and rows of odd width are not.",
        (
            Example(
                "torch::Tensor f(torch::Tensor x) { const bool fine = (uintptr_t)p % 16 == 0; float4* v; return x; }",
                "torch::Tensor f(torch::Tensor x) { const bool fine = true; float4* v; return x; }",
            ),
        ),
        _alignment_assumed,
    ),
    Operator(
        "vector-divisibility-assumed",
        "memory",
        "cuda",
        "A length is taken to be a multiple of the vector's width.",
        "Declared sizes are.",
        (
            Example(
                "const bool whole = dim % 4 == 0;\nfloat4 v;",
                "const bool whole = true;\nfloat4 v;",
            ),
        ),
        _divisibility_assumed,
    ),
    Operator(
        "vector-count-ceil",
        "memory",
        "cuda",
        "The number of vectors is rounded up, so the last one reaches beyond the data.",
        "Declared sizes are multiples of four.",
        (Example("const int quads = n / 4;\nfloat4 v;", "const int quads = (n + 4 - 1) / 4;\nfloat4 v;"),),
        _vector_count_ceil,
    ),
    Operator(
        "vector-lane-repeat",
        "memory",
        "cuda",
        "A vector's last lane is computed from the one before it.",
        "A quarter of the outputs is wrong, but inputs that vary slowly make it a small error.",
        (Example("float4 v;\nsum = v.x + v.y + v.z + v.w;", "float4 v;\nsum = v.x + v.y + v.z + v.z;"),),
        _lane_repeat,
    ),
    Operator(
        "offset-int32",
        "memory",
        "cuda",
        "Lengths and offsets are computed in 32 bits.",
        "Only tensors of more than 2^31 elements have larger ones.",
        (
            Example(
                "__global__ void f(float* y, int64_t n) { y[(int64_t)row * n] = static_cast<int64_t>(row); }",
                "__global__ void f(float* y, int n) { y[(int)row * n] = static_cast<int>(row); }",
            ),
        ),
        _offset_int32,
    ),
    Operator(
        "ldg-on-written",
        "memory",
        "cuda",
        "Data that the kernel writes itself is read through the read-only cache.",
        "The cache mostly has the new value, or has never seen the line.",
        (
            Example(
                "__global__ void f(float* y) { y[0] = 1.0f; __syncthreads(); y[2] = y[1] * 2.0f; }",
                "__global__ void f(float* y) { y[0] = 1.0f; __syncthreads(); y[2] = __ldg(&y[1]) * 2.0f; }",
            ),
        ),
        _ldg_on_written,
    ),
    Operator(
        "zeroed-drop",
        "memory",
        "cuda",
        "Memory that sums are collected in is not set to zero.",
        "Fresh memory is often zero.",
        (
            Example(
                "torch::Tensor f(torch::Tensor x) { auto y = torch::zeros({n}, x.options()); return y; }",
                "torch::Tensor f(torch::Tensor x) { auto y = torch::empty({n}, x.options()); return y; }",
            ),
        ),
        _zeroed_drop,
    ),
    Operator(
        "output-over-input",
        "memory",
        "cuda",
        "The result is written over the input.",
        "The values are right; the caller's tensor is not what it was.",
        (
            Example(
                "torch::Tensor f(torch::Tensor x) { auto y = torch::empty_like(x); return y; }",
                "torch::Tensor f(torch::Tensor x) { auto y = x; return y; }",
            ),
        ),
        _in_place,
    ),
    Operator(
        "accumulator-unset",
        "memory",
        "cuda",
        "A sum starts with whatever its register holds.",
        "Registers are often zero, and compilers may choose zero.",
        (
            Example(
                "float sum = 0.0f;\nfor (int i = 0; i < n; ++i) sum += x[i];",
                "float sum;\nfor (int i = 0; i < n; ++i) sum += x[i];",
            ),
        ),
        _unset_accumulator,
    ),
)
