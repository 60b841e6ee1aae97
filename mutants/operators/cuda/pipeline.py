"""Pipelines on CUDA: double buffers, their stages, asynchronous copies and the waits for them.

Work on the last tile that is left out is `tile-last-iteration-skip` of the boundary family.
"""

import re
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import Loop, base_name, excerpt, for_loops, is_barrier
from ...cuda_syntax import Node
from ...cuda_types import arguments, call_name, number, uses
from ...mutant import Example, Operator, Site

_WAIT = re.compile(r"__pipeline_wait_prior|cp_async_wait(?:_group|_all)?|pipeline_consumer_wait_prior|consumer_wait")
_COMMIT = re.compile(r"__pipeline_commit|cp_async_commit(?:_group)?|cp_async_fence|producer_commit")


def _toggles(node: Node) -> Node | None:
    """The stage of `now ^ 1`, `1 - now` and `(now + 1) % 2`; None for anything else."""
    node = node.bare
    if node.type != "binary_expression" or not node.has("left", "right"):
        return None
    left, right = node.at("left").bare, node.at("right").bare
    if node.operator == "^" and number(right) == 1:
        return left
    if node.operator == "-" and number(left) == 1 and right.type == "identifier":
        return right
    later = left.type == "binary_expression" and left.operator == "+" and number(left.at("right")) == 1
    if later and (node.operator, number(right)) in (("%", 2), ("&", 1)):
        return left.at("left")
    return None


def _parity(node: Node) -> bool:
    """Whether an expression is `t & 1`, `t % 2` or `t % STAGES`."""
    node = node.bare
    if node.type != "binary_expression" or not node.has("left", "right") or _toggles(node) is not None:
        return False
    right = node.at("right").bare
    if re.search(r"(?i)warp|lane|tid|thread|idx", node.at("left").text):
        return False
    if node.operator == "&":
        return number(right) == 1
    return node.operator == "%" and (number(right) in (2, 3, 4) or bool(re.search(r"(?i)stage|buffer", right.text)))


def _stages(tree: CudaTree) -> set[str]:
    """Names of variables that select a buffer."""
    names = set()
    for node in tree.nodes("init_declarator"):
        if node.has("declarator", "value") and (_parity(node.at("value")) or _toggles(node.at("value")) is not None):
            names.add(node.at("declarator").text)
    for node in tree.nodes("assignment_expression"):
        named = node.has("left", "right") and node.at("left").type == "identifier"
        if named and (node.operator == "^=" or _toggles(node.at("right")) is not None):
            names.add(node.at("left").text)
    return names


def _selects(tree: CudaTree, node: Node) -> bool:
    """Whether an expression's value selects a buffer: it indexes one, or a variable that does takes it."""
    above = node.above("subscript_argument_list", "init_declarator", "assignment_expression", "compound_statement")
    if above is None or above.type == "compound_statement":
        return False
    if above.type == "subscript_argument_list":
        subscript = above.parent
        variable = tree.variable(next(iter(subscript.find("identifier")))) if subscript is not None else None
        return variable is not None and (variable.shared or variable.array > 1 or variable.pointer > 0)
    name = next((found.text for found in above.find("identifier")), "")
    function = tree.function(node)
    return function is not None and any(
        index.type == "subscript_argument_list" and uses(index, name)
        for index in function.body.find("subscript_argument_list")
    )


