"""libdevice functions for Triton's interpreter, which has none: NumPy in the argument's own precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from scipy import special
from triton.language.extra import libdevice as generic
from triton.language.extra.cuda import libdevice as cuda
from triton.runtime.interpreter import TensorHandle

from . import interpreter


def _round_away(x: np.ndarray) -> np.ndarray:
    """C's round(): halves away from zero."""
    return np.trunc(x + np.copysign(0.5, x).astype(x.dtype))


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": special.erf,
    "erfc": special.erfc,
    "exp": np.exp,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "lgamma": special.gammaln,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "rcp_rn": np.reciprocal,
    "rint": np.rint,
    "round": _round_away,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
UNARY |= {
    f"fast_{name}f": UNARY[name] for name in ("exp", "exp10", "log2", "log10", "log", "sin", "cos", "tan", "tanh")
}
PREDICATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "finitef": np.isfinite,
    "signbit": np.signbit,
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "div_rn": np.divide,
    "fast_dividef": np.divide,
    "fast_powf": np.power,
    "fdim": lambda x, y: np.fmax(x - y, 0),
    "fmod": np.fmod,
    "hypot": np.hypot,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "remainder": lambda x, y: x - y * np.rint(x / y),
}


def _wrap(function: Callable[..., np.ndarray], count: int, predicate: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **_semantic: Any) -> Any:
        semantic = interpreter.semantic()
        values = [semantic.to_tensor(a) for a in arguments[:count]]
        for _ in range(2):  # every argument to the shape of the widest
            for i in range(1, count):
                values[0], values[i] = semantic.broadcast_impl_value(values[0], values[i])
        kind = next((v.dtype for v in values if v.dtype.is_floating()), values[0].dtype)
        data = [v.handle.data for v in values]
        if predicate:
            kind, result = tl.int32, function(*data).astype(np.int32)
        else:
            common = next(v.handle.data.dtype for v in values if v.dtype == kind)
            with np.errstate(all="ignore"):
                result = np.asarray(function(*(d.astype(common) for d in data))).astype(common)
        shape = values[0].type
        whole = tl.block_type(kind, shape.get_block_shapes()) if shape.is_block() else kind
        return tl.tensor(TensorHandle(result, kind), whole)

    return call


def install() -> None:
    """Put the functions where kernels look for them."""
    tables: list[tuple[dict[str, Callable[..., np.ndarray]], int, bool]] = [
        (UNARY, 1, False),
        (PREDICATES, 1, True),
        (BINARY, 2, False),
        ({"fma": lambda x, y, z: x * y + z}, 3, False),
    ]
    for table, count, predicate in tables:
        for name, function in table.items():
            for module in (generic, cuda):
                setattr(module, name, _wrap(function, count, predicate))
