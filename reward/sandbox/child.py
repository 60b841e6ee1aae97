"""The trusted part of a child: answers load, build, run and time on its channel.

It shares its process with the candidate, so nothing it says is believed: the judge reads bytes. What it uses of torch
is looked up before the candidate runs, so that a candidate which patches torch only misleads itself.
"""

import contextlib
import ctypes
import dataclasses
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .engine import CompileFailure, Engine, LoadContext, describe
from .wire import DTYPES, TensorRef, decode_value, receive_frame, send_frame

REFUSALS = (ValueError, NotImplementedError, RuntimeError, AssertionError, TypeError)
M_PERTURB = -6  # mallopt: fill what malloc hands out, so that unwritten memory is never a lucky zero

_clock = time.perf_counter
_copy = torch.Tensor.copy_
_seed_all = torch.manual_seed
_seed_cpu = torch.default_generator.manual_seed
_no_grad = torch.no_grad


@dataclass
class Faults:
    """Names of what went wrong on the way to outputs; only ever lowers a verdict."""

    reason: str
    message: str
    index: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return {"reason": self.reason, "message": self.message, "index": self.index}


class OutputFaultError(Exception):
    """An output that is not a plain dense tensor on the right device."""

    def __init__(self, reason: str, message: str, index: int) -> None:
        super().__init__(message)
        self.fault = Faults(reason, message, index)

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputFaultError, (self.fault.reason, str(self), self.fault.index)


