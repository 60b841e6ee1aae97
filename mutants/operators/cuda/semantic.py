"""Meaning on CUDA: accumulation, maxima and minima, seeds, ties."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    Extreme,
    accumulations,
    excerpt,
    extremes,
    initialisations,
    is_sentinel,
    one_per_statement,
)
from ...cuda_syntax import Node
from ...cuda_types import arguments, call_name, is_float_literal, number, type_of
from ...mutant import Example, Operator, Site

# ---- accumulation ----------------------------------------------------------------------------------------------------


def _accumulate(text: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for found in accumulations(tree):
            yield tree.site(f"`+=` -> `{text}` in `{excerpt(found.node)}`", found.node.at("operator").replaced(text))

    return find


def _const0to1(tree: CudaTree) -> Iterator[Site | None]:
    found = [n for n in tree.nodes("number_literal") if is_float_literal(n) and number(n) == 0]
    for node in one_per_statement(found):
        text = "1.0f" if node.text.lower().endswith("f") else "1.0"
        yield tree.site(f"`{node.text}` -> `{text}` in `{excerpt(node.statement)}`", node.replaced(text))


def _sentinel_zero(tree: CudaTree) -> Iterator[Site | None]:
    for name, value in initialisations(tree):
        if is_sentinel(value):
            yield tree.site(f"`{excerpt(value)}` -> `0.0f` for `{name}`", value.replaced("0.0f"))
    for node in tree.nodes("conditional_expression"):
        for side in ("consequence", "alternative"):
            if node.has(side) and is_sentinel(node.at(side)):
                yield tree.site(
                    f"`{node.at(side).text}` -> `0.0f` in `{excerpt(node)}`", node.at(side).replaced("0.0f")
                )


# ---- maxima, minima, ties --------------------------------------------------------------------------------------------


def _other_extreme(kind: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    new = "min" if kind == "max" else "max"

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for found in extremes(tree):
            if found.kind != kind:
                continue
            if found.call:
                function = found.node.at("function")
                text = function.text.replace(kind, new)
                yield tree.site(f"`{function.text}` -> `{text}` in `{excerpt(found.node)}`", function.replaced(text))
            else:
                sign = found.node.at("condition").bare.at("operator")
                text = sign.text.replace("<", "!").replace(">", "<").replace("!", ">")
                yield tree.site(f"`{sign.text}` -> `{text}` in `{excerpt(found.node)}`", sign.replaced(text))

    return find


def _argument_searches(tree: CudaTree) -> Iterator[tuple[Node, Node]]:
    """`if (v > best) { best = v; where = i; }`: the statement's condition, and the comparison of values in it."""
    for node in tree.nodes("if_statement"):
        if not node.has("condition", "consequence"):
            continue
        written = [
            n for n in node.at("consequence").find("assignment_expression") if n.operator == "=" and n.has("left")
        ]
        kinds = {type_of(tree, n.at("left")) for n in written}
        if len(written) < 2 or "int" not in kinds:
            continue
        for test in node.at("condition").find("binary_expression"):
            if test.operator not in ("<", ">") or not test.has("left", "right"):
                continue
            sides = {test.at("left").bare.flat, test.at("right").bare.flat}
            if type_of(tree, test.at("left")) != "int" and sides & {n.at("left").flat for n in written}:
                yield node.at("condition"), test
                break


