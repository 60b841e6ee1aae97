"""What language models get wrong in kernels, C++ side: statistics, broadcasting, geometry of windows, missing stages.

Divisions by the wrong count and lost epsilons belong to the precision family, seeds of maxima to the semantic one.
"""

import re
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...cuda_roles import conjuncts, excerpt, extreme, is_epsilon, is_sentinel, returns_only
from ...cuda_syntax import LOOPS, Node
from ...cuda_types import arguments, base_variable, call_name, index_of, is_float, memory_of, number, type_of
from ...mutant import Example, Operator, Site

_BIAS = re.compile(r"(?i)\w*(?:bias|beta|shift)\w*")
_WEIGHT = re.compile(r"(?i)\w*(?:gamma|weight|scale)\w*")
_PER_CHANNEL = re.compile(r"(?i)\w*(?:bias|beta|gamma|weight|mean|inverse|rstd|scale|shift|var|alpha)\w*")
_COUNT = re.compile(
    r"(?i)(?:\w*(?:dim|count|rows|cols|columns|features|total|spatial|size|length|area|batch|numel|elements|channels|width)|n|m)"
)


# ---- statistics ------------------------------------------------------------------------------------------------------


def _epsilon_outside(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression"):
        values = arguments(node)
        if call_name(node) not in ("sqrtf", "rsqrtf", "sqrt", "rsqrt") or len(values) != 1:
            continue
        value = values[0].bare
        if value.type != "binary_expression" or value.operator != "+" or not value.has("left", "right"):
            continue
        rest, epsilon = value.at("left"), value.at("right")
        if not is_epsilon(tree, epsilon):
            continue
        root = f"(sqrtf({rest.text}) + {epsilon.text})"
        text = f"(1.0f / {root})" if call_name(node).startswith("r") else root
        yield tree.site(f"`{excerpt(node)}` -> `{text}`", node.replaced(text))


def _variance_biased(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression"):
        if node.operator != "/" or not node.has("left", "right") or not is_float(tree, node.at("left")):
            continue
        for found in node.at("right").find("binary_expression"):
            if found.operator == "-" and found.has("left", "right") and number(found.at("right")) == 1:
                count = found.at("left").text
                yield tree.site(f"`{excerpt(found)}` -> `{count}`", found.replaced(count))
                break


def _mean_to_sum(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression"):
        if node.operator != "/" or not node.has("left", "right"):
            continue
        left, right = node.at("left"), node.at("right").bare
        inner = right.at("value") if right.type == "cast_expression" and right.has("value") else right
        if inner.type == "call_expression" and len(arguments(inner)) == 1:
            inner = arguments(inner)[0]
        last = next((n.text for n in reversed(list(inner.find("identifier", "field_identifier")))), "")
        sums = is_float(tree, left) or call_name(left.bare).endswith("sum")
        if sums and number(left) is None and _COUNT.fullmatch(last) and type_of(tree, inner) in ("int", "?"):
            yield tree.site(f"`{excerpt(node)}` -> `{excerpt(left)}`", node.replaced(left.text))


def _running_statistics(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("identifier", device=None):
        above = node.parent
        tested = above is not None and (
            above.type == "condition_clause" or (above.type == "conditional_expression" and node.field == "condition")
        )
        if tested and re.fullmatch(r"(?i)(?:is_)?train(?:ing)?", node.text):
            yield tree.site(f"`{node.text}` -> `false`", node.replaced("false"))


def _scale_root_drop(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("call_expression", device=None):
        values = arguments(node)
        if call_name(node) not in ("sqrtf", "rsqrtf", "sqrt", "rsqrt") or len(values) != 1:
            continue
        inner = values[0].bare
        inner = inner.at("value").bare if inner.type == "cast_expression" and inner.has("value") else inner
        name = inner.text.rsplit(".", 1)[-1]
        if inner.type in ("identifier", "call_expression") and re.search(r"(?i)dim|^d$|^hd$|head|size", name):
            if "sum" in name:
                continue
            text = f"(1.0f / ({values[0].text}))" if call_name(node).startswith("r") else f"({values[0].text})"
            yield tree.site(f"`{excerpt(node)}` -> `{text}`", node.replaced(text))


# ---- broadcasting ----------------------------------------------------------------------------------------------------


def _subscript_of(node: Node, names: re.Pattern[str]) -> bool:
    node = node.bare
    if node.type != "subscript_expression" or not node.has("argument"):
        return False
    argument = node.at("argument").bare
    return argument.type == "identifier" and bool(names.fullmatch(argument.text))


def _in_product_sum(node: Node) -> bool:
    """Whether an expression is a factor of a sum of products: a matrix's or filter's element, no channel's own."""
    for above in node.ancestors():
        if above.type == "assignment_expression":
            return above.operator == "+="
        if above.type == "call_expression" and call_name(above) in ("fmaf", "fma", "__fmaf_rn"):
            return above.above(*LOOPS) is not None
        if above.type in ("compound_statement", "expression_statement", "declaration"):
            return False
    return False


def _term_drop(operator: str, names: re.Pattern[str]) -> Callable[[CudaTree], Iterator[Site | None]]:
    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in tree.nodes("binary_expression"):
            if node.operator != operator or not node.has("left", "right") or _in_product_sum(node):
                continue
            left, right = node.at("left"), node.at("right")
            if _subscript_of(right, names):
                yield tree.site(f"`{excerpt(right)}` dropped from `{excerpt(node)}`", node.replaced(left.text))
            elif _subscript_of(left, names):
                yield tree.site(f"`{excerpt(left)}` dropped from `{excerpt(node)}`", node.replaced(right.text))
        if operator != "+":
            return
        for node in tree.nodes("init_declarator"):
            if node.has("value") and _subscript_of(node.at("value"), names):
                yield tree.site(f"`{excerpt(node)}` -> 0", node.at("value").replaced("0.0f"))
        for node in tree.nodes("conditional_expression"):
            whole = node.has("condition", "consequence", "alternative")
            if whole and number(node.at("alternative")) == 0 and _subscript_of(node.at("consequence"), names):
                yield tree.site(f"`{excerpt(node)}` -> 0", node.replaced(node.at("alternative").text))

    return find


def _broadcast_first(tree: CudaTree) -> Iterator[Site | None]:
    seen: set[tuple[int, str]] = set()
    for node in tree.nodes("subscript_expression"):
        index, function = index_of(node), tree.function(node)
        if index is None or function is None or number(index) is not None or not _subscript_of(node, _PER_CHANNEL):
            continue
        written = node.field == "left" and node.parent is not None and node.parent.type == "assignment_expression"
        if written or "*" in index.text or _in_product_sum(node) or memory_of(tree, node) != "global":
            continue
        variable = base_variable(tree, node)
        if variable is None or (id(function), variable.name) in seen:
            continue
        seen.add((id(function), variable.name))
        yield tree.site(f"`{excerpt(node)}` -> `{variable.name}[0]`", index.replaced("0"))


# ---- windows ---------------------------------------------------------------------------------------------------------


def _maximum_of(node: Node) -> str:
    """The variable that a loop takes a maximum into; empty where it takes none."""
    for found in node.find("assignment_expression"):
        if found.operator == "=" and found.has("left", "right") and found.at("left").type == "identifier":
            target, value = found.at("left"), extreme(found.at("right"))
            if value is not None and value.kind == "max" and target.flat in (value.first.flat, value.second.flat):
                return target.text
    for test in node.find("if_statement"):
        if not test.has("condition", "consequence"):
            continue
        for part in conjuncts(test.at("condition"), "||"):
            if part.type == "binary_expression" and part.operator in (">", ">=") and part.has("left", "right"):
                seen, held = part.at("left").flat, part.at("right").flat
                if f"{held}={seen};" in test.at("consequence").flat and part.at("right").type == "identifier":
                    return held
    return ""


def _padding_zero(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("if_statement"):
        body = node.get("consequence")
        if not returns_only(body) or body is None or "continue" not in body.text:
            continue
        loop = node.above(*LOOPS)
        name = _maximum_of(loop) if loop is not None else ""
        if name:
            text = f"{{ {name} = fmaxf({name}, 0.0f); continue; }}"
            yield tree.site(f"padding takes part in `{name}` as 0", body.replaced(text))
    for node in tree.nodes("conditional_expression"):
        if not node.has("condition", "consequence", "alternative"):
            continue
        loads = any(node.at("consequence").find("subscript_expression"))
        if loads and is_sentinel(node.at("alternative")):
            yield tree.site(f"`{excerpt(node)}` pads with 0", node.at("alternative").replaced("0.0f"))


def _factor_ignored(name: str) -> Callable[[CudaTree], Iterator[Site | None]]:
    pattern = re.compile(rf"(?i)(?:\w+_)?{name}(?:_?[hwdxyz]|_\w+)?")

    def find(tree: CudaTree) -> Iterator[Site | None]:
        for node in tree.nodes("binary_expression"):
            if node.operator != "*" or not node.has("left", "right"):
                continue
            left, right = node.at("left"), node.at("right")
            for one, other in ((right, left), (left, right)):
                if one.type == "identifier" and pattern.fullmatch(one.text) and "Dim" not in other.text:
                    yield tree.site(f"`{excerpt(node)}` -> `{excerpt(other)}`", node.replaced(other.text))
                    break

    return find


def _padding_ignored(tree: CudaTree) -> Iterator[Site | None]:
    pattern = re.compile(r"(?i)pad(?:ding)?(?:_?[hwd]|_\w+)?")
    for node in tree.nodes("binary_expression"):
        if node.operator in ("+", "-") and node.has("left", "right"):
            right = node.at("right")
            if right.type == "identifier" and pattern.fullmatch(right.text):
                yield tree.site(
                    f"`{excerpt(node)}` -> `{excerpt(node.at('left'))}`", node.replaced(node.at("left").text)
                )


def _groups_ignored(tree: CudaTree) -> Iterator[Site | None]:
    for node in tree.nodes("binary_expression"):
        if not node.has("left", "right"):
            continue
        left, right = node.at("left"), node.at("right")
        if node.operator == "/" and re.fullmatch(r"(?i)(?:num_)?groups", right.text):
            yield tree.site(f"`{excerpt(node)}` -> `{excerpt(left)}`", node.replaced(left.text))
        elif node.operator == "*" and re.fullmatch(r"(?i)g|group(?:_?(?:id|idx|index))?", left.text):
            yield tree.site(f"`{excerpt(node)}` -> 0", left.replaced("0"))


# ---- host ------------------------------------------------------------------------------------------------------------


def _stage_drop(tree: CudaTree) -> Iterator[Site | None]:
    for launch in tree.launches:
        function = tree.function(launch.node)
        together = [other for other in tree.launches if tree.function(other.node) is function]
        # Launches in different branches are alternatives, not stages.
        stages = [other for other in together if _block(other.node) is _block(launch.node)]
        statement = launch.node.statement
        if len(stages) > 1 and statement.type == "expression_statement":
            yield tree.site(f"launch of {launch.kernel} dropped", statement.replaced(";"))


def _block(node: Node) -> Node | None:
    return node.above("compound_statement")


def _assumed_multiple(tree: CudaTree) -> Iterator[Site | None]:
    """The last length of each launch: the innermost one, as a rule."""
    kernels = {kernel.name: kernel for kernel in tree.kernels}
    skipped = re.compile(r"(?i)\w*(?:stride|pad|dilation|group|kernel|eps|step|chunk|slice|tile|window)\w*|size|k[hw]?")
    for launch in tree.launches:
        kernel = kernels.get(launch.kernel)
        if kernel is None or len(kernel.parameters) != len(launch.arguments):
            continue
        found = [
            argument
            for parameter, argument in zip(kernel.parameters, launch.arguments, strict=True)
            if re.fullmatch(r"(?:int|int64_t|size_t|long|unsigned|unsigned int)", parameter.type.strip())
            and not parameter.pointer
            and argument.type == "identifier"
            and not (skipped.fullmatch(argument.text) or skipped.fullmatch(parameter.name))
        ]
        for argument in found[-1:]:
            text = f"{argument.text} / 8 * 8"
            yield tree.site(f"{launch.kernel}: `{argument.text}` -> `{text}`", argument.replaced(text))


def _kernel(body: str, parameters: str = "const float* bias, const float* gamma, float* y, int n, float eps") -> str:
    return f"__global__ void k({parameters}) {{ {body} }}"


def _in_kernel(old: str, new: str, before: str = "") -> tuple[Example, ...]:
    return (Example(_kernel(before + old), _kernel(before + new)),)


def _on_host(old: str, new: str) -> tuple[Example, ...]:
    head = "__global__ void k(const float* x, float* y, int n) { y[0] = x[n]; }\n"
    return (
        Example(
            f"{head}torch::Tensor f(torch::Tensor x) {{ {old} return x; }}",
            f"{head}torch::Tensor f(torch::Tensor x) {{ {new} return x; }}",
        ),
    )


_POOL = (
    "float best = -INFINITY;\n"
    "for (int i = 0; i < size; ++i) { if (h < 0 || h >= height) continue; best = fmaxf(best, x[h]); }"
)
_DECLARED = "Declared problems mostly use the usual value, which changes nothing."

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "epsilon-outside-sqrt",
        "model-error",
        "cuda",
        "Epsilon is added to the root instead of to what the root is taken of.",
        "Beside a variance of one the difference is about epsilon.",
        _in_kernel("y[0] = rsqrtf(v + eps);", "y[0] = (1.0f / (sqrtf(v) + eps));"),
        _epsilon_outside,
    ),
    Operator(
        "variance-biased",
        "model-error",
        "cuda",
        "A sum of squares is divided by the count where one less is right.",
        "Over thousands of elements the difference is below loose tolerances.",
        _in_kernel("y[0] = m2 / (n - 1);", "y[0] = m2 / (n);", "float m2 = 1.0f; "),
        _variance_biased,
    ),
    Operator(
        "mean-to-sum",
        "model-error",
        "cuda",
        "A sum is not divided by its count.",
        "A sum that is zero on average stays near its mean, which is zero.",
        _in_kernel("y[0] = sum / n;", "y[0] = sum;", "float sum = 1.0f; "),
        _mean_to_sum,
    ),
    Operator(
        "training-flag-false",
        "model-error",
        "cuda",
        "The kernel takes the branch for evaluation while it trains.",
        "Standard normal inputs have the statistics that running ones start with.",
        _in_kernel("if (training) y[0] = 1.0f;", "if (false) y[0] = 1.0f;"),
        _running_statistics,
    ),
    Operator(
        "scale-root-drop",
        "model-error",
        "cuda",
        "Scores are divided by the dimension instead of by its root.",
        "Softmax over many keys is nearly uniform either way.",
        _on_host("const float scale = 1.0f / sqrtf((float)head_dim);", "const float scale = 1.0f / ((float)head_dim);"),
        _scale_root_drop,
    ),
    Operator(
        "bias-drop",
        "model-error",
        "cuda",
        "A bias is not added.",
        "Biases are initialised to zero or small.",
        _in_kernel("y[n] = v + bias[n];", "y[n] = v;"),
        _term_drop("+", _BIAS),
    ),
    Operator(
        "affine-weight-drop",
        "model-error",
        "cuda",
        "A per-channel weight is not multiplied with.",
        "Weights of normalisations are initialised to one.",
        _in_kernel("y[n] = v * gamma[n];", "y[n] = v;"),
        _term_drop("*", _WEIGHT),
    ),
    Operator(
        "broadcast-first",
        "model-error",
        "cuda",
        "The first channel's parameter or statistic is used for all.",
        "Parameters are initialised alike, and statistics of random data are alike.",
        _in_kernel("y[n] = v * gamma[n];", "y[n] = v * gamma[0];"),
        _broadcast_first,
    ),
    Operator(
        "padding-value-zero",
        "model-error",
        "cuda",
        "Padding takes part in a maximum as zero instead of not at all.",
        "With inputs of both signs the maximum of a window is rarely negative.",
        (Example(_POOL, _POOL.replace("continue;", "{ best = fmaxf(best, 0.0f); continue; }")),),
        _padding_zero,
    ),
    Operator(
        "stride-ignored",
        "model-error",
        "cuda",
        "A window's stride, or a row's, is left out of an index.",
        _DECLARED,
        _in_kernel("y[0] = v[o * stride + k];", "y[0] = v[o + k];"),
        _factor_ignored("stride"),
    ),
    Operator(
        "dilation-ignored",
        "model-error",
        "cuda",
        "A window's dilation is left out of an index.",
        _DECLARED,
        _in_kernel("y[0] = v[o + k * dilation];", "y[0] = v[o + k];"),
        _factor_ignored("dilation"),
    ),
    Operator(
        "padding-ignored",
        "model-error",
        "cuda",
        "A window's padding is left out of an index.",
        _DECLARED,
        _in_kernel("y[0] = v[o - padding + k];", "y[0] = v[o + k];"),
        _padding_ignored,
    ),
    Operator(
        "groups-ignored",
        "model-error",
        "cuda",
        "Channels are taken as if there were one group.",
        "Most problems have one.",
        _in_kernel("y[0] = v[group * n + 1];", "y[0] = v[0 * n + 1];"),
        _groups_ignored,
    ),
    Operator(
        "stage-drop",
        "model-error",
        "cuda",
        "One of several kernels is not launched: a reduction without its second stage, an output without its bias.",
        "Fresh memory may hold the right numbers of an earlier run, and a late stage may change little.",
        _on_host("k<<<n, 32>>>(x, y, n); k<<<1, 32>>>(y, z, n);", "; k<<<1, 32>>>(y, z, n);"),
        _stage_drop,
    ),
    Operator(
        "size-assumed-multiple",
        "model-error",
        "cuda",
        "A kernel is told a length rounded down to a multiple of eight.",
        "Declared lengths are.",
        _on_host("k<<<n, 32>>>(x, y, n);", "k<<<n, 32>>>(x, y, n / 8 * 8);"),
        _assumed_multiple,
    ),
)
