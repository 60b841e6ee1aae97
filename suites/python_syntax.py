"""Python's parser, from several threads.

CPython before 3.11.8 and 3.12.2 counts the depth of a syntax tree in one place for all threads: two that parse at the
same time can get `SystemError: AST constructor recursion depth mismatch` (github.com/python/cpython/issues/106905).
"""

import ast
import threading

_LOCK = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """`ast.parse`, one at a time.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    with _LOCK:
        return ast.parse(source)
