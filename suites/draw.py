"""Draw an entry: the same problem, entry, seed and class of device always give the same inputs."""

import copy
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .entry import Entry
from .errors import InputError
from .generators import find_generator
from .hashing import derive_seed
from .problem import LoadedProblem, Problem, kernelbench_trial_seeds, load_problem
from .static import static_problem
from .traits import inspect_problem

_KERNELBENCH_SEED = 42  # the checker's default seed; the problem's model and constructor arguments use it as it is
_DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class Drawn:
    """One entry's inputs, with what is needed to build the reference for them.

    Attributes:
        inputs: arguments of the forward call, on the judge's device.
        init_inputs: constructor arguments; tensors are on the judge's device.
        loaded: the problem with the entry's constants.
        seed: what the inputs were drawn from; with the entry it replays them exactly.
        model_seed: what the reference's parameters are drawn from.
        dtype: floating-point dtype of inputs and parameters.
        device: where the inputs are.
        parameters_on: where the reference's parameters are drawn.
    """

    inputs: list[Any]
    init_inputs: list[Any]
    loaded: LoadedProblem
    seed: int
    model_seed: int
    dtype: torch.dtype
    device: torch.device
    parameters_on: torch.device

    def build_model(self) -> nn.Module:
        """The reference with this draw's parameters, rounded to the entry's dtype, on the judge's device.

        One draw's reference is built for its truth, for every member of the envelope and for the candidate; large ones
        are kept and copied.
        """

        def build() -> nn.Module:
            make = functools.partial(
                self.loaded.build_model, self.init_inputs, self.model_seed, self.device, self.dtype
            )
            try:
                return make(self.parameters_on)
            except InputError:
                if self.parameters_on.type == "cpu":
                    raise
                return make("cpu")  # a constructor may know no other

        if any(isinstance(v, Tensor) for v in self.init_inputs):
            return build()
        loaded = self.loaded
        constants = tuple(sorted((k, repr(v)) for k, v in loaded.constants.items()))
        places = str(self.device), str(self.parameters_on)
        key = loaded.problem.hash, constants, repr(self.init_inputs), self.model_seed, places, self.dtype
        return _MODELS.get(key, self.device, build)


class _Models:
    """The models built last, within a bound of bytes; whoever asks gets a copy of one that never ran.

    They are kept where they are used: a GPU copies a quarter of a gigabyte in a fraction of a millisecond, and gets it
    from the host in a tenth of a second, some eighty times per entry of the gate. Larger ones wait in host memory, for
    a judge may share its GPU with a trainer.

    Args:
        most_bytes: of those in host memory.
        most_on_gpu: of those on a GPU.
    """

    def __init__(self, most_bytes: int, most_on_gpu: int) -> None:
        self._most = most_bytes
        self._most_on_gpu = most_on_gpu
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[nn.Module, int, bool]] = OrderedDict()

    def get(self, key: Hashable, device: torch.device, build: Callable[[], nn.Module]) -> nn.Module:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is not None:
            return copy.deepcopy(found[0]).to(device)
        model = build()
        size = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
        if not LARGE_MODEL <= size <= self._most:
            return model  # a small one is built faster than it is copied
        try:
            spare = copy.deepcopy(model)
            on_gpu = device.type == "cuda" and size <= self._most_on_gpu
            if not on_gpu:
                spare = spare.to("cpu")
        except (RuntimeError, TypeError, AttributeError):  # what a module may hold cannot always be copied
            return model
        with self._lock:
            self._kept[key] = spare, size, on_gpu
            while self._size(False) > self._most or self._size(True) > self._most_on_gpu:
                self._kept.popitem(last=False)
        return model

    def _size(self, on_gpu: bool) -> int:
        return sum(size for _, size, there in self._kept.values() if there is on_gpu)

    def forget(self) -> None:
        """Keep none."""
        with self._lock:
            self._kept.clear()


