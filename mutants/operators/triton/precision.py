"""Lost precision: halves, approximations, constants that are nearly right, epsilons."""

import ast
from collections.abc import Iterator
from itertools import chain

from ...mutant import Site
from ...triton import Kernel, TritonTree
from ...triton_roles import Roles, added, each, is_number
from .rules import Rules, body

rule = Rules("precision")

REPLACES = {
    "triton-exp-rounded-base": ("expf-fast",),
    "triton-erf-to-tanh": ("erf-to-tanh-approx",),
    "triton-constant-perturb": (
        "gelu-tanh-const-perturb",
        "gelu-sqrt2pi-perturb",
        "invsqrt2-perturb",
        "selu-alpha-perturb",
        "selu-scale-perturb",
        "hardsigmoid-slope-perturb",
        "clamp-bound-perturb",
    ),
    "triton-constant-perturb-small": ("softplus-cutoff-tiny-shift",),
    "triton-count-perturb": ("avgpool-denom-perturb",),
    "triton-store-nudge": ("matmul-acc-store-fma-nudge",),
    "triton-epsilon-remove": ("rsqrt-epsilon-remove", "sqrt-epsilon-remove", "literal-epsilon-remove"),
    "triton-epsilon-halved": ("groupnorm-epsilon-halved", "batchnorm-epsilon-small-bias"),
    "triton-softmax-max-subtraction-remove": ("softmax-max-subtraction-remove-fast",),
    "triton-delta-reuse": ("welford-second-delta-reuse",),
}


def _half(tree: TritonTree, node: ast.expr, dtype: str = "float16") -> str:
    return f"{tree.operand(node)}.to({tree.tl}.{dtype}).to({tree.tl}.float32)"


@rule(
    "triton-acc-fp16",
    "Every term of a sum makes a round trip through half precision.",
    "Errors of 5e-4 average out in long sums and are far below 1e-2.",
    body("for k in range(K):\n    acc += x", "for k in range(K):\n    acc += x.to(tl.float16).to(tl.float32)"),
)
def _acc_fp16(tree: TritonTree) -> Iterator[Site]:
    for _, roles in each(tree):
        for node in roles.accumulators():
            value = node.value if isinstance(node, ast.AugAssign) else added(node)
            if value is not None and not roles.is_whole(value):
                yield tree.replace(value, _half(tree, value))


@rule(
    "triton-load-fp16",
    "What is loaded makes a round trip through half precision.",
    "Inputs of order one lose 5e-4 of their value.",
    body("x = tl.load(x_ptr + i)", "x = tl.load(x_ptr + i).to(tl.float16).to(tl.float32)"),
)
def _load_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "load"):
            if not _counts(tree, kernel, roles, call):
                yield tree.replace(call, _half(tree, call))


def _counts(tree: TritonTree, kernel: Kernel, roles: Roles, call: ast.Call) -> bool:
    """Whether a loaded value is an index or a flag: it is used in an address or compared for being zero."""
    above = tree.parent(call)
    if not (isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name)):
        return False
    name = above.targets[0].id
    for node in kernel.of(ast.Call, ast.Compare):
        inside: ast.AST | None = None
        if isinstance(node, ast.Compare):
            inside = (
                node if is_number(node.comparators[0], 0) and isinstance(node.ops[0], (ast.NotEq, ast.Eq)) else None
            )
        elif tree.called(node) in ("load", "store") and isinstance(node, ast.Call) and node.args:
            inside = node.args[0]
        if inside is not None and any(isinstance(n, ast.Name) and n.id == name for n in roles.sources(inside, depth=1)):
            return True
    return False


@rule(
    "triton-store-fp16",
    "What is stored makes a round trip through half precision.",
    "5e-4 of the value, far below 1e-2.",
    body("tl.store(out_ptr + i, y, mask=m)", "tl.store(out_ptr + i, y.to(tl.float16).to(tl.float32), mask=m)"),
)
def _store_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "store", "atomic_add"):
            if len(call.args) > 1 and not roles.is_whole(call.args[1]):
                yield tree.replace(call.args[1], _half(tree, call.args[1]))


@rule(
    "triton-reduce-fp16",
    "A reduction runs over values that were rounded to half precision.",
    "Rounding errors of many terms average out.",
    body("s = tl.sum(x, axis=0)", "s = tl.sum(x.to(tl.float16).to(tl.float32), axis=0)"),
)
def _reduce_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "sum", "cumsum"):
            if call.args and not roles.is_whole(call.args[0]):
                yield tree.replace(call.args[0], _half(tree, call.args[0]))


