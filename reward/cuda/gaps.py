"""What the CPU emulator cannot judge, found in a candidate's text by the judge. Nothing is executed.

Such a candidate is unrefereeable on a machine without a GPU, not wrong. A child's own word for it is not taken: it may
lower a verdict, never lift one.
"""

import ast
import re

from ...suites.python_syntax import parse
from .lexical import blank_comments

_GAPS = (
    (re.compile(r"\bcurand(?:_kernel|_\w+|\w*State\w*|\.h)?\b"), "curand"),
    (re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\("), "inline PTX"),
    (re.compile(r"\bcudnn(?:\.h|[A-Z]\w*)"), "cuDNN"),
    (re.compile(r"[<\"]thrust/"), "thrust"),
    (re.compile(r"[<\"](?:cutlass|cute)/"), "CUTLASS"),
    (re.compile(r"[<\"]cu(?:sparse|solver\w*|fft|blasLt|tensor)\.h"), "a CUDA library"),
    (
        re.compile(
            r"[<\"]cuda/(?:barrier|pipeline|std/\w+|atomic)|\bcuda::(?:barrier|pipeline|memcpy_async|atomic_ref)\b"
        ),
        "libcu++",
    ),
    (re.compile(r"\btorch::(?:nn|optim|autograd|jit)::"), "torch's C++ modules"),
    (re.compile(r"\bthis_grid\s*\(\s*\)"), "a grid-wide barrier"),
    (re.compile(r"\bcub::Device\w+"), "cub's device-wide algorithms"),
)


def emulator_gap(source: str) -> str | None:
    """Why the emulator cannot judge this candidate, or None. Comments and Python code do not count.

    A source that does not parse has no gap: loading it reports the syntax error.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            code = blank_comments(node.value)
            for pattern, name in _GAPS:
                if pattern.search(code):
                    return name
    return None
