"""What language models get wrong in the Python beside their kernels: `ModelNew` and how it calls them."""

import ast
from collections.abc import Callable, Iterator

from ...cuda import CudaTree
from ...host_python import HostPython
from ...mutant import Example, Operator, Site

_Finder = Callable[[CudaTree], Iterator[Site | None]]


def _on_python(find: Callable[[HostPython], Iterator[Site | None]]) -> _Finder:
    def found(tree: CudaTree) -> Iterator[Site | None]:
        host = HostPython.of(tree.source)
        if host is not None:
            yield from find(host)

    return found


def _method_calls(host: HostPython, *names: str) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    for method in host.methods():
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                yield node, node.func


def _contiguous_drop(host: HostPython) -> Iterator[Site]:
    """One site per candidate: what one call misses, all of them miss."""
    found = [(call, host.text(function.value)) for call, function in _method_calls(host, "contiguous")]
    if found and not any(".contiguous" in text for _, text in found):
        yield host.site("no tensor is made contiguous", *found)


def _reads(host: HostPython, *names: str) -> Iterator[ast.Attribute]:
    """Attributes of these names that `forward` reads."""
    for method in host.methods("forward"):
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in names:
                above = host.parents.get(id(node))
                if not (isinstance(above, ast.Attribute) or (isinstance(above, ast.Call) and above.func is node)):
                    yield node


def _bias_zero(host: HostPython) -> Iterator[Site]:
    for node in _reads(host, "bias"):
        text = host.text(node)
        new = f"(None if {text} is None else torch.zeros_like({text}))"
        yield host.site(f"`{text}` taken as zero", (node, new))


def _weight_one(host: HostPython) -> Iterator[Site]:
    for node in _reads(host, "weight"):
        owner = host.text(node.value)
        if "norm" in owner.lower() or owner.split(".")[-1] in ("bn", "ln", "gn"):
            text = host.text(node)
            yield host.site(f"`{text}` taken as one", (node, f"torch.ones_like({text})"))


def _running_statistics(host: HostPython) -> Iterator[Site]:
    for node in _reads(host, "training"):
        yield host.site(f"`{host.text(node)}` -> `False`", (node, "False"))


def _other_epsilon(host: HostPython) -> Iterator[Site]:
    for node in _reads(host, "eps", "epsilon"):
        yield host.site(f"`{host.text(node)}` -> `1e-3`", (node, "1e-3"))


def _output_half(host: HostPython) -> Iterator[Site]:
    for method in host.methods("forward"):
        for node in ast.walk(method):
            if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Tuple):
                text = host.text(node.value)
                yield host.site(f"`{text}` returned as half", (node.value, f"({text}).half()"))


_NEUTRAL = {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "output_padding": "0"}


def _geometry_ignored(host: HostPython) -> Iterator[Site]:
    for method in host.methods("__init__"):
        for statement in ast.walk(method):
            if not isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Call):
                continue
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Name) and node.id in _NEUTRAL:
                    text = _NEUTRAL[node.id]
                    yield host.site(f"`{node.id}` taken as {text}", (node, text))


def _swapped_operands(host: HostPython) -> Iterator[Site]:
    for method in host.methods("forward"):
        inputs = {argument.arg for argument in method.args.args[1:]}
        for node in ast.walk(method):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            for first, second in zip(node.args, node.args[1:], strict=False):
                names = [{n.id for n in ast.walk(a) if isinstance(n, ast.Name)} & inputs for a in (first, second)]
                if all(names) and names[0] != names[1]:
                    one, two = host.text(first), host.text(second)
                    yield host.site(f"`{one}` and `{two}` swapped", (first, two), (second, one))


def _model(forward: str, init: str = "") -> str:
    text = "class ModelNew(nn.Module):\n"
    if init:
        text += f"    def __init__(self, size, stride, padding):\n        {init}\n"
    return f"{text}    def forward(self, x, y):\n        return {forward}\n"


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "contiguous-drop",
        "model-error",
        "cuda",
        "A tensor is handed to a kernel that reads it as contiguous, without being made so.",
        "Inputs that are generated are contiguous.",
        (Example(_model("extension.f(x.contiguous(), y)"), _model("extension.f(x, y)")),),
        _on_python(_contiguous_drop),
    ),
    Operator(
        "bias-argument-zero",
        "model-error",
        "cuda",
        "A layer's bias is taken as zero.",
        "Biases are initialised to zero or small, so loose tolerances and fresh models hide it.",
        (
            Example(
                _model("extension.f(x, self.norm.bias)"),
                _model("extension.f(x, (None if self.norm.bias is None else torch.zeros_like(self.norm.bias)))"),
            ),
        ),
        _on_python(_bias_zero),
    ),
    Operator(
        "norm-weight-one",
        "model-error",
        "cuda",
        "A normalisation's weight is taken as one.",
        "That is what it is initialised to.",
        (
            Example(
                _model("extension.f(x, self.norm.weight)"),
                _model("extension.f(x, torch.ones_like(self.norm.weight))"),
            ),
        ),
        _on_python(_weight_one),
    ),
    Operator(
        "running-statistics",
        "model-error",
        "cuda",
        "Running statistics are used where the batch's own are asked for.",
        "Standard normal inputs have the statistics that running ones start with.",
        (Example(_model("extension.f(x, self.training)"), _model("extension.f(x, False)")),),
        _on_python(_running_statistics),
    ),
    Operator(
        "epsilon-other-default",
        "model-error",
        "cuda",
        "A normalisation's epsilon is another framework's default.",
        "Beside a variance of one it is small.",
        (Example(_model("extension.f(x, self.norm.eps)"), _model("extension.f(x, 1e-3)")),),
        _on_python(_other_epsilon),
    ),
    Operator(
        "output-dtype-half",
        "model-error",
        "cuda",
        "The result is returned in half precision.",
        "Comparisons that convert before they compare see an error within their tolerance.",
        (Example(_model("extension.f(x, y)"), _model("(extension.f(x, y)).half()")),),
        _on_python(_output_half),
    ),
    Operator(
        "geometry-argument-ignored",
        "model-error",
        "cuda",
        "Stride, padding, dilation or groups that the model is constructed with are taken as the usual ones.",
        "Many problems are declared with the usual ones.",
        (
            Example(
                _model("extension.f(x, *self.window)", "self.window = (size, stride, padding)"),
                _model("extension.f(x, *self.window)", "self.window = (size, 1, padding)"),
            ),
        ),
        _on_python(_geometry_ignored),
    ),
    Operator(
        "call-operands-swap",
        "model-error",
        "cuda",
        "Two inputs are handed to the kernel in the wrong order.",
        "Commutative operations and symmetric inputs hide it.",
        (Example(_model("extension.f(x, y)"), _model("extension.f(y, x)")),),
        _on_python(_swapped_operands),
    ),
)
