"""What the modules of operators are written with: a collector of rules, and examples around a smallest kernel."""

from collections.abc import Callable, Iterable

from ...mutant import Example, Operator, Site
from ...triton import TritonTree

Find = Callable[[TritonTree], Iterable[Site]]

_HEAD = "@triton.jit\ndef kernel(x_ptr, y_ptr, out_ptr, M, N, K, stride_m, stride_n, eps, BLOCK: tl.constexpr):\n"
_LAUNCHED = (
    "@triton.jit\ndef kernel(x_ptr, out_ptr, n, m, BLOCK: tl.constexpr):\n"
    "    i = tl.arange(0, BLOCK)\n    tl.store(out_ptr + i, 0.0, mask=i < n * m)\n\n\n"
)


class Rules:
    """Collects the operators of a family.

    Attributes:
        operators: in the order in which they were written.
    """

    def __init__(self, family: str) -> None:
        self._family = family
        self.operators: list[Operator] = []

    def __call__(self, name: str, summary: str, escapes: str, *examples: Example) -> Callable[[Find], Find]:
        """Make an operator of the function that finds its sites; arguments as in `Operator`."""

        def add(find: Find) -> Find:
            self.operators.append(Operator(name, self._family, "triton", summary, escapes, examples, find))
            return find

        return add


def body(before: str, after: str) -> Example:
    """An example whose lines are the body of a kernel."""
    return Example(*(_HEAD + "".join(f"    {line}\n" for line in text.splitlines()) for text in (before, after)))


def host(before: str, after: str) -> Example:
    """An example of host code beside `kernel`, which takes `x_ptr, out_ptr, n, m, BLOCK`."""
    return Example(_LAUNCHED + before + "\n", _LAUNCHED + after + "\n")
