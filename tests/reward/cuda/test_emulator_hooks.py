"""What is called before each access of a kernel: no value of the kernel is lost on the way, no access goes unseen."""

import math
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelward.reward.cuda import emulator_build
from kernelward.reward.cuda.emulator import NAN_POISON, PLAIN_VARIANT, RACE_VARIANT, EmulatedModule, Order, Variant
from kernelward.reward.cuda.emulator_build import Toolchain, _own_hooks
from kernelward.reward.cuda.frontend import ExtensionSource, Flags

HEAD = "#include <torch/extension.h>\n#include <cuda_runtime.h>\n"
SCHEDULES = (*(Variant(order, NAN_POISON, seed=3) for order in Order if order is not Order.TIMED), PLAIN_VARIANT)
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
FUSES, HAS_AVX = " fma " in CPU, " avx2 " in CPU


@pytest.fixture
def own_hooks() -> None:
    if not _own_hooks():
        pytest.skip("this compiler does not let us define the hooks")


def made(cuda: str, toolchain: Toolchain, folder: Path, flags: tuple[str, ...] = ()) -> EmulatedModule:
    source = ExtensionSource("extension", (), (HEAD + cuda,), ("f",), Flags(cuda_cflags=flags), origin="load")
    return EmulatedModule.create(source, toolchain, folder)


FULL = r"""
struct __align__(32) Eight { float v[8]; };
typedef float Wide __attribute__((vector_size(32)));
__global__ void k(const float* x, const Eight* wide, float* y, Eight* copied) {
    __shared__ float tile[64];
    __shared__ unsigned char bytes[64];
    const int t = threadIdx.x, n = 64;
    float a = x[t], b = 2 * a, c = 3 * a, d = 5 * a, e = 7 * a, f = 11 * a, g = 13 * a, h = 17 * a, i = 19 * a;
    double o = 0.5 * a, p = 0.25 * a, q = 0.125 * a, r = a / 3.0, s = a / 5.0, u = a / 7.0, v = a / 11.0, w = a / 13.0;
    long long m1 = t, m2 = 3 * t, m3 = 5 * t, m4 = 7 * t, m5 = 9 * t;
    copied[t] = wide[t];
    tile[t] = a;
    bytes[t] = (unsigned char)t;
    __syncthreads();
    for (int j = 0; j < n; ++j) {
        const float z = tile[(t + j) % n] + bytes[j];
        a += z; b -= z; c += 2 * z; d -= 2 * z; e += 3 * z; f -= 3 * z; g += 4 * z; h -= 4 * z; i += 5 * z;
        o += z; p -= z; q += 2 * z; r -= 2 * z; s += 3 * z; u -= 3 * z; v += 4 * z; w -= 4 * z;
        m1 += (long long)z; m2 -= (long long)z; m3 ^= m1; m4 += m2; m5 ^= m4;
    }
    y[t] = a + b + c + d + e + f + g + h + i;
    y[n + t] = (float)(o + p + q + r + s + u + v + w);
    y[2 * n + t] = (float)((m1 + 2 * m2 + 3 * m3 + 4 * m4 + 5 * m5) % 65536);
    Wide lanes = {a, b, c, d, e, f, g, h};
    for (int j = 0; j < n; ++j) lanes += tile[(t + j) % n];
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += lanes[j] * (j + 1);
    y[3 * n + t] = sum;
}
torch::Tensor f(torch::Tensor x, torch::Tensor wide, torch::Tensor copied) {
    auto y = torch::empty({256}, x.options());
    k<<<1, 64>>>(x.data_ptr<float>(), (const Eight*)wide.data_ptr<float>(), y.data_ptr<float>(),
                 (Eight*)copied.data_ptr<float>());
    return y;
}
"""


def expected(x: torch.Tensor) -> torch.Tensor:
    """What `FULL` computes; every step is exact but the divisions."""
    n, t = 64, torch.arange(64)
    z = torch.stack([x.double()[(t + j) % n] + j for j in range(n)])
    total = z.sum(0)
    x = x.double()
    floats = x * (1 + 2 + 3 + 5 + 7 + 11 + 13 + 17 + 19) + total * (1 - 1 + 2 - 2 + 3 - 3 + 4 - 4 + 5)
    doubles = x * (0.5 + 0.25 + 0.125 + 1 / 3 + 1 / 5 + 1 / 7 + 1 / 11 + 1 / 13)
    whole = []
    for i in range(n):
        m1, m2, m3, m4, m5 = i, 3 * i, 5 * i, 7 * i, 9 * i
        for j in range(n):
            m1, m2 = m1 + int(z[j, i]), m2 - int(z[j, i])
            m3, m4 = m3 ^ m1, m4 + m2
            m5 ^= m4
        whole.append(math.fmod(m1 + 2 * m2 + 3 * m3 + 4 * m4 + 5 * m5, 65536))
    factors = ((1, 1), (2, -1), (3, 2), (5, -2), (7, 3), (11, -3), (13, 4), (17, -4))
    held = torch.stack([x * p + total * q for p, q in factors])
    bare = x[(t + torch.arange(n)[:, None]) % n].sum(0)
    wide = ((held + bare) * torch.arange(1, 9)[:, None]).sum(0)
    return torch.cat([floats, doubles, torch.tensor(whole, dtype=torch.float64), wide])