@rule(
    "triton-exp-rounded-base",
    "The exponential goes through exp2 with four digits of log2(e).",
    "The relative error grows with the argument; small arguments hide it.",
    body("y = tl.exp(x)", "y = tl.exp2((x) * 1.4427)"),
)
def _exp_rounded(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "exp"):
            if len(call.args) == 1:
                yield tree.replace(call, f"{tree.tl}.exp2(({tree.text(call.args[0])}) * 1.4427)")


@rule(
    "triton-log-rounded-base",
    "The logarithm goes through log2 with four digits of ln(2).",
    "A relative error of 7e-5.",
    body("y = tl.log(x)", "y = (tl.log2(x) * 0.6931)"),
)
def _log_rounded(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "log"):
            if len(call.args) == 1:
                yield tree.replace(call, f"({tree.tl}.log2({tree.text(call.args[0])}) * 0.6931)")


@rule(
    "triton-erf-to-tanh",
    "The error function is approximated by a hyperbolic tangent.",
    "The GELU differs by 5e-4 at most.",
    body("y = tl.erf(x)", "y = (2.0 * tl.sigmoid(2.2567583 * (x) * (1.0 + 0.08943 * (x) * (x))) - 1.0)"),
)
def _erf_to_tanh(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for call in tree.calls(kernel, "erf"):
            if len(call.args) == 1:
                x = f"({tree.text(call.args[0])})"
                inner = f"2.2567583 * {x} * (1.0 + 0.08943 * {x} * {x})"
                yield tree.replace(call, f"(2.0 * {tree.tl}.sigmoid({inner}) - 1.0)")


def _perturb(tree: TritonTree, factor: float) -> Iterator[Site]:
    """Sites that multiply a floating-point literal of a kernel, or of a launch's arguments."""
    nodes = chain(
        (node for kernel in tree.kernels for node in kernel.of(ast.Constant)),
        (node for launch in tree.launches for item in launch.call.args for node in ast.walk(item)),
    )
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, float)
            and node.value != 0
            and abs(node.value) < 1e8
        ):
            above = tree.parent(node)
            if not (isinstance(above, ast.keyword) and above.arg == "other"):
                yield tree.replace(node, repr(node.value * factor))


@rule(
    "triton-constant-perturb",
    "A constant is off by a thousandth.",
    "A tenth of what 1e-2 allows.",
    body("y = x * 0.5", f"y = x * {0.5 * 1.001!r}"),
)
def _constant_perturb(tree: TritonTree) -> Iterator[Site]:
    return _perturb(tree, 1 + 1e-3)


@rule(
    "triton-constant-perturb-small",
    "A constant is off by a ten-thousandth.",
    "A hundredth of what 1e-2 allows.",
    body("y = x * 0.5", f"y = x * {0.5 * 1.0001!r}"),
)
def _constant_perturb_small(tree: TritonTree) -> Iterator[Site]:
    return _perturb(tree, 1 + 1e-4)


@rule(
    "triton-count-perturb",
    "A mean divides by a count that is a thousandth too large.",
    "A tenth of what 1e-2 allows.",
    body(
        "mean = tl.sum(x, axis=0) / N\ny = tl.load(x_ptr + N)",
        "mean = tl.sum(x, axis=0) / (N * 1.001)\ny = tl.load(x_ptr + N)",
    ),
)
def _count_perturb(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Div) and roles.is_whole(node.right) and not roles.is_whole(node.left):
                yield tree.replace(node.right, f"({tree.operand(node.right)} * 1.001)")


