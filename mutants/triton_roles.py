"""What the names and expressions of a Triton kernel stand for: pointers, offsets, masks, sizes, accumulators.

All of it is told from syntax and from how names are used, so it is a good guess for kernels that nobody here wrote.
"""

import ast
from collections.abc import Iterator
from functools import lru_cache

from .triton import Kernel, TritonTree, argument

MEMORY = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_and", "atomic_or")
_MASK_POSITION = {"load": 1, "store": 2}
_WHOLE = ("program_id", "num_programs", "arange", "cdiv", "argmax", "argmin")
_LIKE_ARGUMENTS = ("minimum", "maximum", "where", "full_like", "broadcast_to", "max_contiguous", "multiple_of")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "xor_sum", "reduce", "associative_scan")


class Roles:
    """Roles in one kernel.

    Attributes:
        pointers: parameters that are addresses, in order.
        loaded: those that something is loaded from.
        stored: those that something is stored to.
        sizes: parameters that are counts or strides, in order.
        strides: those of `sizes` that are strides by name.
        bounds: those of `sizes` that something is compared with.
    """

    def __init__(self, tree: TritonTree, kernel: Kernel) -> None:
        self._tree, self.kernel = tree, kernel
        self._set = _assignments(kernel, updates=False)
        self._assigned = _assignments(kernel)
        self._pointer_names = self._find_pointers()
        parameters = [item.name for item in kernel.parameters]
        self.constexprs = [item.name for item in kernel.parameters if item.constexpr]
        self.pointers = [name for name in parameters if name in self._pointer_names]
        self.loaded = [name for name in self.pointers if name in self._reached("load")]
        self.stored = [name for name in self.pointers if name in self._reached(*MEMORY[1:])]
        counted = self._counted_names()
        self.sizes = [
            name
            for name in parameters
            if name not in self._pointer_names and name not in self.constexprs and name in counted
        ]
        self.strides = [name for name in self.sizes if "stride" in name.lower()]
        compared = {
            name.id for node in kernel.of(ast.Compare) for name in ast.walk(node) if isinstance(name, ast.Name)
        } | {name.id for loop in kernel.of(ast.For) for name in ast.walk(loop.iter) if isinstance(name, ast.Name)}
        self.bounds = [name for name in self.sizes if name in compared and name not in self.strides]
        self._whole_names = self._find_whole()

    # Pointers

    def root(self, node: ast.expr) -> str | None:
        """The name that an address starts from: `x_ptr` of `x_ptr + row * n + i`."""
        while True:
            if isinstance(node, ast.BinOp):
                node = node.left
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and node.args:
                node = node.args[0]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            else:
                return node.id if isinstance(node, ast.Name) else None

    def _find_pointers(self) -> set[str]:
        names = {self.root(call.args[0]) for call in self._tree.calls(self.kernel, *MEMORY) if call.args}
        return self._close({name for name in names if name})

    def _close(self, names: set[str]) -> set[str]:
        """The names with those that their addresses come from."""
        while True:
            more = {root for name in names for value in self._set.get(name, ()) if (root := self.root(value))}
            if more <= names:
                return names
            names = names | more

    def _reached(self, *functions: str) -> set[str]:
        names = {self.root(call.args[0]) for call in self._tree.calls(self.kernel, *functions) if call.args}
        return self._close({name for name in names if name})

    def parameter_of(self, call: ast.Call) -> str | None:
        """The pointer parameter that a load or store uses."""
        root = self.root(call.args[0]) if call.args else None
        reached = self._close({root}) if root else set()
        return next((name for name in self.pointers if name in reached), None)

    # Whole numbers

    def _counted_names(self) -> set[str]:
        """Names in offsets, masks, ranges, and in what those are computed from."""
        nodes: list[ast.AST] = []
        for call in self._tree.calls(self.kernel, *MEMORY):
            nodes += call.args[:1]
            nodes += [mask for mask in (mask_of(self._tree, call),) if mask is not None]
        nodes += [loop.iter for loop in self.kernel.of(ast.For)]
        names: set[str] = set()
        while nodes:
            for node in ast.walk(nodes.pop()):
                if isinstance(node, ast.Name) and node.id not in names:
                    names.add(node.id)
                    nodes += [v for v in self._assigned.get(node.id, ()) if not self._loads(v)]
        return names

    def _loads(self, node: ast.AST) -> bool:
        return any(self._tree.called(inner) == "load" for inner in ast.walk(node))

    def _find_whole(self) -> set[str]:
        names = {*self.constexprs, *self.sizes}
        for loop in self.kernel.of(ast.For):
            if isinstance(loop.target, ast.Name):
                names.add(loop.target.id)
        candidates = set(self._assigned) - names
        # The largest consistent set: a name that is advanced from itself is whole if the rest of it is.
        names |= candidates
        self._whole_names = names
        while True:
            wrong = {n for n in candidates & names if not all(self.is_whole(value) for value in self._assigned[n])}
            if not wrong:
                return names
            names -= wrong

    def is_whole(self, node: ast.AST) -> bool:
        """Whether an expression is a whole number, as far as its syntax tells."""
        if isinstance(node, ast.Constant):
            return type(node.value) is int
        if isinstance(node, ast.Name):
            return node.id in self._whole_names
        if isinstance(node, ast.UnaryOp):
            return self.is_whole(node.operand)
        if isinstance(node, ast.BinOp):
            return not isinstance(node.op, ast.Div) and self.is_whole(node.left) and self.is_whole(node.right)
        if isinstance(node, ast.Subscript):
            return self.is_whole(node.value)
        if isinstance(node, ast.IfExp):
            return self.is_whole(node.body) and self.is_whole(node.orelse)
        if not isinstance(node, ast.Call):
            return False
        name = self._tree.called(node) or (node.func.id if isinstance(node.func, ast.Name) else None)
        if name in _WHOLE or self._tree.is_cdiv(node):
            return True
        if name in _LIKE_ARGUMENTS or name in ("min", "max"):
            return all(self.is_whole(item) for item in (node.args[1:] if name == "where" else node.args))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return ".int" in f".{self._tree.text(node.args[0])}" if node.args else False
        dtype = argument(node, "dtype", {"zeros": 1, "full": 2}.get(name or ""))
        return dtype is not None and "int" in self._tree.text(dtype)

    def is_pointer(self, node: ast.AST) -> bool:
        """Whether an expression is an address."""
        if isinstance(node, ast.BinOp):
            return self.is_pointer(node.left)
        return isinstance(node, ast.Name) and node.id in self._pointer_names

    # Names

    def values(self, name: str) -> list[ast.expr]:
        """Everything that is assigned to a name, updates included."""
        return self._assigned.get(name, [])

    def sources(self, node: ast.AST, depth: int = 3) -> Iterator[ast.AST]:
        """A node with everything in it and in the values of its names, `depth` assignments deep."""
        for inner in ast.walk(node):
            yield inner
            if isinstance(inner, ast.Name) and depth > 0:
                for value in self._assigned.get(inner.id, ()):
                    yield from self.sources(value, depth - 1)

    def accumulators(self) -> Iterator[ast.AugAssign | ast.Assign]:
        """Statements in loops that add to a number which is carried from turn to turn, addresses apart."""
        for node in self.kernel.of(ast.AugAssign, ast.Assign):
            if self._tree.loop_of(node) is None:
                continue
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
                if not self.is_pointer(node.target):
                    yield node
            elif isinstance(node, ast.Assign) and added(node) is not None:
                yield node


