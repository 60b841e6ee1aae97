"""The rules of the static screen. Each yields (code, line, message); the policy decides what is hard."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping

from .screen_source import ParsedSource, identifier

Hit = tuple[str, int, str]
Rule = Callable[[ParsedSource, str], Iterator[Hit]]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SUSPECT_MODULES = frozenset(
    {"ctypes", "cffi", "subprocess", "socket", "multiprocessing", "signal", "mmap", "resource", "pty", "fcntl"}
)
INTROSPECTION_MODULES = frozenset({"gc", "inspect", "tracemalloc", "traceback", "faulthandler"})
INTROSPECTION_CALLS = frozenset({"sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile"})
PROCESS_CALLS = frozenset(
    {"os._exit", "os.abort", "os.kill", "os.killpg", "os.fork", "os.forkpty", "os.setsid", "os.system", "os.popen"}
    | {"sys.exit", "exit", "quit"}
)
DYNAMIC_CALLS = frozenset({"exec", "eval", "compile", "__import__", "importlib.import_module"})
STREAM_CALLS = frozenset({"torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream"})
GRAPH_CALLS = frozenset({"torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables"})
PATCHABLE = frozenset({"torch", "triton", "time", "os", "sys", "builtins", "numpy"})

#: torch functions that only allocate, describe or re-view memory.
NOT_COMPUTE = _words(
    """
    empty empty_like empty_strided zeros zeros_like ones ones_like full full_like tensor as_tensor from_numpy arange
    linspace rand randn rand_like randn_like randint randperm manual_seed device dtype Size Tensor Generator
    is_tensor no_grad inference_mode enable_grad set_grad_enabled is_grad_enabled get_default_dtype finfo iinfo
    promote_types result_type broadcast_shapes broadcast_tensors reshape flatten squeeze unsqueeze permute transpose
    movedim swapaxes t narrow select split chunk unbind is_floating_point is_complex numel get_num_threads
    set_num_threads is_autocast_enabled initial_seed version float32 float16 bfloat16 float64 int32 int64 bool
    """
)
NOT_COMPUTE_MODULES = ("cuda", "backends", "autograd", "utils", "nn", "version", "library", "jit", "random", "types")
#: Tensor methods that compute. Names that plain Python objects have too (`index`, `count`, `copy`) are left out.
COMPUTE_METHODS = _words(
    """
    matmul mm bmm addmm baddbmm addbmm mv dot einsum sum mean var std norm softmax log_softmax logsumexp relu relu_
    sigmoid tanh exp exp2 log log2 log1p sqrt rsqrt pow erf amax amin argmax argmin topk sort cumsum cumprod prod
    clamp clamp_min clamp_max abs add add_ mul mul_ sub sub_ div div_ neg masked_fill where gather scatter_add_ tril
    triu
    """
)
PARAMETER_HOLDERS = frozenset({"Parameter", "ParameterList", "ParameterDict", "Module", "ModuleList", "Identity"})
VENDOR = re.compile(r"\b(?:cublas|cudnn|cusparse|cusolver|cutlass)\w*", re.IGNORECASE)
CPP_COMPUTE = re.compile(
    r"\b(?:at|torch)::(?:\w+::)*"
    r"(matmul|mm|bmm|addmm|baddbmm|mv|dot|einsum|linear|conv\w*|\w*softmax|relu|gelu|sigmoid|tanh|exp|log|sum|mean|"
    r"var|std|norm|cumsum|cumprod|amax|amin|max|min|argmax|argmin|topk|sort|\w*_norm|\w*pool\w*|\w*_loss|"
    r"scaled_dot_product_attention)\s*\("
)
CPP_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def apply(parsed: ParsedSource, backend: str) -> list[Hit]:
    """Every rule's hits on a source, without repetitions."""
    return list(dict.fromkeys(hit for rule in dict.fromkeys(RULES.values()) for hit in rule(parsed, backend)))