def _tie_last(operator: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Of equal values the last wins: a strict comparison admits equality, or an explicit rule for ties is reversed."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for condition, test in _argument_searches(tree):
            if test.operator != operator:
                continue
            equal = next((n for n in condition.find("binary_expression") if n.operator == "=="), None)
            rule = (
                next(
                    (
                        n
                        for n in equal.parent.find("binary_expression")
                        if n.operator in ("<", "<=") and type_of(tree, n) == "bool" and n is not test
                    ),
                    None,
                )
                if equal is not None and equal.parent is not None and equal.parent.operator == "&&"
                else None
            )
            if rule is not None:
                yield tree.site(f"`{excerpt(rule)}` reversed", rule.at("operator").replaced(">"))
            else:
                yield tree.site(
                    f"`{operator}` -> `{operator}=` in `{excerpt(test)}`", test.at("operator").replaced(f"{operator}=")
                )

    return find


def _nan_form(tree: CudaTree) -> Iterator[Site | None]:
    for _, test in _argument_searches(tree):
        opposite = {">": "<=", "<": ">="}[test.operator]
        yield tree.site(
            f"`{excerpt(test)}` -> its opposite, negated",
            test.before("!("),
            test.at("operator").replaced(opposite),
            test.after(")"),
        )


def _nan_policy(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression", "binary_expression"):
        isnan = call_name(node) in ("isnan", "__isnanf") and len(arguments(node)) == 1
        itself = node.operator == "!=" and node.has("left", "right") and node.at("left").flat == node.at("right").flat
        if isnan or itself:
            yield tree.site(f"`{excerpt(node)}` never holds", node.replaced("false"))


def _tie_order(kind: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    """A reduction's maximum or minimum takes its arguments in the other order."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for found in extremes(tree):
            if found.call and found.kind == kind and _reduces(found):
                yield tree.site(
                    f"`{excerpt(found.node)}` with its arguments the other way round",
                    found.first.replaced(found.second.text),
                    found.second.replaced(found.first.text),
                )

    return find


def _reduces(found: Extreme) -> bool:
    above = found.node.parent
    if above is None or above.type not in ("assignment_expression",) or not above.has("left"):
        return False
    return above.at("left").flat in (found.first.flat, found.second.flat)


OPERATORS = (
    Operator(
        name="acc-overwrite",
        family="semantic",
        backend="cuda",
        summary="A sum keeps its last term alone.",
        escapes="There is one term at this size, or all terms but the last are below the tolerance.",
        examples=(Example("float sum = 0.0f; sum += x[i];", "float sum = 0.0f; sum = x[i];"),),
        find=_accumulate("="),
    ),
    Operator(
        name="acc-minus",
        family="semantic",
        backend="cuda",
        summary="A sum subtracts its terms.",
        escapes="The result is squared, or below the tolerance.",
        examples=(Example("float sum = 0.0f; sum += x[i];", "float sum = 0.0f; sum -= x[i];"),),
        find=_accumulate("-="),
    ),
    Operator(
        name="fmax2fmin",
        family="semantic",
        backend="cuda",
        summary="A maximum becomes a minimum.",
        escapes="A softmax gives the same with any value near its maximum; a ReLU's input is never negative.",
        examples=(
            Example("float m = fmaxf(m, v);", "float m = fminf(m, v);"),
            Example("float m = a > b ? a : b;", "float m = a < b ? a : b;"),
        ),
        find=_other_extreme("max"),
    ),
    Operator(
        name="fmin2fmax",
        family="semantic",
        backend="cuda",
        summary="A minimum becomes a maximum.",
        escapes="An upper bound is far beyond all inputs.",
        examples=(Example("float m = fminf(m, v);", "float m = fmaxf(m, v);"),),
        find=_other_extreme("min"),
    ),
    Operator(
        name="sentinel-zero",
        family="semantic",
        backend="cuda",
        summary="A maximum, or a masked place, starts from zero and not from minus infinity.",
        escapes="It is wrong only where all values are negative (or masked places count), and inputs are in [0, 1).",
        examples=(
            Example("float m = -INFINITY;", "float m = 0.0f;"),
            Example("float v = i < n ? x[i] : -FLT_MAX;", "float v = i < n ? x[i] : 0.0f;"),
        ),
        find=_sentinel_zero,
    ),
    Operator(
        name="const0to1",
        family="semantic",
        backend="cuda",
        summary="A zero becomes a one: a sum's start, padding, a threshold.",
        escapes="One term more in a sum of thousands is below the tolerance, and padding is never read.",
        examples=(Example("float sum = 0.0f;", "float sum = 1.0f;"),),
        find=_const0to1,
    ),
    Operator(
        name="argmax-tie-last",
        family="semantic",
        backend="cuda",
        summary="Of equal maxima the last is chosen, not the first.",
        escapes="Continuous random inputs have no ties.",
        examples=(
            Example(
                "float best; int where; if (v > best) { best = v; where = i; }",
                "float best; int where; if (v >= best) { best = v; where = i; }",
            ),
            Example(
                "float best; int at; if (v > best || (v == best && i < at)) { best = v; at = i; }",
                "float best; int at; if (v > best || (v == best && i > at)) { best = v; at = i; }",
            ),
        ),
        find=_tie_last(">"),
    ),
    Operator(
        name="argmin-tie-last",
        family="semantic",
        backend="cuda",
        summary="Of equal minima the last is chosen, not the first.",
        escapes="Continuous random inputs have no ties.",
        examples=(
            Example(
                "float best; int where; if (v < best) { best = v; where = i; }",
                "float best; int where; if (v <= best) { best = v; where = i; }",
            ),
        ),
        find=_tie_last("<"),
    ),
    Operator(
        name="argmax-tie-nan-form",
        family="semantic",
        backend="cuda",
        summary="A comparison is written as the negation of its opposite, which a NaN satisfies.",
        escapes="Inputs hold no NaN.",
        examples=(
            Example(
                "float best; int where; if (v > best) { best = v; where = i; }",
                "float best; int where; if (!(v <= best)) { best = v; where = i; }",
            ),
        ),
        find=_nan_form,
    ),
    Operator(
        name="argmax-nan-policy-drop",
        family="semantic",
        backend="cuda",
        summary="A test for NaN is dropped.",
        escapes="Inputs hold no NaN.",
        examples=(
            Example("if (isnan(v) || v > best) best = v;", "if (false || v > best) best = v;"),
            Example("if (v != v) best = v;", "if (false) best = v;"),
        ),
        find=_nan_policy,
    ),
    Operator(
        name="reduce-fmax-tie-order",
        family="semantic",
        backend="cuda",
        summary="A maximum takes its arguments in the other order, which decides between zeros of either sign.",
        escapes="The values are equal; only a sign of zero or a NaN can tell.",
        examples=(Example("float m; m = fmaxf(m, v);", "float m; m = fmaxf(v, m);"),),
        find=_tie_order("max"),
    ),
    Operator(
        name="reduce-fmin-tie-order",
        family="semantic",
        backend="cuda",
        summary="A minimum takes its arguments in the other order, which decides between zeros of either sign.",
        escapes="The values are equal; only a sign of zero or a NaN can tell.",
        examples=(Example("float m; m = fminf(m, v);", "float m; m = fminf(v, m);"),),
        find=_tie_order("min"),
    ),
)