def _stage_stuck(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression"):
        if _parity(node) and _selects(tree, node):
            yield tree.site(f"`{excerpt(node)}` -> `0`", node.replaced("0"))


def _next_stage_same(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression"):
        stage = _toggles(node)
        if stage is not None and _selects(tree, node):
            yield tree.site(f"`{excerpt(node)}` -> `{stage.text}`", node.replaced(stage.text))


def _stage_flip_drop(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("assignment_expression"):
        statement = node.parent
        if statement is None or statement.type != "expression_statement" or not node.has("left", "right"):
            continue
        flips = (node.operator == "^=" and number(node.at("right")) == 1) or (
            (stage := _toggles(node.at("right"))) is not None and stage.flat == node.at("left").flat
        )
        if flips:
            yield tree.site(f"`{excerpt(statement)}` dropped", statement.replaced(";"))


def _consumer_stage(tree: CudaTree) -> Iterator[Site | None]:
    stages = _stages(tree)
    for node in tree.nodes("subscript_argument_list"):
        if len(node.named_children) != 1 or node.named_children[0].text not in stages or node.parent is None:
            continue
        outer = node.parent
        while outer.parent is not None and outer.parent.type == "subscript_expression" and outer.field == "argument":
            outer = outer.parent
        written = outer.parent
        if written is not None and written.type == "assignment_expression" and outer.field == "left":
            continue
        variable = tree.variable(next(outer.find("identifier")))
        if variable is not None and variable.shared:
            index = node.named_children[0]
            yield tree.site(f"`{excerpt(outer)}` reads the other buffer", index.replaced(f"({index.text} ^ 1)"))


def _steps(tree: CudaTree, pattern: re.Pattern[str]) -> Iterator[Node]:
    """Calls of those names that are statements."""
    for node in tree.nodes("call_expression"):
        name = call_name(node) or ""
        if node.has("function") and node.at("function").type == "field_expression":
            name = node.at("function").text.replace("->", ".").rsplit(".", 1)[-1]
        if pattern.fullmatch(name) and node.parent is not None and node.parent.type == "expression_statement":
            yield node


def _wait_plus1(tree: CudaTree) -> Iterator[Site | None]:
    for node in _steps(tree, _WAIT):
        counts = [a for a in arguments(node) if number(a) is not None]
        counts = counts or list(node.at("function").find("number_literal"))
        if counts:
            text = str(int(number(counts[0]) or 0) + 1)
            yield tree.site(f"`{excerpt(node)}` waits for one copy less", counts[0].replaced(text))
        elif len(arguments(node)) == 1:
            count = arguments(node)[0]
            yield tree.site(f"`{excerpt(node)}` waits for one copy less", count.replaced(f"{count.text} + 1"))


def _drop_statements(pattern: re.Pattern[str]) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in _steps(tree, pattern):
            statement = node.statement
            yield tree.site(f"`{excerpt(statement)}` dropped", statement.replaced(";"))

    return find


def _pipelined(tree: CudaTree) -> Iterator[Loop]:
    """Loops over tiles that fetch the next one while they work: with a barrier or a wait, and a place for it."""
    stages = _stages(tree)
    for loop in for_loops(tree):
        waits = any(is_barrier(node) for node in loop.body.find("expression_statement")) or any(
            _WAIT.fullmatch(call_name(call)) for call in loop.body.find("call_expression")
        )
        if not waits or loop.by_threads:
            continue
        if any(uses(loop.body, stage) for stage in stages) or _prefetched(tree, loop):
            yield loop


def _prefetched(tree: CudaTree, loop: Loop) -> list[str]:
    """Names of registers that carry the next tile: the loop uses them before it sets them."""
    found = []
    for node in loop.body.find("assignment_expression"):
        if node.operator == "=" and node.has("left", "right") and loop.node.parent is not None:
            name = base_name(node.at("left"))
            variable = tree.variable(next(node.at("left").find("identifier"))) if name else None
            if variable is None or variable.shared or variable.pointer:
                continue
            declared_outside = any(
                base_name(other) == name
                for other in loop.node.parent.find("init_declarator", "declaration")
                if other.end <= loop.node.start
            )
            first = next((n for n in loop.body.find("identifier") if n.text == name), None)
            if declared_outside and first is not None and first.end < node.start and name not in found:
                found.append(name)
    return found


def _prologue_drop(tree: CudaTree) -> Iterator[Site | None]:
    for loop in _pipelined(tree):
        siblings = loop.node.parent.named_children if loop.node.parent is not None else []
        carried = _prefetched(tree, loop)
        for node in siblings:
            if node.end > loop.node.start:
                break
            if node.type in ("expression_statement", "for_statement", "if_statement") and _fills_first(tree, node):
                yield tree.site(f"`{excerpt(node)}` dropped", node.replaced(";"))
            elif node.type == "declaration":
                for initial in node.find("init_declarator"):
                    if initial.has("declarator", "value") and initial.at("declarator").text in carried:
                        value = initial.at("value")
                        if any(value.find("subscript_expression", "call_expression")):
                            text = f"first `{initial.at('declarator').text}` not loaded"
                            yield tree.site(text, value.replaced("0.0f"))


def _fills_first(tree: CudaTree, node: Node) -> bool:
    """Whether a statement writes the first buffer, or hands it to a function that does."""
    for subscript in node.find("subscript_expression"):
        indices = subscript.get("indices")
        if indices is None or len(indices.named_children) != 1 or number(indices.named_children[0]) != 0:
            continue
        if subscript.at("argument").type != "identifier":
            continue
        variable = tree.variable(subscript.at("argument"))
        if variable is not None and variable.shared and variable.array >= 2:
            return True
    return False


def _last_prefetch_drop(tree: CudaTree) -> Iterator[Site | None]:
    for loop in _pipelined(tree):
        for node in loop.body.find("if_statement"):
            test = node.at("condition").bare if node.has("condition") else node
            if test.type != "binary_expression" or test.operator != "<" or not test.has("left", "right"):
                continue
            ahead = test.at("left")
            if ahead.flat == f"{loop.name}+1" and test.at("right").flat == loop.bound.flat:
                text = f"`{excerpt(test)}` leaves the last one out"
                yield tree.site(text, ahead.replaced(f"{loop.name} + 2"))


def _prefetch_stale(tree: CudaTree) -> Iterator[Site | None]:
    for loop in _pipelined(tree):
        for node in loop.body.find("binary_expression"):
            test = node.above("if_statement")
            in_test = test is not None and test.has("condition") and node.within(test.at("condition"))
            next_one = f"{loop.name}+{loop.step.flat if loop.step is not None else 1}"
            if node.flat == next_one and not in_test:
                yield tree.site(f"`{excerpt(node)}` -> `{loop.name}`", node.replaced(loop.name))


_DOUBLE = (
    "__shared__ float s[2][16];\n"
    "s[0][t] = x[t];\n"
    "for (int i = 0; i < n; ++i) { const int now = i & 1, next = now ^ 1; "
    "if (i + 1 < n) s[next][t] = x[(i + 1) * 16 + t]; sum += s[now][t]; __syncthreads(); }"
)


def _double(old: str, new: str) -> tuple[Example, ...]:
    return (Example(_DOUBLE, _DOUBLE.replace(old, new, 1)),)


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "pipeline-stage-stuck",
        "pipeline",
        "cuda",
        "The buffer in use is always the first one.",
        "With one or two tiles, or tiles that are alike, both buffers hold the same.",
        _double("i & 1", "0"),
        _stage_stuck,
    ),
    Operator(
        "pipeline-next-stage-same",
        "pipeline",
        "cuda",
        "The next tile is put into the buffer that is still being read.",
        "It shows only where there is a next tile, and may depend on which warp is faster.",
        _double("now ^ 1", "now"),
        _next_stage_same,
    ),
    Operator(
        "pipeline-stage-flip-drop",
        "pipeline",
        "cuda",
        "The statement that switches buffers is dropped.",
        "With a single tile nothing has to be switched.",
        (Example("stage ^= 1;", ";"), Example("stage = 1 - stage;", ";")),
        _stage_flip_drop,
    ),
    Operator(
        "pipeline-consumer-stage",
        "pipeline",
        "cuda",
        "One of the operands is read from the other buffer.",
        "Neighbouring tiles that are alike hide it.",
        _double("s[now][t]", "s[(now ^ 1)][t]"),
        _consumer_stage,
    ),
    Operator(
        "pipeline-wait-plus1",
        "pipeline",
        "cuda",
        "The wait for asynchronous copies lets one more of them be under way.",
        "Copies are mostly done by then; only timing tells.",
        (Example("__pipeline_wait_prior(0);", "__pipeline_wait_prior(1);"),),
        _wait_plus1,
    ),
    Operator(
        "pipeline-wait-drop",
        "pipeline",
        "cuda",
        "A wait for asynchronous copies is dropped.",
        "Copies are mostly done by then; only timing tells.",
        (Example("__pipeline_wait_prior(0);", ";"),),
        _drop_statements(_WAIT),
    ),
    Operator(
        "pipeline-commit-drop",
        "pipeline",
        "cuda",
        "A batch of asynchronous copies is not committed, so waits count wrongly.",
        "The copies are still made, and mostly in time.",
        (Example("__pipeline_commit();", ";"),),
        _drop_statements(_COMMIT),
    ),
    Operator(
        "pipeline-prologue-drop",
        "pipeline",
        "cuda",
        "The first tile is not loaded before the loop.",
        "Shared memory often still holds what an earlier block of the same kernel left there.",
        _double("s[0][t] = x[t];", ";"),
        _prologue_drop,
    ),
    Operator(
        "pipeline-last-prefetch-drop",
        "pipeline",
        "cuda",
        "The last tile is not fetched, so an old one is used twice.",
        "It shows only with two tiles or more, and little where the last one is mostly padding.",
        _double("i + 1 < n", "i + 2 < n"),
        _last_prefetch_drop,
    ),
    Operator(
        "pipeline-prefetch-stale",
        "pipeline",
        "cuda",
        "What is fetched ahead is the current tile again.",
        "With a single tile nothing is fetched ahead.",
        _double("(i + 1) * 16", "(i) * 16"),
        _prefetch_stale,
    ),
)