def added(node: ast.Assign) -> ast.expr | None:
    """`e` of `acc = acc * f + e` or `acc = acc + e`; None for any other assignment."""
    target, value = node.targets[0], node.value
    if not (isinstance(target, ast.Name) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
        return None
    kept = value.left
    if isinstance(kept, ast.BinOp) and isinstance(kept.op, ast.Mult):
        kept = kept.left
    return value.right if isinstance(kept, ast.Name) and kept.id == target.id else None


def _assignments(kernel: Kernel, updates: bool = True) -> dict[str, list[ast.expr]]:
    """Values by name; an update `x += e` counts as a value `e`, or not at all."""
    found: dict[str, list[ast.expr]] = {}
    for node in kernel.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                elif isinstance(target, ast.Tuple):
                    pairs = [(item, node.value) for item in target.elts]
                for item, value in pairs:
                    if isinstance(item, ast.Name):
                        found.setdefault(item.id, []).append(value)
        elif (
            (isinstance(node, ast.AnnAssign) or (updates and isinstance(node, ast.AugAssign)))
            and isinstance(node.target, ast.Name)
            and node.value is not None
        ):
            found.setdefault(node.target.id, []).append(node.value)
    return found


@lru_cache(maxsize=64)
def _roles(tree: TritonTree) -> dict[str, Roles]:
    return {kernel.name: Roles(tree, kernel) for kernel in tree.kernels}


def roles(tree: TritonTree, kernel: Kernel) -> Roles:
    """Roles in a kernel of the tree."""
    return _roles(tree)[kernel.name]


def each(tree: TritonTree) -> Iterator[tuple[Kernel, Roles]]:
    """Kernels with their roles."""
    for kernel in tree.kernels:
        yield kernel, roles(tree, kernel)


def mask_of(tree: TritonTree, call: ast.Call) -> ast.expr | None:
    """The mask of a load, store or atomic."""
    return argument(call, "mask", _MASK_POSITION.get(tree.called(call) or "", 2))


def is_infinite(node: ast.AST, sign: str = "-") -> bool:
    """Whether an expression is infinity of this sign, or a number beyond 1e8 that stands for it."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return is_infinite(node.operand, "+" if sign == "-" else "-")
    if isinstance(node, ast.Constant):
        return sign == "+" and isinstance(node.value, (int, float)) and node.value >= 1e8
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
        text = str(node.args[0].value).lower() if isinstance(node.args[0], ast.Constant) else ""
        return text in (("-inf", "-infinity") if sign == "-" else ("inf", "+inf", "infinity"))
    return isinstance(node, ast.Attribute) and node.attr == "inf" and sign == "+"


def is_number(node: ast.AST, *values: float) -> bool:
    """Whether an expression is a literal with one of these values."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return is_number(node.operand, *(-value for value in values))
    if not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        return False
    return node.value in values
