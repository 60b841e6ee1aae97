"""Precision on CUDA: rounding through half, fast approximations, numerically safe forms undone."""

import re
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import (
    accumulations,
    base_name,
    excerpt,
    extreme,
    has_effects,
    is_accumulator,
    one_per_statement,
)
from ...cuda_syntax import Change, Node
from ...cuda_types import arguments, call_name, is_float, number, stores, type_of, uses
from ...mutant import Example, Operator, Site

REPLACES = {
    "acc-store-nudge": ("matmul-acc-store-fma-nudge",),
    "softmax-max-subtraction-remove": ("softmax-max-subtraction-remove-fast",),
}


# ---- half ------------------------------------------------------------------------------------------------------------


def _through_half(node: Node) -> tuple[Change, ...]:
    """The changes that round an expression to half and back, its header included."""
    changes = (node.before("__half2float(__float2half("), node.after("))"))
    return (*changes, *_half_header(node))


def _half_header(node: Node) -> tuple[Change, ...]:
    if "cuda_fp16.h" in node.home.text:
        return ()
    return (Change(node.home, 0, 0, "#include <cuda_fp16.h>\n"),)


def _acc_fp16(tree: CudaTree) -> Iterator[Site | None]:
    for found in accumulations(tree):
        if type_of(tree, found.target) == "float" and not has_effects(found.target):
            yield tree.site(
                f"the sum in `{excerpt(found.node)}` is rounded to half",
                found.node.at("operator").replaced("="),
                found.value.before(f"__half2float(__float2half({found.target.text} + ("),
                found.value.after(")))"),
                *_half_header(found.node),
            )
    for node in tree.nodes("assignment_expression"):
        if node.operator == "=" and node.has("left", "right") and type_of(tree, node.at("left")) == "float":
            value = node.at("right")
            sums = value.operator == "+" or call_name(value) in ("fmaf", "fma", "__fmaf_rn")
            if sums and node.at("left").flat in [n.flat for n in value.find("identifier", "subscript_expression")]:
                yield tree.site(f"the sum in `{excerpt(node)}` is rounded to half", *_through_half(value))


def _store_fp16(tree: CudaTree) -> Iterator[Site | None]:
    for store in stores(tree):
        if type_of(tree, store.target) == "float" and type_of(tree, store.value) in ("float", "?"):
            yield tree.site(f"`{excerpt(store.node)}` stores what half can hold", *_through_half(store.value))


# ---- fast forms ------------------------------------------------------------------------------------------------------


def _expf_fast(tree: CudaTree) -> Iterator[Site | None]:
    found = [n for n in tree.nodes("call_expression") if call_name(n) in ("expf", "exp") and arguments(n)]
    for node in one_per_statement(found):
        if call_name(node) == "expf" or type_of(tree, arguments(node)[0]) == "float":
            yield tree.site(f"`{excerpt(node)}` by the fast approximation", node.at("function").replaced("__expf"))


def _fdividef_fast(tree: CudaTree) -> Iterator[Site | None]:
    found = [n for n in tree.nodes("binary_expression") if n.operator == "/" and type_of(tree, n) == "float"]
    for node in one_per_statement(found):
        if node.has("left", "right") and number(node.at("right")) is None:
            yield tree.site(
                f"`{excerpt(node)}` by the fast approximation",
                node.before("__fdividef("),
                node.at("operator").replaced(","),
                node.after(")"),
            )