def _inherits_reference(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    for node in parsed.definitions.get("ModelNew", []):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if parsed.dotted(base).rsplit(".", 1)[-1] == "Model":
                yield "inherits-reference", node.lineno, "ModelNew inherits from the reference's class Model"


def _torch_compute(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    if backend != "torch":
        for node in parsed.host_nodes:
            what = _computes(parsed, node)
            if what:
                yield "torch-compute", getattr(node, "lineno", 0), f"host code computes with torch: {what}"
    for text in parsed.cuda_texts:
        clean = CPP_NOISE.sub(lambda m: "\n" * m.group().count("\n"), str(text.value))
        for match in CPP_COMPUTE.finditer(clean):
            line = text.lineno + clean.count("\n", 0, match.start())
            yield "torch-compute", line, f"C++ code computes with torch: {match.group().rstrip('( ')}"


def _vendor_library(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    for text in parsed.cuda_texts:
        clean = CPP_NOISE.sub(lambda m: "\n" * m.group().count("\n"), str(text.value))
        match = VENDOR.search(clean)
        if match:
            line = text.lineno + clean.count("\n", 0, match.start())
            yield "vendor-library", line, f"the kernel source calls a vendor library: {match.group()}"


def _computes(parsed: ParsedSource, node: ast.AST) -> str:
    """What a host syntax node computes with torch, "" where it does not."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "@"
    if not isinstance(node, ast.Call):
        return ""
    path = parsed.dotted(node.func)
    first, _, rest = path.partition(".")
    if parsed.from_import(node.func):
        if first != "torch":
            return ""
        if rest.startswith("nn.functional."):
            return "" if rest.endswith(".pad") else path
        return path if rest.split(".")[0] not in NOT_COMPUTE and rest.split(".")[0] not in NOT_COMPUTE_MODULES else ""
    if not isinstance(node.func, ast.Attribute):
        return ""
    if first == "self" and node.func.attr in _layers(parsed):
        return f"calls the layer self.{node.func.attr}"
    owner = node.func.value
    if node.func.attr in COMPUTE_METHODS and not _is_extension(parsed, owner):
        return f".{node.func.attr}()"
    return ""


def _is_extension(parsed: ParsedSource, node: ast.AST) -> bool:
    names = {name for name in map(identifier, ast.walk(node)) if name}
    return bool(names & parsed.extension_names) or bool(names & set(parsed.definitions))


def _layers(parsed: ParsedSource) -> set[str]:
    """Attributes of self that hold a torch layer (`self.fc = nn.Linear(...)`)."""
    found: set[str] = set()
    for node in parsed.host_nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            path = parsed.dotted(node.value.func)
            if path.startswith("torch.nn.") and path.rsplit(".", 1)[-1] not in PARAMETER_HOLDERS:
                found.update(t.attr for t in node.targets if isinstance(t, ast.Attribute))
    return found


def _torch_fallback(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    if backend == "torch":
        return
    for node in parsed.host_nodes:
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                what = next(filter(None, (_computes(parsed, n) for n in ast.walk(handler))), "")
                if what:
                    yield "torch-fallback", handler.lineno, f"the except branch computes with torch instead: {what}"


def _own_kernel(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    if backend == "torch":
        yield "no-kernel", 0, "the candidate defines no CUDA or Triton kernel"
        return
    reached = {id(n) for top in parsed.reachable for n in ast.walk(top)}
    used = {name for name in map(identifier, parsed.host_nodes) if name}
    if backend == "triton":
        if not parsed.jit_functions:
            yield "no-kernel", 0, "the candidate imports triton but defines no kernel"
            return
        called = used | _called_from_kernels(parsed, used)
        for kernel in parsed.jit_functions:
            if kernel.name not in called:
                yield "decoy-kernel", kernel.lineno, f"the kernel {kernel.name} is never launched by ModelNew"
    elif not parsed.extension_names & used and not any(id(c) in reached for c in parsed.extension_calls):
        line = parsed.extension_calls[0].lineno if parsed.extension_calls else 0
        yield "decoy-kernel", line, "the compiled extension is never called by ModelNew"


def _called_from_kernels(parsed: ParsedSource, used: set[str]) -> set[str]:
    """Triton helper functions that a launched kernel calls, directly or through others."""
    called: set[str] = set()
    queue = [k for k in parsed.jit_functions if k.name in used]
    while queue:
        names = {n.id for n in ast.walk(queue.pop()) if isinstance(n, ast.Name)} - called
        called |= names
        queue.extend(k for k in parsed.jit_functions if k.name in names)
    return called


def _imports(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    for node in parsed.nodes:
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        else:
            continue
        for module in modules:
            top = module.split(".")[0]
            if top in SUSPECT_MODULES:
                yield "suspect-import", node.lineno, f"imports {module}"
            elif top in INTROSPECTION_MODULES:
                yield "introspection", node.lineno, f"imports {module}"


def _calls(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    groups = (
        (INTROSPECTION_CALLS, "introspection"),
        (PROCESS_CALLS, "process-control"),
        (DYNAMIC_CALLS, "dynamic-code"),
        (STREAM_CALLS, "side-stream"),
        (GRAPH_CALLS, "cuda-graph"),
    )
    for node in parsed.nodes:
        if isinstance(node, ast.Call):
            path = parsed.dotted(node.func)
            for names, code in groups:
                if path in names:
                    yield code, node.lineno, f"calls {path}"


def _patches(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    own = set(parsed.definitions)
    for node in parsed.nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and parsed.dotted(node.func) == "setattr" and node.args:
            targets = [ast.Attribute(value=node.args[0], attr="?", ctx=ast.Store())]
        for target in targets:
            if not isinstance(target, ast.Attribute):
                continue
            path = parsed.dotted(target)
            owner = path.rsplit(".", 1)[0]
            line = getattr(node, "lineno", 0)
            if owner == "Model" and "Model" not in own:
                yield "patches-reference", line, "changes the reference's class Model"
            elif path.split(".")[0] in PATCHABLE and parsed.from_import(target) and ".backends." not in path:
                yield "patches-library", line, f"replaces {path}"


def _pointer_cache(parsed: ParsedSource, backend: str) -> Iterator[Hit]:
    def is_pointer(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        return (isinstance(node.func, ast.Attribute) and node.func.attr == "data_ptr") or (
            isinstance(node.func, ast.Name) and node.func.id == "id"
        )

    pointers = {
        name.id
        for node in parsed.nodes
        if isinstance(node, ast.Assign) and any(is_pointer(n) for n in ast.walk(node.value))
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for node in parsed.nodes:
        keys: list[ast.AST] = []
        if isinstance(node, ast.Subscript):
            keys = [node.slice]
        elif isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.In, ast.NotIn, ast.Eq)) for op in node.ops):
                keys = [node.left]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            keys = list(node.args[:1])
        for key in keys:
            if any(is_pointer(n) or (isinstance(n, ast.Name) and n.id in pointers) for n in ast.walk(key)):
                yield (
                    "pointer-cache",
                    getattr(node, "lineno", 0),
                    "looks something up by a tensor's address or identity",
                )


#: Every policy-dependent code and the rule that yields it.
RULES: Mapping[str, Rule] = {
    "inherits-reference": _inherits_reference,
    "torch-compute": _torch_compute,
    "torch-fallback": _torch_fallback,
    "vendor-library": _vendor_library,
    "no-kernel": _own_kernel,
    "decoy-kernel": _own_kernel,
    "suspect-import": _imports,
    "introspection": _calls,
    "process-control": _calls,
    "dynamic-code": _calls,
    "side-stream": _calls,
    "cuda-graph": _calls,
    "patches-reference": _patches,
    "patches-library": _patches,
    "pointer-cache": _pointer_cache,
}
