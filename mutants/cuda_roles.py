"""What CUDA operators recognise beyond syntax: loops, guards, accumulators, barriers, maxima, known constants."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .cuda import CudaTree
from .cuda_syntax import LOOPS, Change, Node
from .cuda_types import COMPARISONS, arguments, call_name, is_float, is_float_literal, number, type_of

# ---- control flow ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """`for (int i = start; i < bound; i += step)`.

    Attributes:
        node: the statement.
        name: the loop's variable.
        start: its first value.
        condition: the comparison, the variable on its left.
        bound: the comparison's other side.
        step: what is added each time; None for `++`; the divisor or shift where the variable is divided.
        kind: `up`, `down`, or `halving` (`s >>= 1`, `s /= 2`).
        body: the statement that is repeated.
    """

    node: Node
    name: str
    start: Node
    condition: Node
    bound: Node
    step: Node | None
    kind: str
    body: Node

    @property
    def by_threads(self) -> bool:
        """Whether the threads share the loop's work: it starts at the thread's own place or steps over the others."""
        pieces = [self.start] + ([self.step] if self.step is not None else [])
        return any(re.search(r"thread|tid|lane|Dim|Idx|stride|\bt\b", piece.text) for piece in pieces)


def loop(node: Node) -> Loop | None:
    """The loop that a `for` statement is, if it is of that shape."""
    if not node.has("initializer", "condition", "update", "body"):
        return None
    condition, update = node.at("condition").bare, node.at("update").bare
    if condition.type != "binary_expression" or condition.operator not in COMPARISONS:
        return None
    if not condition.has("left", "right") or condition.at("left").type != "identifier":
        return None
    name = condition.at("left").text
    start = next(
        (
            found.at("value") if found.type == "init_declarator" else found.at("right")
            for found in node.at("initializer").find("init_declarator", "assignment_expression")
            if (found.has("declarator", "value") and found.at("declarator").text == name)
            or (found.has("left", "right") and found.at("left").text == name)
        ),
        None,
    )
    if start is None:
        return None
    step: Node | None = None
    if update.type == "update_expression":
        kind = "up" if "++" in update.flat else "down"
    elif update.type == "assignment_expression" and update.has("left", "right") and update.at("left").text == name:
        step = update.at("right")
        kinds = {"+=": "up", "-=": "down", ">>=": "halving", "/=": "halving"}
        kind = kinds.get(update.operator, "halving" if re.match(rf"{name}(>>|/)", step.flat) else "")
    else:
        return None
    if not kind:
        return None
    return Loop(node, name, start, condition, condition.at("right"), step, kind, node.at("body"))


def for_loops(tree: CudaTree) -> Iterator[Loop]:
    """Loops of the usual shape in device code."""
    for node in tree.nodes("for_statement"):
        found = loop(node)
        if found is not None:
            yield found


def loop_condition(node: Node) -> bool:
    """Whether an expression is (part of) what a loop tests."""
    for above in (node, *node.ancestors()):
        if above.parent is not None and above.parent.type in LOOPS:
            return above.field in ("condition", "update", "initializer")
        if above.type == "compound_statement":
            return False
    return False


def conjuncts(node: Node, operator: str = "&&") -> list[Node]:
    """The parts of `a && b && c`."""
    node = node.bare
    if node.type == "binary_expression" and node.operator == operator and node.has("left", "right"):
        return conjuncts(node.at("left"), operator) + conjuncts(node.at("right"), operator)
    return [node]


def is_bound_check(tree: CudaTree, node: Node) -> bool:
    """Whether an expression compares an index with something: `i < n`, `h >= 0`."""
    node = node.bare
    if node.type != "binary_expression" or node.operator not in COMPARISONS or not node.has("left", "right"):
        return False
    return {type_of(tree, node.at("left")), type_of(tree, node.at("right"))} <= {"int", "?"}


def is_guard(tree: CudaTree, node: Node) -> bool:
    """Whether a condition keeps a thread inside the data: comparisons of indices alone, joined by `&&` or `||`."""
    parts = [part for whole in conjuncts(node) for part in conjuncts(whole, "||")]
    return all(is_bound_check(tree, part) for part in parts)


_ATOMS = ("identifier", "number_literal", "field_expression", "parenthesized_expression", "call_expression")


def less_one(bound: Node) -> tuple[Change, ...]:
    """The changes that take one off an expression."""
    if bound.type in _ATOMS:
        return (bound.after(" - 1"),)
    return (bound.before("("), bound.after(") - 1"))


def returns_only(node: Node | None) -> bool:
    """Whether a statement is `return;` (or `continue;`), in braces or not."""
    if node is None:
        return False
    if node.type == "compound_statement" and len(node.named_children) == 1:
        node = node.named_children[0]
    return node.type == "continue_statement" or (node.type == "return_statement" and not node.named_children)


def is_ceil_div(node: Node) -> tuple[Node, Node] | None:
    """The dividend and divisor of `(n + b - 1) / b`, or of a helper that is named so; None for anything else."""
    if node.type == "call_expression":
        values = arguments(node)
        if re.fullmatch(r"(?i)ceil_?div|div_?up|div_?ceil|cdiv|divide_?up", call_name(node)) and len(values) == 2:
            return values[0], values[1]
        return None
    if node.type != "binary_expression" or node.operator != "/" or not node.has("left", "right"):
        return None
    terms = sum_terms(node.at("left"))
    divisor = node.at("right")
    if len(terms) == 3:
        one = [term for sign, term in terms if sign < 0 and number(term) == 1]
        step = [term for sign, term in terms if sign > 0 and term.bare.flat == divisor.bare.flat]
        rest = [term for sign, term in terms if sign > 0 and term.bare.flat != divisor.bare.flat]
        if len(one) == 1 and len(step) == 1 and len(rest) == 1:
            return rest[0], divisor
    value = number(divisor)
    if len(terms) == 2 and value is not None and number(terms[1][1]) == value - 1 and terms[1][0] > 0:
        return terms[0][1], divisor
    return None


def sum_terms(node: Node, sign: int = 1) -> list[tuple[int, Node]]:
    """The terms of `a + b - c` with their signs."""
    node = node.bare
    if node.type == "binary_expression" and node.operator in ("+", "-") and node.has("left", "right"):
        second = sign if node.operator == "+" else -sign
        return sum_terms(node.at("left"), sign) + sum_terms(node.at("right"), second)
    return [(sign, node)]


# ---- idioms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Extreme:
    """`fmaxf(a, b)` or `a > b ? a : b`.

    Attributes:
        node: the whole.
        kind: `max` or `min`.
        first, second: the two values.
        call: whether it is a call.
    """

    node: Node
    kind: str
    first: Node
    second: Node
    call: bool


def extreme(node: Node) -> Extreme | None:
    """The maximum or minimum that an expression takes, if it does."""
    if node.type == "call_expression":
        kind = re.fullmatch(r"f?(max|min)f?|__hmax|__hmin|__f(max|min)_rn", call_name(node))
        values = arguments(node)
        if kind is None or len(values) != 2:
            return None
        return Extreme(node, "max" if "max" in call_name(node) else "min", values[0], values[1], call=True)
    if node.type != "conditional_expression" or not node.has("condition", "consequence", "alternative"):
        return None
    test = node.at("condition").bare
    if test.type != "binary_expression" or test.operator not in COMPARISONS or not test.has("left", "right"):
        return None
    sides, results = (test.at("left").bare, test.at("right").bare), (node.at("consequence"), node.at("alternative"))
    greater = test.operator in (">", ">=")
    texts = [result.bare.flat for result in results]
    if [side.flat for side in sides] == texts:
        return Extreme(node, "max" if greater else "min", *results, call=False)
    if [side.flat for side in reversed(sides)] == texts:
        return Extreme(node, "min" if greater else "max", *results, call=False)
    return None


def extremes(tree: CudaTree) -> Iterator[Extreme]:
    """Maxima and minima of floating-point numbers in device code."""
    for node in tree.nodes("call_expression", "conditional_expression"):
        found = extreme(node)
        if found is not None and "int" not in (type_of(tree, found.first), type_of(tree, found.second)):
            yield found


_INFINITIES = re.compile(
    r"-?(?:\(float\))?(?:INFINITY|HUGE_VALF?|FLT_MAX|DBL_MAX|CUDART_INF_F|CUDART_INF|CUDART_MAX_NORMAL_F|NEG_INF(?:INITY)?"
    r"|-?(?:std::|cuda::std::)?numeric_limits<\w+>::(?:infinity|lowest|max)\(\)"
    r"|__int_as_float\(0x[fF7]f800000\)|__uint_as_float\(0x[fF7]f800000[uU]?\))"
)


def is_sentinel(node: Node) -> bool:
    """Whether an expression stands for an infinity or the largest number, of either sign."""
    value = number(node)
    if value is not None:
        return abs(value) >= 1e9 and is_float_literal(next(node.find("number_literal")))
    return bool(_INFINITIES.fullmatch(node.bare.flat))


def initialisations(tree: CudaTree) -> Iterator[tuple[str, Node]]:
    """Names with the values that they are first given or set to, in device code."""
    for node in tree.nodes("init_declarator"):
        if node.has("declarator", "value"):
            yield node.at("declarator").text, node.at("value")
    for node in tree.nodes("assignment_expression"):
        if node.operator == "=" and node.has("left", "right"):
            yield node.at("left").text, node.at("right")


@dataclass(frozen=True, slots=True, eq=False)
class Accumulation:
    """`sum += v`.

    Attributes:
        node: the assignment.
        target, value: its sides.
    """

    node: Node
    target: Node
    value: Node


def accumulations(tree: CudaTree) -> Iterator[Accumulation]:
    """Floating-point sums that grow, in device code."""
    for node in tree.nodes("assignment_expression"):
        if node.operator == "+=" and node.has("left", "right") and is_float(tree, node.at("left")):
            yield Accumulation(node, node.at("left"), node.at("right"))


def is_accumulator(tree: CudaTree, name: str, around: Node) -> bool:
    """Whether the function around a node adds to a variable of that name."""
    function = tree.function(around)
    if function is None:
        return False
    return any(
        node.operator == "+=" and node.has("left") and base_name(node.at("left")) == name
        for node in function.body.find("assignment_expression")
    )


def base_name(node: Node) -> str:
    """`acc` of `acc`, `acc[i]` and `acc[i][j]`."""
    return next((found.text for found in node.find("identifier")), "")


def is_epsilon(tree: CudaTree, node: Node) -> bool:
    """Whether an expression is a small positive constant, written out or named so."""
    value = number(node)
    if value is not None:
        return 0 < value <= 1e-3
    node = node.bare
    if node.type == "cast_expression" and node.has("value"):
        return is_epsilon(tree, node.at("value"))
    return node.type == "identifier" and bool(re.fullmatch(r"(?i)eps|epsilon|\w*_eps|\w*_epsilon|eps_\w*", node.text))


def is_barrier(node: Node) -> bool:
    """Whether an expression statement waits for the whole block."""
    if node.type != "expression_statement" or not node.named_children:
        return False
    call = node.named_children[0]
    return call_name(call) == "__syncthreads" or bool(
        re.fullmatch(
            r"(?:cg::|cooperative_groups::)?(?:block|cta|tb|thread_block|this_thread_block\(\))\.sync", _callee(call)
        )
        or re.fullmatch(r"(?:cg::|cooperative_groups::)sync", _callee(call))
    )


def _callee(call: Node) -> str:
    function = call.get("function") if call.type == "call_expression" else None
    return function.flat if function is not None else ""


def one_per_statement(nodes: Iterable[Node], key: Callable[[Node], object] = lambda node: None) -> Iterator[Node]:
    """The first of the nodes in each statement (and for each key)."""
    seen: set[tuple[int, object]] = set()
    for node in nodes:
        place = (id(node.statement), key(node))
        if place not in seen:
            seen.add(place)
            yield node


def has_effects(node: Node) -> bool:
    """Whether evaluating an expression twice could differ from once."""
    return any(node.find("assignment_expression", "update_expression")) or any(
        call_name(call).startswith(("atomic", "__shfl", "__sync")) for call in node.find("call_expression")
    )


def excerpt(node: Node, length: int = 60) -> str:
    """An expression on one line, shortened, for descriptions of sites."""
    text = " ".join(node.text.split())
    return text if len(text) <= length else text[: length - 3] + "..."