@pytest.fixture(scope="module")
def full(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    return made(FULL, toolchain, tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize("variant", [*SCHEDULES, RACE_VARIANT], ids=lambda v: "races" if v.races else v.order.name)
def test_what_a_kernel_holds_in_registers_survives_its_accesses(full: EmulatedModule, variant: Variant) -> None:
    x = torch.arange(64, dtype=torch.float32) % 7
    wide = torch.rand(64, 8)
    copied = torch.zeros(64, 8)
    full.configure(variant)
    found = full.f(x, wide, copied)
    torch.testing.assert_close(found.double(), expected(x), rtol=1e-6, atol=0)
    assert torch.equal(copied, wide)
    assert not full.report()["findings"]


def test_a_kernel_without_shared_memory_does_not_hide_what_the_next_one_does(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """Its calls are left out under the timed schedule as well; the first shared array brings them back."""
    cuda = r"""
    __device__ __noinline__ float get(const float* p, int i) { return p[i]; }
    __device__ __noinline__ void put(float* p, int i, float v) { p[i] = v; }
    __global__ void plain(const float* x, float* y) { put(y, threadIdx.x, get(x, threadIdx.x)); }
    __global__ void swapped(const float* x, float* y) {
        __shared__ float tile[32];
        const int t = threadIdx.x;
        put(tile, t, get(x, t));
        put(y, t, get(tile, (t + 1) % 32));  // no barrier, but the lanes of a warp go in step
    }
    torch::Tensor f(torch::Tensor x, bool shared) {
        auto y = torch::zeros_like(x);
        if (shared) swapped<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>());
        else plain<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>());
        return y;
    }
    """
    x = torch.arange(1.0, 33)
    module = made(cuda, toolchain, tmp_path)
    for variant in (PLAIN_VARIANT, Variant(Order.ASCENDING), RACE_VARIANT, PLAIN_VARIANT):
        for _ in range(2):
            module.configure(variant)
            assert torch.equal(module.f(x, False), x)
            in_step = torch.equal(module.f(x, True), x.roll(-1))
            assert in_step == (variant.order is Order.TIMED)
            assert {f.code for f in module.report()["findings"]} == ({"warp-synchronous"} if variant.races else set())


@pytest.mark.parametrize("variable", ["static thread_local int calls = 0;", "static int calls = 0;"])
@pytest.mark.parametrize("again", ["++calls > 1", "(std::call_once(once, [] { calls = -1; }), ++calls > 0)"])
def test_host_code_may_use_variables_of_a_thread(
    variable: str, again: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    cuda = r"""
    #include <iostream>
    #include <mutex>
    #include <stdexcept>
    static std::once_flag once;
    VARIABLE
    __global__ void k(float* x) { x[threadIdx.x] += 1; }
    torch::Tensor f(torch::Tensor x) {
        std::cerr << "";
        try { if (AGAIN) throw std::runtime_error("again"); } catch (const std::exception& e) { x.mul_(2); }
        k<<<1, 4>>>(x.data_ptr<float>());
        return x;
    }
    """
    module = made(cuda.replace("VARIABLE", variable).replace("AGAIN", again), toolchain, tmp_path)
    assert module.f(torch.ones(4)).tolist() == [2.0] * 4
    assert module.f(torch.ones(4)).tolist() == [3.0] * 4


@pytest.mark.usefixtures("own_hooks")
def test_hooks_call_nothing_that_may_use_vector_registers_but_through_one_place(toolchain: Toolchain) -> None:
    done = subprocess.run(
        ["nm", "-u", str(toolchain.folder / "objects" / "accesses.o")], capture_output=True, text=True, check=True
    )
    others = {name for name in done.stdout.replace("U ", "").split() if not name.startswith(("_ZN2kw3emu", "__tsan_"))}
    assert "kw_keeping_vectors" in others
    assert others <= {"kw_keeping_vectors", "_GLOBAL_OFFSET_TABLE_", "__start_kw_builtin", "__stop_kw_builtin"}
    code = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(toolchain.folder / "objects" / "accesses.o")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions: dict[str, list[str]] = {}
    for line in code.split("\n"):
        if line.endswith(">:"):
            functions[line.split("<")[1][:-2]] = []
        elif "%xmm" in line or "%ymm" in line:
            list(functions.values())[-1].append(line)
    assert "kw__tsan_read4" in functions
    assert not [name for name, lines in functions.items() if lines]


@pytest.mark.usefixtures("own_hooks")
@pytest.mark.skipif(not HAS_AVX, reason="this processor has no wide registers")
def test_what_a_hook_calls_keeps_wide_registers_whole(toolchain: Toolchain) -> None:
    """No value was seen to be left in one across an access; the compiler may do so."""
    done = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(toolchain.folder / "objects" / "runtime.o")],
        capture_output=True,
        text=True,
        check=True,
    )
    body = done.stdout.split("<kw_keeping_vectors>:", 1)[1].split("\n\n", 1)[0]
    for kept in range(16):
        assert body.count(f"%ymm{kept},") == 1  # to memory
        assert body.count(f",%ymm{kept}\n") == 1  # and back


@pytest.mark.usefixtures("own_hooks")
def test_a_sum_stays_in_a_register_between_accesses(toolchain: Toolchain, tmp_path: Path) -> None:
    """The reason for it all: with hooks that the compiler knows nothing of, the sum would go through the stack."""
    cuda = r"""
    __global__ void dot(const float* a, const float* b, float* y, int n) {
        float sum = 0;
        for (int i = 0; i < n; ++i) sum += a[i] * b[i];
        *y = sum;
    }
    torch::Tensor f(torch::Tensor a, torch::Tensor b) {
        auto y = torch::zeros({1}, a.options());
        dot<<<1, 1>>>(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), a.numel());
        return y;
    }
    """
    made(cuda, toolchain, tmp_path)
    (library,) = tmp_path.glob("*.so")
    code = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    ).stdout
    body = code.split("<_ZL3dot", 1)[-1] if "<_ZL3dot" in code else code.split("<_Z3dotPKfS0_Pfi>:", 1)[1]
    lines = body.split("\n\n", 1)[0].split("\n")
    assert any("__tsan_read4" in line for line in lines)
    assert not [line for line in lines if "ss " in line and "(%rsp)" in line]


@pytest.mark.skipif(not FUSES, reason="this processor has no fused multiply-add")
def test_products_and_sums_are_fused_as_nvcc_does_and_intrinsics_are_not(toolchain: Toolchain, tmp_path: Path) -> None:
    cuda = r"""
    __global__ void k(const float* x, float* y) {
        y[0] = x[0] * x[0] + x[1];
        y[1] = __fadd_rn(__fmul_rn(x[0], x[0]), x[1]);
        y[2] = __fadd_rn(x[0] * x[0], x[1]);
        y[3] = __fmul_rn(x[0], x[0]) + x[1];
    }
    torch::Tensor f(torch::Tensor x) {
        auto y = torch::zeros({4}, x.options());
        k<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>());
        return y;
    }
    """
    x = torch.tensor([1 + 2.0**-12, -(1 + 2.0**-11)])
    found: Any = made(cuda, toolchain, tmp_path).f(x)
    assert found.tolist() == [2.0**-24, 0.0, 0.0, 0.0]
    found = made(cuda, toolchain, tmp_path, flags=("-O3", "--fmad=false")).f(x)
    assert found.tolist() == [0.0] * 4


@pytest.fixture
def foreign_hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the compiler did not let us define what it calls."""
    monkeypatch.setattr(emulator_build, "_own_hooks", lambda: False)
    emulator_build._fingerprint.cache_clear()
    yield
    emulator_build._fingerprint.cache_clear()


@pytest.mark.usefixtures("foreign_hooks")
def test_a_compiler_that_keeps_its_hooks_builds_what_gives_the_same_answers(tmp_path: Path) -> None:
    module = made(FULL, Toolchain.prepare(tmp_path / "toolchain"), tmp_path)
    x, wide = torch.arange(64, dtype=torch.float32) % 7, torch.rand(64, 8)
    for variant in (*SCHEDULES, RACE_VARIANT):
        copied = torch.zeros(64, 8)
        module.configure(variant)
        torch.testing.assert_close(module.f(x, wide, copied).double(), expected(x), rtol=1e-6, atol=0)
        assert torch.equal(copied, wide)
        assert not module.report()["findings"]


def test_a_word_that_is_put_together_from_bytes_races_with_who_stores_the_bytes(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    cuda = r"""
    __global__ void k(unsigned* y, bool wait) {
        __shared__ alignas(4) unsigned char bytes[64];
        bytes[threadIdx.x] = threadIdx.x + 1;
        if (wait) __syncthreads();
        const unsigned char* p = bytes + (threadIdx.x * 4 + 32) % 64;
        y[threadIdx.x] = p[0] | p[1] << 8 | p[2] << 16 | (unsigned)p[3] << 24;
    }
    torch::Tensor f(torch::Tensor y, bool wait) {
        k<<<1, 64>>>((unsigned*)y.data_ptr<int>(), wait);
        return y;
    }
    """
    module = made(cuda, toolchain, tmp_path)
    for wait, found in ((False, {"race"}), (True, set())):
        module.configure(RACE_VARIANT)
        module.f(torch.zeros(64, dtype=torch.int32), wait)
        assert {f.code for f in module.report()["findings"]} - {"warp-synchronous"} == found


def test_the_hooks_are_ours_where_they_were_seen_to_be() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("defined on x86-64 only")
    version = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if int(version.split(".")[0]) != 12:
        pytest.skip(f"seen with g++ 12, this is {version.strip()}")
    assert _own_hooks()
