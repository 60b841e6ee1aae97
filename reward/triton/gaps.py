"""What Triton's interpreter cannot judge, found in the source by the judge. Pure syntax: Triton is not imported.

The interpreter (triton 3.6 to 3.9) adds and multiplies bf16 and fp8 bit patterns as integers without a word, and has
no inline assembly and no libdevice (we supply the functions named here). A candidate that needs one of these is
unrefereeable on a machine without a GPU, not wrong.
"""

import ast

from ...suites.python_syntax import parse

_UNARY = (
    "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp10 exp2 expm1 floor lgamma log log10 "
    "log1p log2 nearbyint rcp_rn rint round rsqrt sin sinh sqrt sqrt_rn tan tanh trunc fast_expf fast_exp10f "
    "fast_log2f fast_log10f fast_logf fast_sinf fast_cosf fast_tanf fast_tanhf isnan isinf finitef signbit"
)
_MORE = "atan2 copysign div_rn fast_dividef fast_powf fdim fmod hypot max min pow remainder fma"
LIBDEVICE = frozenset(f"{_UNARY} {_MORE}".split())
_TYPES = ("bfloat16", "bf16", "float8", "fp8")


def interpreter_gap(source: str) -> str | None:
    """Why the interpreter cannot judge this source, or None. Comments and ordinary strings do not count.

    A source that does not parse has no gap: loading it reports the syntax error.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    libdevice = {"libdevice"}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            libdevice |= {alias.asname for alias in node.names if alias.asname and "libdevice" in alias.name}
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("libdevice"):
                unknown = [alias.name for alias in node.names if alias.name not in LIBDEVICE]
                if unknown:
                    return f"libdevice.{unknown[0]}"
        name = _name(node)
        if name is None:
            continue
        if name.startswith(_TYPES):
            return name
        if name == "inline_asm_elementwise":
            return "inline assembly"
        if isinstance(node, ast.Attribute) and _name(node.value) in libdevice and name not in LIBDEVICE:
            return f"libdevice.{name}"
    return None


def _name(node: ast.AST) -> str | None:
    """An identifier, an attribute's name, or a string that is nothing but one (as in `getattr(tl, "bfloat16")`)."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        return node.value
    return None