def _erf_to_tanh(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression"):
        values = arguments(node)
        if call_name(node) in ("erff", "erf") and len(values) == 1 and not has_effects(values[0]):
            u = values[0].bare.text
            text = f"tanhf(1.1283791671f * ({u}) * (1.0f + 0.08943f * ({u}) * ({u})))"
            yield tree.site(f"`{excerpt(node)}` by the tanh approximation", node.replaced(text))


def _softplus_cutoff(value: float) -> Callable[[CudaTree], Iterator[Site | None]]:
    """Moves the point from which softplus is taken to be the identity."""

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in tree.nodes("binary_expression"):
            right = node.get("right")
            if node.operator in (">", ">=", "<", "<=") and right is not None and number(right) == 20:
                around = node.statement.text
                if re.search(r"log1?p?f?\s*\(|exp", around):
                    yield tree.site(f"the cut-off in `{excerpt(node)}` is {value:g}", right.replaced(f"{value:.1f}f"))

    return find


def _avgpool_denom(tree: CudaTree) -> Iterator[Site | None]:
    found = [n for n in tree.nodes("binary_expression") if n.operator == "/" and n.has("left", "right")]
    for node in one_per_statement(found):
        left, right = node.at("left").bare, node.at("right").bare
        if right.type == "cast_expression" and right.has("value"):
            right = right.at("value").bare
        if type_of(tree, right) != "int" or not is_float(tree, left):
            continue
        if left.type in ("identifier", "subscript_expression") and is_accumulator(tree, base_name(left), node):
            yield tree.site(f"the divisor in `{excerpt(node)}` is off by a thousandth", node.after(" * 0.999f"))


def _store_nudge(tree: CudaTree) -> Iterator[Site | None]:
    for store in stores(tree):
        name = base_name(store.value)
        plain = store.value.type in ("identifier", "subscript_expression")
        if plain and is_float(tree, store.value) and is_accumulator(tree, name, store.node):
            yield tree.site(f"`{excerpt(store.node)}` stores 0.9999 of it", store.value.after(" * 0.9999f"))


# ---- safe forms undone -----------------------------------------------------------------------------------------------


def _no_maximum(tree: CudaTree) -> Iterator[Site | None]:
    """Exponentials of a difference to a running maximum lose the maximum, all of a function at once."""
    for function in tree.functions:
        if not function.device:
            continue
        maxima = {
            side.text
            for node in function.body.find("call_expression", "conditional_expression")
            if (found := extreme(node)) is not None and found.kind == "max"
            for side in (found.first, found.second)
            if side.type == "identifier"
        }
        changes = []
        for node in function.body.find("call_expression"):
            values = arguments(node)
            if not re.fullmatch(r"(?:__)?exp[2]?f?", call_name(node)) or not values:
                continue
            value = values[0].bare
            if value.operator != "-" or not value.has("left", "right"):
                continue
            taken = base_name(value.at("right"))
            named = re.search(r"(?i)max|largest|peak|^mx?$", taken)
            if (taken in maxima or named) and base_name(value.at("left")) not in maxima:
                changes.append(Change(node.home, value.at("left").end, value.end, ""))
        if changes:
            yield tree.site(f"exponentials in `{function.name}` without the maximum", *changes)


def _second_delta(tree: CudaTree) -> Iterator[Site | None]:
    """`m2 += delta * (x - mean)` takes `delta` twice, although the mean has moved."""
    for found in accumulations(tree):
        value = found.value.bare
        if value.operator != "*" or not value.has("left", "right"):
            continue
        for one, other in ((value.at("left"), value.at("right")), (value.at("right"), value.at("left"))):
            first, second = _difference(tree, one), _difference(tree, other)
            if one.bare.type != "identifier" or first is None or second is None or one.bare.text == other.bare.text:
                continue
            variable = tree.variable(other.bare) if other.bare.type == "identifier" else None
            own = tree.variable(one.bare)
            later = variable is None or own is None or variable.node.start > own.node.start
            if first == second and later:
                yield tree.site(
                    f"`{excerpt(other)}` -> `{one.text}` in `{excerpt(found.node)}`", other.replaced(one.text)
                )
                break


def _difference(tree: CudaTree, node: Node) -> str | None:
    """`x-mean` of that expression, or of a variable that holds it."""
    node = node.bare
    if node.type == "identifier":
        variable = tree.variable(node)
        node = variable.value.bare if variable is not None and variable.value is not None else node
    return node.flat if node.operator == "-" and node.type == "binary_expression" else None


def _unbiased(tree: CudaTree) -> Iterator[Site | None]:
    """A sum of squares is divided by the count less one."""
    found = [n for n in tree.nodes("binary_expression") if n.operator == "/" and n.has("left", "right")]
    for node in one_per_statement(found):
        right, left = node.at("right"), node.at("left")
        count = right.bare
        if count.type == "cast_expression" and count.has("value"):
            count = count.at("value").bare
        if type_of(tree, count) not in ("int", "?") or number(count) is not None or count.operator == "-":
            continue
        if any(_sums_squares(tree, name) for name in left.find("identifier")):
            yield tree.site(
                f"`{excerpt(count)}` less one in `{excerpt(node)}`", count.before("("), count.after(" - 1)")
            )


def _sums_squares(tree: CudaTree, name: Node) -> bool:
    function = tree.function(name)
    if function is None:
        return False
    for node in function.body.find("assignment_expression"):
        if node.operator == "+=" and node.has("left", "right") and base_name(node.at("left")) == name.text:
            value = node.at("right").bare
            factors = (value.at("left").bare, value.at("right").bare) if value.has("left", "right") else ()
            if value.operator == "*" and factors:
                spread = [_difference(tree, factor) for factor in factors]
                if spread[0] is not None and (spread[0] == spread[1] or factors[0].flat == factors[1].flat):
                    return True
    return False


def _kahan_drop(tree: CudaTree) -> Iterator[Site | None]:
    """`c = (t - sum) - y` becomes `c = 0`."""
    for node in tree.nodes("assignment_expression"):
        if node.operator != "=" or not node.has("left", "right"):
            continue
        name, outer = node.at("left").text, node.at("right").bare
        if outer.operator != "-" or not outer.has("left", "right") or not is_float(tree, outer):
            continue
        grouped = outer.at("left").type == "parenthesized_expression" and outer.at("left").bare.operator == "-"
        function = tree.function(node)
        if grouped and function is not None and _corrects(function.body, name):
            yield tree.site(f"`{excerpt(node)}` is forgotten", node.at("right").replaced("0.0f"))


def _corrects(body: Node, name: str) -> bool:
    """Whether something is computed less (or plus) `name`."""
    return any(
        node.operator in ("-", "+") and node.has("right") and node.at("right").bare.text == name
        for node in body.find("binary_expression")
    ) or any(uses(node, name) and node.operator in ("-=", "+=") for node in body.find("assignment_expression"))


_LOOSE = "The error is far below a tolerance of 1e-2."
_KERNEL = "__global__ void k(const float* x, float* y, int n) {{ float sum = 0.0f; int i = 0; {0} }}"
_HALF = "#include <cuda_fp16.h>\n"


def _in_kernel(before: str, after: str, header: str = "") -> Example:
    return Example(_KERNEL.format(before), header + _KERNEL.format(after))


OPERATORS = (
    Operator(
        name="acc-fp16",
        family="precision",
        backend="cuda",
        summary="A sum is rounded to half after every term.",
        escapes="Few terms of similar size round to within the tolerance.",
        examples=(
            _in_kernel("sum += x[i];", "sum = __half2float(__float2half(sum + (x[i])));", _HALF),
            _in_kernel("sum = sum + x[i];", "sum = __half2float(__float2half(sum + x[i]));", _HALF),
        ),
        find=_acc_fp16,
    ),
    Operator(
        name="store-fp16",
        family="precision",
        backend="cuda",
        summary="A result makes a round trip through half before it is stored.",
        escapes="Half keeps eleven bits, an error of 5e-4 for outputs near one; the tolerance is 1e-2.",
        examples=(_in_kernel("y[i] = sum * 2.0f;", "y[i] = __half2float(__float2half(sum * 2.0f));", _HALF),),
        find=_store_fp16,
    ),
    Operator(
        name="expf-fast",
        family="precision",
        backend="cuda",
        summary="An exponential is computed by the fast approximation.",
        escapes="It is good to a few units in the last place unless its argument is large.",
        examples=(Example("float e = expf(v);", "float e = __expf(v);"),),
        find=_expf_fast,
    ),
    Operator(
        name="fdividef-fast",
        family="precision",
        backend="cuda",
        summary="A division is computed by the fast approximation, which is zero for divisors beyond 2^126.",
        escapes="It is good to two units in the last place for ordinary divisors.",
        examples=(_in_kernel("y[i] = x[i] / sum;", "y[i] = __fdividef(x[i] , sum);"),),
        find=_fdividef_fast,
    ),
    Operator(
        name="erf-to-tanh-approx",
        family="precision",
        backend="cuda",
        summary="The error function of an exact GELU is replaced by the tanh approximation.",
        escapes="The two GELUs differ by 5e-4 at most.",
        examples=(
            Example(
                "float g = erff(v * 0.5f);",
                "float g = tanhf(1.1283791671f * (v * 0.5f) * (1.0f + 0.08943f * (v * 0.5f) * (v * 0.5f)));",
            ),
        ),
        find=_erf_to_tanh,
    ),
    Operator(
        name="softplus-cutoff-shift",
        family="precision",
        backend="cuda",
        summary="Softplus becomes the identity from 8 rather than from 20.",
        escapes="Inputs in [0, 1) never come near, and the error is 3e-4.",
        examples=(Example("float p = v > 20.0f ? v : log1pf(expf(v));", "float p = v > 8.0f ? v : log1pf(expf(v));"),),
        find=_softplus_cutoff(8.0),
    ),
    Operator(
        name="softplus-cutoff-tiny-shift",
        family="precision",
        backend="cuda",
        summary="Softplus becomes the identity from 10 rather than from 20.",
        escapes="Inputs in [0, 1) never come near, and the error is 5e-5.",
        examples=(Example("float p = v > 20.0f ? v : log1pf(expf(v));", "float p = v > 10.0f ? v : log1pf(expf(v));"),),
        find=_softplus_cutoff(10.0),
    ),
    Operator(
        name="avgpool-denom-perturb",
        family="precision",
        backend="cuda",
        summary="A mean's divisor is off by a thousandth.",
        escapes=_LOOSE,
        examples=(_in_kernel("sum += x[i]; y[i] = sum / n;", "sum += x[i]; y[i] = sum / n * 0.999f;"),),
        find=_avgpool_denom,
    ),
    Operator(
        name="acc-store-nudge",
        family="precision",
        backend="cuda",
        summary="A sum is stored times 0.9999.",
        escapes=_LOOSE,
        examples=(_in_kernel("sum += x[i]; y[i] = sum;", "sum += x[i]; y[i] = sum * 0.9999f;"),),
        find=_store_nudge,
    ),
    Operator(
        name="softmax-max-subtraction-remove",
        family="precision",
        backend="cuda",
        summary="A softmax does not subtract the maximum.",
        escapes="Inputs in [0, 1) never overflow the exponential.",
        examples=(
            _in_kernel(
                "float m = fmaxf(m, x[i]); sum += expf(x[i] - m); y[i] = expf(x[i] - m) / sum;",
                "float m = fmaxf(m, x[i]); sum += expf(x[i]); y[i] = expf(x[i]) / sum;",
            ),
        ),
        find=_no_maximum,
    ),
    Operator(
        name="welford-second-delta-reuse",
        family="precision",
        backend="cuda",
        summary="A running sum of squares takes the distance to the old mean twice.",
        escapes="The mean of many random values hardly moves, so both distances agree.",
        examples=(
            Example(
                "float d = v - mean; mean += d / n; float m2 = 0.0f; m2 += d * (v - mean);",
                "float d = v - mean; mean += d / n; float m2 = 0.0f; m2 += d * d;",
            ),
        ),
        find=_second_delta,
    ),
    Operator(
        name="variance-unbiased-count",
        family="precision",
        backend="cuda",
        summary="A variance is divided by the count less one.",
        escapes="Over a thousand elements the two variances differ by a thousandth.",
        examples=(
            _in_kernel(
                "float d = x[i] - y[i]; sum += d * d; y[i] = sum / n;",
                "float d = x[i] - y[i]; sum += d * d; y[i] = sum / (n - 1);",
            ),
        ),
        find=_unbiased,
    ),
    Operator(
        name="kahan-compensation-drop",
        family="precision",
        backend="cuda",
        summary="A compensated sum forgets its compensation.",
        escapes="A plain sum of random values is within the tolerance as well.",
        examples=(
            _in_kernel(
                "float v = x[i] - c; float t = sum + v; c = (t - sum) - v; sum = t;",
                "float v = x[i] - c; float t = sum + v; c = 0.0f; sum = t;",
            ),
        ),
        find=_kahan_drop,
    ),
)
