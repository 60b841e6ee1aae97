"""Types and memory of expressions in CUDA code, and their literals, by what is written.

Nothing here needs a compiler. Where a guess is not possible the answer is "?" or None, and operators leave the place
alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .cuda import CudaTree, Variable
from .cuda_syntax import Node

_INTS = re.compile(
    r"(?:(?:unsigned|signed|const|long|short|char|int|size_t|ssize_t|ptrdiff_t|u?int(?:8|16|32|64)?_t|uint|Index|index_t)\b\s*)+"
)
_BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_FLOAT_CALLS = re.compile(
    r"_{0,2}(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|sqrt|rsqrt|rcbrt|cbrt|tanh|sin|cos|tan|atan|asin|acos|sinh|cosh|erf|erfc"
    r"|pow|fabs|fmax|fmin|fma|fmod|fdim|fdivide|floor|ceil|round|rint|trunc|copysign|hypot|saturate|frcp_rn|fsqrt_rn|fdiv_rn"
    r"|half2float|bfloat162float|int2float_rn)f?"
)
COMPARISONS = ("<", "<=", ">", ">=")


# ---- expressions -----------------------------------------------------------------------------------------------------


def call_name(node: Node) -> str:
    """The function that a call names, without scope: `fmaxf`, `max` of `std::max`; empty for anything else."""
    if node.type != "call_expression" or node.get("function") is None:
        return ""
    function = node.at("function")
    if function.type == "template_function":
        function = function.get("name") or function
    return function.text.rsplit("::", 1)[-1].strip()


def arguments(node: Node) -> list[Node]:
    """The arguments of a call."""
    found = node.get("arguments")
    return found.named_children if found is not None else []


def number(node: Node) -> float | None:
    """The value of a literal, sign and parentheses included; None for anything else."""
    node = node.bare
    if node.type == "unary_expression" and node.operator in "+-" and node.has("argument"):
        value = number(node.at("argument"))
        return value if value is None or node.operator == "+" else -value
    if node.type == "cast_expression" and node.has("value"):
        return number(node.at("value"))
    if node.type != "number_literal":
        return None
    text = node.flat.replace("'", "").lower()
    try:
        if text.lstrip("+-").startswith("0x"):
            return float(int(text.rstrip("ul"), 16))
        return float(text.rstrip("flu"))
    except ValueError:
        return None


def is_float_literal(node: Node) -> bool:
    """Whether a literal is written as a floating-point number."""
    text = node.text.lower()
    return node.type == "number_literal" and "x" not in text and bool(re.search(r"[.ef]", text))


def type_of(tree: CudaTree, node: Node, depth: int = 0) -> str:
    """`float`, `double`, `half`, `int`, `bool`, `vector`, `pointer`, or `?`, by what is written."""
    node = node.bare
    if depth > 6:
        return "?"
    match node.type:
        case "number_literal":
            if not is_float_literal(node):
                return "int"
            return "float" if node.text.lower().endswith("f") else "double"
        case "identifier":
            return _variable_type(tree, tree.variable(node), depth)
        case "subscript_expression":
            base = base_variable(tree, node)
            if base is None:
                return "?"
            cast = next(node.at("argument").find("type_descriptor"), None)
            return _named_type(cast.text if cast is not None else base.type)
        case "pointer_expression" if node.operator == "*" and node.has("argument"):
            base = base_variable(tree, node.at("argument"))
            return _named_type(base.type) if base is not None else "?"
        case "field_expression":
            argument = node.get("argument")
            if argument is None or argument.text in _BUILTINS:
                return "int"
            return "float" if type_of(tree, argument, depth + 1) == "vector" else "?"
        case "cast_expression":
            return _named_type(node.at("type").text) if node.has("type") else "?"
        case "call_expression":
            return _call_type(tree, node, depth)
        case "unary_expression" | "update_expression":
            return "bool" if node.operator == "!" or not node.has("argument") else type_of(tree, node.at("argument"))
        case "assignment_expression" if node.has("left"):
            return type_of(tree, node.at("left"), depth + 1)
        case "conditional_expression" if node.has("consequence", "alternative"):
            first = type_of(tree, node.at("consequence"), depth + 1)
            return first if first != "?" else type_of(tree, node.at("alternative"), depth + 1)
        case "binary_expression" if node.has("left", "right"):
            if node.operator in (*COMPARISONS, "==", "!=", "&&", "||"):
                return "bool"
            return _wider(type_of(tree, node.at("left"), depth + 1), type_of(tree, node.at("right"), depth + 1))
    return "?"


def _wider(left: str, right: str) -> str:
    for kind in ("pointer", "vector", "double", "float", "half"):
        if kind in (left, right):
            return kind
    return "int" if "int" in (left, right) else "?"


def _call_type(tree: CudaTree, node: Node, depth: int) -> str:
    name = call_name(node)
    function = node.at("function") if node.has("function") else node
    if function.type == "primitive_type":
        return _named_type(function.text)
    if name in ("static_cast", "reinterpret_cast", "const_cast"):
        target = next(function.find("type_descriptor"), None)
        return _named_type(target.text) if target is not None else "?"
    if name in ("min", "max", "abs", "__ldg") or name.startswith("__shfl"):
        values = arguments(node)[1:] if name.startswith("__shfl") and name.endswith("_sync") else arguments(node)[:2]
        kinds = [type_of(tree, value, depth + 1) for value in values[: 1 if name.startswith("__shfl") else 2]]
        return _wider(kinds[0], kinds[-1]) if kinds and name != "__ldg" else "?"
    if _FLOAT_CALLS.fullmatch(name):
        return "float" if name.endswith("f") or name.startswith("__") else "double"
    for other in tree.functions:
        if other.name == name:
            declared = other.node.get("type")
            return _named_type(declared.text) if declared is not None else "?"
    return "?"


def _named_type(text: str) -> str:
    if "*" in text:
        return "pointer"
    words = text.replace("const", " ").replace("volatile", " ").strip().rsplit("::", 1)[-1]
    if words in ("float", "scalar_t", "T", "acc_t", "accscalar_t", "opmath_t"):
        return "float"
    if words in ("double", "bool"):
        return words
    if words in ("half", "__half", "Half", "__nv_bfloat16", "nv_bfloat16", "BFloat16"):
        return "half"
    if re.fullmatch(r"(?:float|double|half|int|uint)[234]", words):
        return "vector"
    return "int" if _INTS.fullmatch(words + " ") else "?"


def _variable_type(tree: CudaTree, variable: Variable | None, depth: int) -> str:
    if variable is None:
        return "?"
    if variable.pointer or variable.array:
        return "pointer"
    if variable.type == "auto" and variable.value is not None:
        return type_of(tree, variable.value, depth + 1)
    return _named_type(variable.type)


def is_float(tree: CudaTree, node: Node) -> bool:
    """Whether an expression is a floating-point number."""
    return type_of(tree, node) in ("float", "double")


def is_index_type(tree: CudaTree, node: Node) -> bool:
    """Whether an expression is an integer, or a name that a macro or template defines beside integers."""
    return type_of(tree, node) in ("int", "?")


def in_index(node: Node) -> bool:
    """Whether an expression is part of a subscript."""
    return any(above.type == "subscript_argument_list" for above in node.ancestors())


def identifiers(node: Node) -> set[str]:
    """Names that an expression uses."""
    return {found.text for found in node.find("identifier")}


def uses(node: Node, name: str) -> bool:
    """Whether an expression uses a name."""
    return any(found.text == name for found in node.find("identifier"))


# ---- memory ----------------------------------------------------------------------------------------------------------


def base_variable(tree: CudaTree, node: Node) -> Variable | None:
    """The pointer or array that `x[i]`, `x[i][j]` or `*(x + i)` starts from."""
    for found in node.find("identifier"):
        if found.parent is not None and found.parent.type in ("template_function", "subscript_argument_list"):
            continue
        variable = tree.variable(found)
        if variable is not None and (variable.pointer or variable.array):
            return variable
        if variable is not None:
            return None
    return None


def memory_of(tree: CudaTree, node: Node, depth: int = 0) -> str:
    """`shared`, `local` or `global`: where `x[i]` or `*p` lives; `?` where it is not known."""
    variable = base_variable(tree, node)
    if variable is None:
        return "?"
    if variable.shared:
        return "shared"
    if variable.array and not variable.parameter:
        return "local"
    if variable.pointer and variable.value is not None and depth < 4:
        return memory_of(tree, variable.value, depth + 1)
    return "global" if variable.pointer else "?"


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A write to memory that the kernel was given.

    Attributes:
        node: the assignment.
        target: `y[i]`.
        value: what is written.
    """

    node: Node
    target: Node
    value: Node


def stores(tree: CudaTree) -> Iterator[Store]:
    """Plain assignments to global memory in device code."""
    for node in tree.nodes("assignment_expression"):
        if node.operator == "=" and node.has("left", "right"):
            target = node.at("left")
            if target.type in ("subscript_expression", "pointer_expression") and memory_of(tree, target) == "global":
                yield Store(node, target, node.at("right"))


def shared_subscripts(tree: CudaTree) -> Iterator[Node]:
    """`scratch[t]` in device code, the whole of it where it has several indices."""
    for node in tree.nodes("subscript_expression"):
        inside = node.parent is not None and node.parent.type == "subscript_expression" and node.field == "argument"
        if not inside and memory_of(tree, node) == "shared":
            yield node


def index_of(node: Node) -> Node | None:
    """The last index of a subscript."""
    found = node.get("indices")
    return found.named_children[0] if found is not None and len(found.named_children) == 1 else None
