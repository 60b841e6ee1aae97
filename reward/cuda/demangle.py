"""Names of kernel instantiations: what g++ calls them, what NVRTC calls them, and one form for both.

The host knows an instantiation by g++'s `__PRETTY_FUNCTION__` (`void k(T*) [with T = float; int B = 4]`), the cubin by
its mangled symbol (`_Z1kIfLi4EEvPT_`). The canonical form is the C++ expression without needless spaces: `k<float,4>`.
"""

import ctypes
import re
from functools import lru_cache

_SPELLINGS = (
    (r"\blong long unsigned int\b", "unsigned long long"),
    (r"\blong unsigned int\b", "unsigned long"),
    (r"\bshort unsigned int\b", "unsigned short"),
    (r"\blong long int\b", "long long"),
    (r"\blong int\b", "long"),
    (r"\bshort int\b", "short"),
    (r"\bunsigned int\b", "unsigned"),
    (r"\b(\d+)(?:u|U|l|L)+\b", r"\1"),
    (r"\(bool\)1", "true"),
    (r"\(bool\)0", "false"),
    (r"\{anonymous\}::|\(anonymous namespace\)::|<unnamed>::", ""),
)


def canonical(expression: str) -> str:
    """One spelling for a kernel expression, whoever wrote it."""
    for pattern, replacement in _SPELLINGS:
        expression = re.sub(pattern, replacement, expression)
    expression = re.sub(r"\s+", " ", expression).strip()
    return re.sub(r"\s*([<>,*&:])\s*", r"\1", expression)


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return library


def demangle(symbol: str) -> str:
    """The C++ declaration behind a mangled symbol; the symbol itself where it is none."""
    status = ctypes.c_int()
    # A symbol is a C identifier: it holds no zero byte.
    pointer = _runtime().__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if status.value or not pointer:
        return symbol
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(pointer)


def template_id(symbol: str) -> str:
    """The canonical expression of a kernel's symbol: its qualified name with template arguments."""
    text = demangle(symbol).replace("(anonymous namespace)::", "")
    depth = 0
    end = len(text)
    for index, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0:
            end = index
            break
    return canonical(text[:end].removeprefix("void "))


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of brackets."""
    parts = [""]
    depth = 0
    for char in text:
        if char in "<({[":
            depth += 1
        elif char in ">)}]":
            depth -= 1
        if char == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def expression_of(name: str, parameters: str, signature: str) -> str | None:
    """The canonical expression for a stub that is running.

    Args:
        name: the kernel's qualified name.
        parameters: names of its template parameters, comma-separated, packs as `...Name`; empty for no template.
        signature: the stub's `__PRETTY_FUNCTION__`.

    Returns:
        None where the arguments cannot be written down outside of the host's code (a lambda, a local type).
    """
    if not parameters:
        return canonical(name)
    start = signature.rfind(" [with ")
    if start < 0:
        return None
    values: dict[str, str] = {}
    for binding in _split(signature[start + 7 : -1], ";"):
        left, equals, right = binding.partition(" = ")
        if equals:
            values[re.split(r"[\s*&]", left.replace("...", ""))[-1]] = right.strip()
    arguments: list[str] = []
    for parameter in parameters.split(","):
        value = values.get(parameter.removeprefix("..."))
        if value is None or "lambda" in value or "::<" in value or ")::" in value:
            return None
        if parameter.startswith("..."):
            inside = value.removeprefix("{").removesuffix("}").strip()
            arguments.extend(_split(inside, ",") if inside else [])
        else:
            arguments.append(value)
    return canonical(f"{name}<{','.join(arguments)}>")