@rule(
    "triton-store-nudge",
    "What is stored is a ten-thousandth too small.",
    "A hundredth of what 1e-2 allows.",
    body("tl.store(out_ptr + i, y)", "tl.store(out_ptr + i, y * 0.9999)"),
)
def _store_nudge(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for call in tree.calls(kernel, "store", "atomic_add"):
            if len(call.args) > 1 and not roles.is_whole(call.args[1]):
                yield tree.replace(call.args[1], f"{tree.operand(call.args[1])} * 0.9999")


def _epsilons(tree: TritonTree) -> Iterator[tuple[ast.BinOp, ast.expr, ast.expr]]:
    """Sums with an epsilon, the other operand, and the epsilon: a parameter named so, or a tiny literal."""
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if not isinstance(node.op, ast.Add):
                continue
            for other, epsilon in ((node.left, node.right), (node.right, node.left)):
                named = isinstance(epsilon, ast.Name) and epsilon.id.lower() in ("eps", "epsilon")
                tiny = (
                    isinstance(epsilon, ast.Constant) and isinstance(epsilon.value, float) and 0 < epsilon.value <= 1e-3
                )
                if named or tiny:
                    yield node, other, epsilon
                    break


@rule(
    "triton-epsilon-remove",
    "An epsilon is missing.",
    "Only rows without spread, or of zeros, need it.",
    body("s = tl.rsqrt(v + eps)", "s = tl.rsqrt(v)"),
)
def _epsilon_remove(tree: TritonTree) -> Iterator[Site]:
    for node, other, _ in _epsilons(tree):
        above = tree.parent(node)
        yield tree.replace(node, tree.text(other) if isinstance(above, ast.Call) else tree.operand(other))


@rule(
    "triton-epsilon-halved",
    "An epsilon is half as large.",
    "Only rows with hardly any spread show it.",
    body("s = tl.rsqrt(v + eps)", "s = tl.rsqrt(v + (eps * 0.5))"),
)
def _epsilon_halved(tree: TritonTree) -> Iterator[Site]:
    for _, _, epsilon in _epsilons(tree):
        yield tree.replace(epsilon, f"({tree.text(epsilon)} * 0.5)")


@rule(
    "triton-softmax-max-subtraction-remove",
    "Exponentials are taken without subtracting the maximum first.",
    "Logits below 80 do not overflow, and the quotient is the same.",
    body("y = tl.exp(x - tl.max(x, axis=0))", "y = tl.exp(x)"),
    body("m = tl.max(x, axis=0)\ny = tl.exp(x - m)", "m = tl.max(x, axis=0)\ny = tl.exp(x)"),
)
def _max_subtraction_remove(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):

        def largest(node: ast.AST, roles: Roles = roles) -> bool:
            return any(tree.called(inner) in ("max", "maximum") for inner in roles.sources(node, depth=2))

        for call in tree.calls(kernel, "exp", "exp2"):
            shifted = call.args[0] if call.args else None
            if isinstance(shifted, ast.BinOp) and isinstance(shifted.op, ast.Sub) and largest(shifted.right):
                base = shifted.left
                if not (isinstance(base, ast.Name) and largest(base)):  # the factor that rescales a running sum stays
                    yield tree.replace(shifted, tree.text(base))


@rule(
    "triton-kahan-compensation-drop",
    "A compensated sum does not use what it lost.",
    "Short sums lose nothing that matters.",
    body(
        "for k in range(K):\n    y = x - c\n    t = s + y\n    c = (t - s) - y\n    s = t",
        "for k in range(K):\n    y = x\n    t = s + y\n    c = (t - s) - y\n    s = t",
    ),
)
def _kahan_drop(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        lost = {
            node.targets[0].id
            for node in kernel.of(ast.Assign)
            if tree.loop_of(node) is not None
            and isinstance(node.targets[0], ast.Name)
            and (outer := _difference(node.value)) is not None
            and _difference(outer.left) is not None
        }
        for node in kernel.of(ast.BinOp):
            if _difference(node) is not None and isinstance(node.right, ast.Name) and node.right.id in lost:
                yield tree.replace(node, tree.operand(node.left))


def _difference(node: ast.AST) -> ast.BinOp | None:
    return node if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else None


@rule(
    "triton-delta-reuse",
    "Merging squared deviations leaves the distance of the means out once.",
    "Pieces of a row that have about the same mean.",
    body("m2 += q + delta * delta * f", "m2 += q + delta * f"),
)
def _delta_reuse(tree: TritonTree) -> Iterator[Site]:
    for kernel, _ in each(tree):
        for node in kernel.of(ast.BinOp):
            if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name):
                above = tree.parent(node)
                if node.left.id == node.right.id and isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
                    yield tree.replace(node, node.left.id)


@rule(
    "triton-softmax-reciprocal-fp16",
    "A quotient multiplies by a reciprocal that was rounded to half precision.",
    "A relative error of 5e-4.",
    body("y = x / total", "y = x * (1.0 / total).to(tl.float16).to(tl.float32)"),
)
def _reciprocal_fp16(tree: TritonTree) -> Iterator[Site]:
    for kernel, roles in each(tree):
        for node in kernel.of(ast.BinOp):
            divided = isinstance(node.op, ast.Div) and not is_number(node.left, 1)
            if divided and isinstance(node.right, (ast.Name, ast.Subscript)) and not roles.is_whole(node.right):
                inverse = f"(1.0 / {tree.operand(node.right)}).to({tree.tl}.float16).to({tree.tl}.float32)"
                text = f"{tree.operand(node.left)} * {inverse}"
                yield tree.replace(node, f"({text})" if isinstance(tree.parent(node), ast.BinOp) else text)


OPERATORS = tuple(rule.operators)
