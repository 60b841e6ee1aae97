"""Our own CUDA kernels with inputs and references, run on the emulator in this process (they are trusted)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from kernelward.reward.cuda.emulator import EmulatedModule, Variant
from kernelward.reward.cuda.emulator_build import Toolchain
from kernelward.reward.cuda.frontend import intercepted

KERNELS = Path(__file__).parents[2] / "examples" / "kernels" / "cuda"


@dataclass(frozen=True)
class Case:
    """How to call one of our kernels: `ModelNew(*init)(*inputs())` must equal `reference(model, *inputs)`."""

    init: tuple[Any, ...]
    inputs: Callable[[], list[torch.Tensor]]
    reference: Callable[..., torch.Tensor]


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(6))


def _labels(count: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(7))


def _rms(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(1, keepdim=True) + model.eps).sqrt()


CASES: dict[str, Case] = {
    "relu": Case((), lambda: [_randn(3, 1021)], lambda m, x: x.relu()),
    "matmul": Case((), lambda: [_randn(37, 50), _randn(50, 21)], lambda m, a, b: a @ b),
    "matmul_double_buffer": Case((), lambda: [_randn(37, 50), _randn(50, 21)], lambda m, a, b: a @ b),
    "softmax": Case((), lambda: [_randn(3, 301) * 4], lambda m, x: x.softmax(-1)),
    "sum_dim": Case((1,), lambda: [_randn(3, 45, 7)], lambda m, x: x.sum(1, keepdim=True)),
    "layernorm": Case(
        (301,), lambda: [_randn(3, 301)], lambda m, x: functional.layer_norm(x, (301,), m.norm.weight, m.norm.bias)
    ),
    "histogram": Case((37,), lambda: [_labels(1021, 37)], lambda m, x: torch.bincount(x, minlength=37)),
    "cumsum": Case((1,), lambda: [_randn(3, 301)], lambda m, x: x.cumsum(1)),
    "transpose": Case((), lambda: [_randn(45, 70)], lambda m, x: x.t()),
    "maxpool2d": Case((3, 2, 1), lambda: [-_rand(2, 3, 13, 11)], lambda m, x: functional.max_pool2d(x, 3, 2, 1)),
    "conv2d": Case(
        (3, 4, 3, 1),
        lambda: [_randn(2, 3, 13, 11)],
        lambda m, x: functional.conv2d(x, m.conv.weight, m.conv.bias, padding=1),
    ),
    "linear_gelu_scale": Case(
        (45, 21, 4.0),
        lambda: [_randn(19, 45)],
        lambda m, x: (functional.gelu(m.linear(x)) * m.scale).clamp(-2.0, 2.0),
    ),
    "mse_loss": Case((), lambda: [_randn(3, 301), _randn(3, 301) + 1], lambda m, a, b: (a - b).square().mean()),
    "rmsnorm": Case((21,), lambda: [_randn(2, 21, 5, 7)], _rms),
    "cross_entropy": Case(
        (), lambda: [_randn(19, 45), _labels(19, 45)], lambda m, x, y: functional.cross_entropy(x, y)
    ),
}


def source(name: str) -> str:
    """Text of one of our kernels."""
    return (KERNELS / f"{name}.py").read_text()


class Loaded:
    """A candidate of ours, loaded on the emulator."""

    def __init__(self, text: str, toolchain: Toolchain, directory: Path) -> None:
        self.modules: list[EmulatedModule] = []

        def build(extension: Any) -> EmulatedModule:
            module = EmulatedModule.create(extension, toolchain, directory)
            self.modules.append(module)
            return module

        namespace: dict[str, Any] = {"__name__": "candidate"}
        with intercepted(build):
            exec(compile(text, "candidate.py", "exec"), namespace)
        self.model_class = namespace["ModelNew"]

    def run(self, case: Case, variant: Variant) -> "Outcome":
        """One forward call under a variant."""
        torch.manual_seed(0)
        model = self.model_class(*case.init)
        inputs = case.inputs()
        with torch.no_grad():
            expected = case.reference(model, *inputs)
        for module in self.modules:
            module.configure(variant)
        error = ""
        agrees = False
        try:
            with torch.no_grad():
                result = model(*[x.clone() for x in inputs])
            agrees = result.shape == expected.shape and torch.allclose(
                result.double(), expected.double(), rtol=1e-4, atol=1e-4
            )
        except RuntimeError as failure:
            error = str(failure)
        codes: list[str] = []
        messages: list[str] = []
        for module in self.modules:
            found = module.report()["findings"]
            codes += [f.code for f in found]
            messages += [f.message for f in found]
            module.reset()
        return Outcome(agrees, error, tuple(codes), tuple(messages))


@dataclass(frozen=True)
class Outcome:
    """What one run showed."""

    agrees: bool
    error: str
    codes: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Right values and nothing found."""
        return self.agrees and not self.error and not self.codes


def seen(outcomes: Sequence[Outcome]) -> bool:
    """Whether any run shows that something is wrong."""
    return any(not outcome.clean for outcome in outcomes)


def without(text: str, piece: str, which: int) -> str:
    """`text` with the occurrence number `which` of `piece` replaced by as many spaces."""
    position = -1
    for _ in range(which + 1):
        position = text.index(piece, position + 1)
    return text[:position] + " " * len(piece) + text[position + len(piece) :]


def replaced(text: str, old: str, new: str) -> str:
    """`text` with one piece exchanged; the piece must be there once."""
    assert text.count(old) == 1, (old, text.count(old))
    return text.replace(old, new)


HEAD = "#include <torch/extension.h>\n#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n"


def codes(module: EmulatedModule) -> set[str]:
    return {finding.code for finding in module.report()["findings"]}


def host(kernel: str, launch: str, output: str = "torch::zeros({64}, x.options())", x: str = "float") -> str:
    """A kernel and a function `f(x)` that launches it into `y`."""
    return f"""{kernel}
torch::Tensor f(torch::Tensor x) {{ auto y = {output}; {launch}; return y; }}
""".replace("X_PTR", f"x.data_ptr<{x}>()").replace("Y_PTR", f"y.data_ptr<{x}>()")