LARGE_MODEL = 4 << 20  # bytes of parameters from which a model is kept
KEPT_ON_GPU = 640 << 20  # bytes of models, at most
_MODELS = _Models(2 << 30, KEPT_ON_GPU)


def forget_models() -> None:
    """Give back the memory of the references that are kept to be copied, where it is short."""
    _MODELS.forget()


def entry_dtype(entry: Entry) -> torch.dtype:
    """The torch dtype that an entry names.

    Raises:
        InputError: no floating-point dtype goes by that name.
    """
    if entry.dtype not in _DTYPES:
        raise InputError(f"entry {entry.id}: unknown dtype {entry.dtype!r}; use one of {', '.join(_DTYPES)}")
    return _DTYPES[entry.dtype]


def entry_seeds(entry: Entry, seed: int) -> tuple[int, int]:
    """(seed of the inputs, seed of the parameters) of an entry that is given the secret seed `seed`.

    Under the `kernelbench` policy both come from the fixed stream of its checker and `seed` plays no part. Under the
    `secret` policy they differ, so that weights and inputs are never the same random numbers.
    """
    if entry.seed_policy == "kernelbench":
        return kernelbench_trial_seeds(entry.draw + 1)[entry.draw], _KERNELBENCH_SEED
    if entry.draw:
        seed = derive_seed(b"kernelward draw", seed, entry.draw)
    return seed, derive_seed(b"kernelward model", seed)


def draw_entry(
    problem: Problem,
    entry: Entry,
    seed: int,
    device: str | torch.device = "cpu",
    parameters_on: str | torch.device = "cpu",
) -> Drawn:
    """Draw an entry's inputs and constructor arguments.

    `get_inputs` runs on the judge's device, or on the CPU where the entry says so; then the entry's generator and
    scale are applied, and every floating-point tensor is rounded to the entry's dtype.

    Args:
        problem: the problem.
        entry: the recipe.
        seed: secret seed in [0, 2**63); unused under the `kernelbench` seed policy.
        device: the judge's device.
        parameters_on: where the reference's parameters are drawn. The CPU is what KernelBench's checker uses, and a
            candidate's process: one that makes the same layers under the same seed has the same parameters, also where
            its constructor prepares something from them. It takes a second for 67 million; a GPU needs a millisecond.

    Raises:
        InputError: the problem's code raises, or the entry names an unknown constant, dtype or generator.
        MemoryError: the draw does not fit.
    """
    target = torch.device(device)
    source = torch.device("cpu") if entry.draw_device == "cpu" else target
    dtype = entry_dtype(entry)
    input_seed, model_seed = entry_seeds(entry, seed)
    loaded = load_problem(problem, dict(entry.constants))
    init_inputs = [_place(v, target, dtype) for v in loaded.init_inputs(model_seed, source)]
    generator = find_generator(entry.generator)
    inputs = loaded.own_draw(input_seed, source, entry.skip)
    if generator.transform is not None:
        traits = inspect_problem(problem, constants=dict(entry.constants))
        rng = torch.Generator(source).manual_seed(derive_seed(b"kernelward generator", input_seed, entry.generator))
        inputs = generator.apply(inputs, traits, rng, dict(entry.params))
    else:
        generator.resolve(dict(entry.params))
    inputs = [_place(_scaled(v, entry.scale), target, dtype) for v in inputs]
    return Drawn(inputs, init_inputs, loaded, input_seed, model_seed, dtype, target, torch.device(parameters_on))


def entry_bytes(problem: Problem, entry: Entry) -> int:
    """Bytes of an entry's inputs, outputs, parameters and buffers, without allocating them.

    Raises:
        InputError: the problem's code raises at this entry's shape.
    """
    return static_problem(problem, entry.constants).bytes_as(entry_dtype(entry))


def _scaled(value: Any, factor: float) -> Any:
    """Every floating-point tensor times a factor, also within lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(v, factor) for v in value)
    if factor != 1.0 and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value * factor
    return value


def _place(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Tensors on a device, floating-point ones as `dtype`, also within lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_place(v, device, dtype) for v in value)
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
    return value