def flatten(value: Any, out: list[Any], depth: int = 0) -> list[Any]:
    """Outputs in order, out of tuples, lists, dictionaries and dataclasses."""
    if depth > 16:
        raise OutputFaultError("structure", "outputs nested too deep", len(out))
    if isinstance(value, (tuple, list)):
        for item in value:
            flatten(item, out, depth + 1)
    elif isinstance(value, Mapping):
        for item in value.values():
            flatten(item, out, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            flatten(getattr(value, item.name), out, depth + 1)
    else:
        out.append(value)
    return out


def plain(value: Any, index: int, device: torch.device) -> torch.Tensor:
    """The output as an ordinary dense tensor on the device.

    Raises:
        OutputFaultError: it is anything else (a lazy subclass, sparse, meta, nested, on another device).
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise OutputFaultError("type", f"output {index} is a {type(value).__name__}, not a tensor", index)
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        raise OutputFaultError("layout", f"output {index} has layout {value.layout}", index)
    if value.device.type != device.type:
        raise OutputFaultError("device", f"output {index} is on {value.device}, expected {device}", index)
    return value.detach()


class Shared:
    """A judge's buffer as this process maps it, for as long as tensors refer to it."""

    def __init__(self, fd: int, size: int, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            from .gpu_buffers import ImportedBuffer  # in memory since `warm`

            self._device_buffer: Any = ImportedBuffer(fd, size, device)
            self.start = self._device_buffer.pointer
        else:
            self._map = mmap.mmap(fd, size)
            self.start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        os.close(fd)
        self.size = size

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """A tensor on the shared memory; its storage covers exactly its own bytes."""
        dtype = DTYPES[ref.dtype]
        count = ref.nbytes // dtype.itemsize
        if count == 0:
            return torch.empty_strided(ref.shape, ref.stride, dtype=dtype, device=self.device)
        if self.device.type == "cuda":
            flat = self._device_buffer.bytes(ref.offset, ref.nbytes).view(dtype)
        else:
            flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=ref.offset)
        return flat.as_strided(ref.shape, ref.stride)

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory lies in this buffer."""
        return tensor.numel() > 0 and self.start <= tensor.data_ptr() < self.start + self.size

    def close(self) -> None:
        """Unmap. On a GPU the mapping must not be in use any more."""
        if self.device.type == "cuda":
            self._device_buffer.close()


@dataclass
class Child:
    """State of one candidate's process.

    Attributes:
        channel: the stream to the judge.
        engine: how sources are loaded.
        context: its temporary directory and device.
    """

    channel: socket.socket
    engine: Engine
    context: LoadContext
    device: torch.device
    libc: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None))
    factory: Any = None
    model: Any = None
    staged: list[tuple[Any, ...]] = field(default_factory=list)
    compilers: int = 0
    shared: dict[str, Shared] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # frames are sent whole; counts `compilers`

    def serve(self) -> None:
        """Answer requests until the judge closes the channel."""
        operations: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "load": self.load,
            "build": self.build,
            "run": self.run,
            "stage": self.stage,
            "go": self.go,
        }
        send_frame(self.channel, {"id": 0, "ok": True})
        while True:
            try:
                request, fds = receive_frame(self.channel)
            except EOFError:
                return
            try:
                reply = {"id": request["id"], "ok": True} | operations[request["op"]](request, fds)
            except BaseException as error:
                reply = {"id": request["id"], "ok": False, "findings": self.engine.findings()} | failure(error)
            del fds
            with self.lock:
                send_frame(self.channel, reply)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Tell the judge when the first of our compilers begins and when the last has ended."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self.lock:
            before, self.compilers = self.compilers, self.compilers + more
            if (before == 0) != (self.compilers == 0):
                send_frame(self.channel, {"compiling": self.compilers > 0})

    def load(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Import the candidate's source, which arrives in a memfd."""
        with open(fds[0], "rb") as file:
            source = file.read(request["size"]).decode("utf-8", "surrogatepass")
        options = request["options"]
        torch.backends.cuda.matmul.allow_tf32 = options.get("matmul_tf32", False)  # by default as torch has them
        torch.backends.cudnn.allow_tf32 = options.get("cudnn_tf32", True)
        context = dataclasses.replace(self.context, options=options, compiling=self.compiling)
        self.factory = self.engine.load(source, context)
        compiled = getattr(self.engine, "compiled", list)
        return {"engine": self.engine.name, "compiled": compiled()}

    def build(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Construct `ModelNew`, move it, and copy in the reference's parameters where names and shapes match."""
        with self._mapped(request, fds) as (shared,):
            return self._build(request, shared)

    def _build(self, request: dict[str, Any], shared: Shared) -> dict[str, Any]:
        refs = [TensorRef.from_list(r) for r in request["tensors"]]
        arguments = decode_value(request["arguments"], lambda i: shared.tensor(refs[i]).clone(), self.device)
        state = {name: shared.tensor(refs[i]) for name, i in request["state"].items()}
        seed_all(self.device, request["seed"])
        with _no_grad():
            model = self.factory(*arguments)
            notes: dict[str, list[str]] = {}
            if isinstance(model, torch.nn.Module):
                dtype = request["dtype"]
                model = model.to(self.device) if dtype is None else model.to(self.device, DTYPES[dtype])
                notes = load_state(model, state)
        self.model = model
        synchronize(self.device)
        return notes

    def run(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One forward call: inputs from one buffer, outputs copied into the other."""
        with self._mapped(request, fds) as (inputs, outputs):
            try:
                return self._forward(request, inputs, outputs)
            finally:
                self._poison(None, [])

    @contextlib.contextmanager
    def _mapped(self, request: dict[str, Any], fds: list[int]) -> Iterator[list[Shared]]:
        """A call's buffers: mapped now, or since an earlier call; those that are not kept are unmapped at the end."""
        places = request["buffers"]
        fresh = iter(fds)
        for place in places:
            if not place["mapped"]:
                self._unmap(place["slot"])
                self.shared[place["slot"]] = Shared(next(fresh), place["size"], self.device)
        try:
            yield [self.shared[place["slot"]] for place in places]
        finally:
            for place in places:
                if not place["keep"]:
                    self._unmap(place["slot"])

    def _unmap(self, slot: str) -> None:
        shared = self.shared.pop(slot, None)
        if shared is not None:
            with contextlib.suppress(Exception):  # a kernel that runs on would fault, whatever it was
                synchronize(self.device)
            shared.close()

    def stage(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map the buffers of a timed batch. Their inputs are not there yet. It is run plainly."""
        self.engine.configure({})
        inputs = Shared(fds[0], request["sizes"][0], self.device)
        outputs = Shared(fds[1], request["sizes"][1], self.device)
        self.staged = [
            (self._arguments(call, inputs), [outputs.tensor(TensorRef.from_list(o)) for o in call["outputs"]])
            for call in request["calls"]
        ]
        synchronize(self.device)
        return {}

    def go(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the staged batch: every forward, every copy, one synchronisation."""
        seed_all(self.device, request["seed"])
        faults = None
        with _no_grad():
            for arguments, targets in self.staged:
                faults = faults or copy_out(self.model(*arguments), targets, self.device)[1]
        synchronize(self.device)
        self.staged = []
        return {"fault": faults.to_dict() if faults else None}

    def _arguments(self, request: dict[str, Any], inputs: Shared) -> list[Any]:
        refs = [TensorRef.from_list(r) for r in request["tensors"]]
        return decode_value(request["arguments"], lambda i: inputs.tensor(refs[i]), self.device)

    def _forward(self, request: dict[str, Any], inputs: Shared, outputs: Shared) -> dict[str, Any]:
        arguments = self._arguments(request, inputs)
        targets = [outputs.tensor(TensorRef.from_list(o)) for o in request["outputs"]]
        self.engine.configure(request["variant"])
        self._poison(request["poison"], targets)
        seed_all(self.device, request["seed"])
        started = _clock()
        with _no_grad():
            result = self.model(*arguments)
            synchronize(self.device)
        seconds = _clock() - started
        with _no_grad():
            shapes, faults = copy_out(result, targets, self.device, inputs)
        synchronize(self.device)
        return {
            "outputs": shapes,
            "fault": faults.to_dict() if faults else None,
            "findings": self.engine.findings(),
            "seconds": seconds,
        }

    def _poison(self, value: int | None, targets: list[torch.Tensor]) -> None:
        """Make memory that the candidate allocates and never writes hold the byte; None ends it."""
        if self.device.type == "cpu":
            self.libc.mallopt(M_PERTURB, 0 if value is None else (value ^ 0xFF) or 1)
        elif value is not None:
            # The caching allocator hands freed blocks out again, as they are.
            for target in targets:
                torch.empty(target.nbytes, dtype=torch.uint8, device=self.device).fill_(value)


def seed_all(device: torch.device, seed: int) -> None:
    """Seed torch's generators, through the functions as they were before the candidate ran.

    `torch.manual_seed` also keeps two tracebacks for devices that are not there: half of a small forward call's time.
    """
    if device.type == "cuda":
        _seed_all(seed)
    else:
        _seed_cpu(seed)


def synchronize(device: torch.device) -> None:
    """Wait for the device, through the function as it was before the candidate ran."""
    if device.type == "cuda":
        _cuda_synchronize(device)


_cuda_synchronize = torch.cuda.synchronize


def load_state(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, list[str]]:
    """Copy parameters and buffers by name where the shapes agree; say which did not."""
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    mismatched = []
    for name, source in state.items():
        target = own.get(name)
        if target is None:
            continue
        if target.shape == source.shape:
            _copy(target.data, source)
        else:
            mismatched.append(name)
    bound = 64
    return {
        "missing": sorted(set(state) - set(own))[:bound],
        "unexpected": sorted(set(own) - set(state))[:bound],
        "mismatched": sorted(mismatched)[:bound],
    }


def copy_out(
    result: Any, targets: list[torch.Tensor], device: torch.device, inputs: Shared | None = None
) -> tuple[list[dict[str, Any]], Faults | None]:
    """Copy a candidate's outputs into the judge's buffer where they have the expected form; describe them all."""
    shapes: list[dict[str, Any]] = []
    try:
        values = flatten(result, [])
        tensors = [plain(value, index, device) for index, value in enumerate(values[:64])]
    except OutputFaultError as error:
        return shapes, error.fault
    if len(values) != len(targets):
        return shapes, Faults("count", f"{len(values)} outputs, expected {len(targets)}")
    fault = None
    for index, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
        shapes.append(
            {
                "shape": list(tensor.shape)[:32],
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "aliases_input": inputs is not None and inputs.contains(tensor),
            }
        )
        if tensor.shape != target.shape:
            fault = fault or Faults(
                "shape", f"output {index} has shape {list(tensor.shape)}, expected {list(target.shape)}", index
            )
        elif tensor.dtype != target.dtype:
            fault = fault or Faults("dtype", f"output {index} has dtype {tensor.dtype}, expected {target.dtype}", index)
        else:
            _copy(target, tensor)
    return shapes, fault


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as the judge wants to hear of it: a reason, a text, the type's name."""
    name = type(error).__name__
    if isinstance(error, CompileFailure):
        return {"reason": error.reason, "message": str(error), "exception": error.exception}
    if isinstance(error, OutputFaultError):
        return {"reason": error.fault.reason, "message": error.fault.message, "exception": None}
    if isinstance(error, SystemExit):
        reason = "exited"
    elif out_of_device_memory(error):
        reason = "device-memory"
    elif isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in text_of(error):
        reason = "memory-limit"
    elif "CUDA error" in text_of(error):
        reason = "cuda-error"
    elif type(error).__module__.startswith("triton.compiler"):
        reason = "compile"
    elif isinstance(error, REFUSALS):
        reason = "refused"
    else:
        reason = "exception"
    return {"reason": reason, "message": describe(error), "exception": name[:100]}


def out_of_device_memory(error: BaseException) -> bool:
    """Whether an allocation on the GPU failed: torch's own error, the driver's, or torch failing to describe it (it
    asks the management library, which the sandbox does not offer). The judge looks for itself whether it can be so."""
    text = text_of(error)
    refused = "CUDA error: out of memory" in text or ("nvmlInit" in text and "CUDACachingAllocator" in text)
    return isinstance(error, torch.OutOfMemoryError) or refused


def text_of(error: BaseException) -> str:
    """The exception's text, or nothing where its `__str__` is broken."""
    with contextlib.suppress(BaseException):  # it is the candidate's code
        return str(error)
    return ""


def warm(device: str) -> None:
    """In the zygote: imports and settings that forks inherit. Must not touch CUDA."""
    if device.startswith("cuda"):
        from . import gpu_buffers  # noqa: F401 - the candidate's process cannot read our files any more
    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):  # may be set once only
        torch.set_num_interop_threads(1)
    # What torch sets up at first use is set up here once, not in every child (measured: 7 of 12 ms of a build).
    seed_all(torch.device(device), 0)
    with _no_grad(), mmap.mmap(-1, mmap.PAGESIZE) as memory:
        shared = torch.frombuffer(memory, dtype=torch.float32)[:4].reshape(2, 2)
        layer = torch.nn.Linear(2, 2).to("cpu", torch.float32)
        layer.weight.data.copy_(shared)
        shared.copy_(torch.relu(layer(shared)) + torch.rand(2, 2).softmax(-1).sum())
        del shared


def open_device(device: str) -> None:
    """Before the candidate is loaded: a CUDA context, so that a broken GPU is never blamed on the candidate."""
    if device.startswith("cuda"):
        torch.cuda.init()
        torch.empty(1, device=device)
        torch.cuda.synchronize()


def main(channel: socket.socket, engine: Engine, directory: Path, device: str) -> None:
    """Serve one candidate; returns when the judge closes the channel."""
    torch_device = torch.device(device)
    Child(channel, engine, LoadContext(directory, device), torch_device).serve()
