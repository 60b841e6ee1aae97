"""Our own kernels are clean under every schedule; with a barrier, a guard or an atomic taken away each is seen."""

import re
from pathlib import Path

import pytest
from emulated import CASES, Loaded, replaced, seen, source, without
from kernelward.reward.cuda.emulator import NAN_POISON, PLAIN_VARIANT, RACE_VARIANT, STRICT_VARIANTS, Order, Variant
from kernelward.reward.cuda.emulator_build import Toolchain

EVERY_ORDER = [Variant(order, NAN_POISON, at_end=bool(order % 2), seed=4) for order in Order]

BARRIERS = [(name, index) for name in CASES for index in range(source(name).count("__syncthreads();"))]
EQUIVALENT_BARRIERS = {("cumsum", 2)}
"""The next chunk writes the other half of the buffer, and a barrier follows before this half is written."""

GUARDS = [
    ("relu", "i < n; i += stride", "i <= n; i += stride"),
    ("relu", "x[i] > 0.0f", "x[i - 1] > 0.0f"),
    ("matmul", "(row < M && a < K)", "(row < M)"),
    ("matmul", "(b < K && col < N)", "(col < N)"),
    ("matmul", "if (row < M && col < N)", "if (row <= M && col < N)"),
    ("matmul", "t < (K + TILE - 1) / TILE", "t < K / TILE"),
    ("matmul_double_buffer", "(row < M && a < K)", "(row < M)"),
    ("softmax", "float sum = 0.0f", "float sum"),
    ("softmax", "threads * sizeof(float)", "(threads - 1) * sizeof(float)"),
    ("sum_dim", "if (warp >= outer * inner) return;", ""),
    ("sum_dim", "int offset = warpSize / 2", "int offset = warpSize / 4"),
    ("layernorm", "lane < (blockDim.x >> 5) ? partial[lane] : 0.0f", "partial[lane]"),
    ("histogram", "local[b] = 0;", ";"),
    ("histogram", "i < n; i += blockDim", "i <= n; i += blockDim"),
    ("cumsum", "start + t < length ? row[start + t] : 0.0f", "row[start + t]"),
    ("cumsum", "if (start + t < length) out", "if (start + t <= length) out"),
    ("transpose", "column < width && row + j < height", "row + j < height"),
    ("transpose", "column < height && row + j < width", "column < height"),
    ("maxpool2d", "float best = -CUDART_INF_F", "float best = 0.0f"),
    ("maxpool2d", "h < 0 || h >= height", "h >= height"),
    ("maxpool2d", "w < 0 || w >= width", "w < 0 || w > width"),
    ("conv2d", "h >= 0 && h < height", "h < height"),
    ("conv2d", "i < taps; i", "i < taps - 1; i"),
    ("linear_gelu_scale", "if (row < rows && col < out)", "if (row < rows && col <= out)"),
    ("mse_loss", "i < n; i +=", "i < n - 1; i +="),
    ("rmsnorm", "if (position >= positions) return;", ""),
    ("cross_entropy", "if (row >= rows) return;", "if (row > rows) return;"),
]

ATOMICS = [
    ("histogram", "atomicAdd(&local[x[i]], 1);", "local[x[i]] += 1;"),
    ("histogram", "atomicAdd(&counts[b], local[b]);", "counts[b] += local[b];"),
    ("mse_loss", "atomicAdd(result, partial[0] * factor);", "*result += partial[0] * factor;"),
]


def test_every_atomic_of_the_kernels_is_among_the_mutants() -> None:
    assert sum(len(re.findall(r"atomic\w+\(", source(name))) for name in CASES) == len(ATOMICS)


@pytest.mark.parametrize("name", CASES)
def test_originals_are_clean_under_every_schedule_and_free_of_races(
    name: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    kernel = Loaded(source(name), toolchain, tmp_path)
    for variant in (PLAIN_VARIANT, *STRICT_VARIANTS, *EVERY_ORDER, RACE_VARIANT):
        outcome = kernel.run(CASES[name], variant)
        assert outcome.clean, (variant, outcome)


@pytest.mark.parametrize(("name", "index"), BARRIERS)
def test_a_removed_barrier_is_seen_by_the_three_schedules(
    name: str, index: int, toolchain: Toolchain, tmp_path: Path
) -> None:
    kernel = Loaded(without(source(name), "__syncthreads();", index), toolchain, tmp_path)
    outcomes = [kernel.run(CASES[name], variant) for variant in STRICT_VARIANTS]
    assert seen(outcomes) != ((name, index) in EQUIVALENT_BARRIERS), outcomes


@pytest.mark.parametrize(("name", "old", "new"), GUARDS)
def test_a_weakened_guard_is_seen(name: str, old: str, new: str, toolchain: Toolchain, tmp_path: Path) -> None:
    kernel = Loaded(replaced(source(name), old, new), toolchain, tmp_path)
    outcomes = [kernel.run(CASES[name], variant) for variant in STRICT_VARIANTS]
    assert seen(outcomes), outcomes


@pytest.mark.parametrize(("name", "old", "new"), ATOMICS)
def test_a_dropped_atomic_is_seen_by_the_race_check_alone(
    name: str, old: str, new: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    kernel = Loaded(replaced(source(name), old, new), toolchain, tmp_path)
    assert not seen([kernel.run(CASES[name], variant) for variant in STRICT_VARIANTS])
    outcome = kernel.run(CASES[name], RACE_VARIANT)
    assert "race" in outcome.codes
