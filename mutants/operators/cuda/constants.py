"""Constants of known functions on CUDA: off by a thousandth, or by a ten-thousandth."""

from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import excerpt, extremes
from ...cuda_syntax import Change, Node
from ...cuda_types import is_float_literal, number
from ...mutant import Example, Operator, Site


def _perturbed(node: Node, factor: float) -> str:
    """A literal times a factor, with its suffix."""
    value = number(node)
    assert value is not None
    suffix = "f" if node.text.lower().endswith("f") else ""
    text = f"{value * factor:.10g}"
    return text + ("" if any(c in text for c in ".e") else ".0") + suffix


def _literal(value: float, names: tuple[str, ...], factor: float) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Literals within a ten-thousandth of `value`, and names that stand for it."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in tree.nodes("number_literal", device=None):
            found = number(node) if is_float_literal(node) else None
            if found is not None and abs(abs(found) - value) <= 1e-4 * value:
                text = _perturbed(node, factor)
                yield tree.site(f"`{node.text}` -> `{text}`", node.replaced(text))
        for node in tree.nodes("identifier"):
            if node.text in names:
                yield tree.site(f"`{node.text}` times {factor:g}", node.replaced(f"({node.text} * {factor:g}f)"))

    return find


def _slope(factor: float) -> Callable[[CudaTree], Iterator[Site | None]]:
    """The slope of a hard sigmoid: 1/6 as a literal, or a division by 6."""
    literal = _literal(1 / 6, (), factor)

    def find(tree: CudaTree) -> Iterator[Site | None]:
        yield from literal(tree)
        for node in tree.nodes("binary_expression"):
            right = node.get("right")
            if node.operator == "/" and right is not None and is_float_literal(right) and number(right) == 6:
                text = _perturbed(right, factor)
                yield tree.site(f"`{right.text}` -> `{text}` in `{excerpt(node)}`", right.replaced(text))

    return find


def _clamp_bound(factor: float) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Bounds other than zero that a value is clamped to: literals and parameters."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for found in extremes(tree):
            for bound in (found.first, found.second):
                value, variable = number(bound), None
                if bound.type == "identifier":
                    variable = tree.variable(bound)
                if value is not None and 1e-3 < abs(value) < 1e9 and bound.type == "number_literal":
                    if is_float_literal(bound):
                        yield tree.site(f"`{bound.text}` off in `{excerpt(found.node)}`", _off(bound, factor))
                elif variable is not None and variable.parameter and not variable.pointer:
                    yield tree.site(f"`{bound.text}` off in `{excerpt(found.node)}`", _off(bound, factor))

    return find


def _off(bound: Node, factor: float) -> Change:
    text = _perturbed(bound, factor) if bound.type == "number_literal" else f"({bound.text} * {factor:g}f)"
    return bound.replaced(text)


_KNOWN = (
    ("gelu-tanh-const", 0.044715, (), "The cubic coefficient of the tanh GELU", "0.044715f"),
    ("gelu-sqrt2pi", 0.7978845608028654, (), "The factor sqrt(2 / pi) of the tanh GELU", "0.7978845608f"),
    ("gelu-quick-const", 1.702, (), "The factor of the sigmoid GELU", "1.702f"),
    ("invsqrt2", 0.7071067811865476, ("M_SQRT1_2",), "The factor 1 / sqrt(2) of the exact GELU", "0.70710678f"),
    ("selu-alpha", 1.6732632423543772, (), "SELU's alpha", "1.6732632f"),
    ("selu-scale", 1.0507009873554805, (), "SELU's scale", "1.0507009f"),
    ("log2e", 1.4426950408889634, ("M_LOG2E",), "The factor log2(e) of an exponential by powers of two", "1.44269504f"),
)


def _operators() -> Iterator[Operator]:
    for suffix, factor, amount, escapes in (
        ("perturb", 1.001, "a thousandth", "The error is a tenth of a tolerance of 1e-2."),
        ("small-perturb", 1.0001, "a ten-thousandth", "The error is a hundredth of a tolerance of 1e-2."),
    ):
        for name, value, names, what, literal in _KNOWN:
            after = f"{float(literal[:-1]) * factor:.10g}f"
            yield Operator(
                name=f"{name}-{suffix}",
                family="precision",
                backend="cuda",
                summary=f"{what} is off by {amount}.",
                escapes=escapes,
                examples=(Example(f"float u = v * {literal};", f"float u = v * {after};"),),
                find=_literal(value, names, factor),
            )
        yield Operator(
            name=f"hardsigmoid-slope-{suffix}",
            family="precision",
            backend="cuda",
            summary=f"The slope of a hard sigmoid is off by {amount}.",
            escapes=escapes,
            examples=(Example("float u = v / 6.0f;", f"float u = v / {6 * factor:.10g}f;"),),
            find=_slope(factor),
        )
        yield Operator(
            name=f"clamp-bound-{suffix}",
            family="precision",
            backend="cuda",
            summary=f"The bound of a clamp is off by {amount}.",
            escapes="Inputs in [0, 1) rarely reach the bound; " + escapes[0].lower() + escapes[1:],
            examples=(Example("float u = fminf(v, 4.0f);", f"float u = fminf(v, {4 * factor:.10g}f);"),),
            find=_clamp_bound(factor),
        )


OPERATORS = tuple(_operators())
