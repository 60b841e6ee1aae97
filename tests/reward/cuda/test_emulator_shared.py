"""The emulator's shared memory: its limits, what is seen beside an array, and what memory that nobody wrote holds."""

from typing import Any

import pytest
import torch
from emulated import codes, host
from kernelward.reward.cuda.emulator import PLAIN_VARIANT, RACE_VARIANT, STRICT_VARIANTS, CudaError


def test_dynamic_shared_memory_needs_the_opt_in_beyond_48_kib(build: Any) -> None:
    module = build("""
__global__ void k(float* y) {
    extern __shared__ float s[];
    s[threadIdx.x + 12000] = 1;
    __syncthreads();
    y[threadIdx.x] = s[12000];
}
int64_t f(torch::Tensor y, bool opt) {
    if (opt) cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
    k<<<1, 4, 60000>>>(y.data_ptr<float>());
    return cudaGetLastError();
}""")
    y = torch.zeros(4)
    assert module.f(y, False) == 1
    assert module.f(y, True) == 0
    assert torch.equal(y, torch.ones(4))


def test_more_than_48_kib_of_static_shared_memory_is_refused(build: Any) -> None:
    module = build(
        host(
            "__global__ void k(float* y) { __shared__ float s[12289]; s[threadIdx.x] = 1; y[0] = s[0]; }",
            "k<<<1, 4>>>(Y_PTR)",
        )
    )
    with pytest.raises(CudaError):
        module.f(torch.ones(1))
    assert codes(module) == {"shared-memory-limit"}
    module.reset()


SHARED_OVERRUN = """
template <int N> __device__ void fill(float* y) {
    __shared__ float first[N], second[N];
    first[threadIdx.x] = 1; second[threadIdx.x] = 2;
    if (threadIdx.x == 0) first[N] = 7;
    __syncthreads();
    y[threadIdx.x] = first[threadIdx.x];
}
__global__ void k(float* y) { fill<64>(y); }"""


def test_a_write_past_shared_arrays_is_found(build: Any) -> None:
    module = build(host(SHARED_OVERRUN.replace("first[N] = 7", "second[N] = 7"), "k<<<1, 64>>>(Y_PTR)"))
    module.configure(STRICT_VARIANTS[0])
    module.f(torch.ones(1))
    assert codes(module) == {"shared-out-of-bounds"}


@pytest.mark.parametrize("scope", ["block", "namespace"])
@pytest.mark.parametrize("store", ["at[i] = 3", "atomicExch(&at[i], 3.0f)"], ids=["plain", "atomic"])
def test_whoever_overruns_a_shared_array_by_kilobytes_overwrites_nothing_else(
    build: Any, scope: str, store: str
) -> None:
    """Another variable of the candidate's, the runtime's own state and torch's functions are what they were."""
    shared = "__shared__ float tile[256];"
    outside, inside = (shared, "") if scope == "namespace" else ("", shared)
    kernel = f"""
static float before[4] = {{5, 5, 5, 5}};
{outside}
static float after[4] = {{7, 7, 7, 7}};
__global__ void k(const float* x, float* y) {{
    {inside}
    float* volatile moved = tile;  // gcc takes the index into an array for one of its elements
    float* at = moved + (int)x[0];
    for (int i = threadIdx.x; i < 256; i += 64) {store};
    __syncthreads();
    y[threadIdx.x] = at[threadIdx.x];
}}
torch::Tensor g(torch::Tensor x) {{
    auto y = torch::empty_like(x);
    for (int i = 0; i < 4; i++) y.data_ptr<float>()[i] = before[i] + after[i];
    return y;
}}"""
    module = build(host(kernel, "k<<<2, 64>>>(X_PTR, Y_PTR)", "torch::empty({64}, x.options())"), ("f", "g"))
    for variant in (PLAIN_VARIANT, STRICT_VARIANTS[0], RACE_VARIANT):
        for first in (-2048, -300, -8, 8, 300, 2048):
            module.configure(variant)
            module.f(torch.tensor([float(first)]))
            # the schedules see the guard zones alone
            seen = variant == RACE_VARIANT or (variant != PLAIN_VARIANT and abs(first) == 8)
            assert codes(module) - {"race"} == ({"shared-out-of-bounds"} if seen else set()), (variant, first)
            module.configure(variant)
            assert torch.equal(module.g(torch.ones(4)), torch.full((4,), 12.0)), (variant, first)
            assert torch.equal(module.f(torch.zeros(1)), torch.full((64,), 3.0))
            assert not codes(module)


@pytest.mark.parametrize("alignment", [16, 64, 128, 1024])
@pytest.mark.parametrize("scope", ["block", "namespace"])
def test_an_aligned_shared_array_may_have_all_48_kib_and_is_guarded_on_both_sides(
    build: Any, alignment: int, scope: str
) -> None:
    shared = f"alignas({alignment}) __shared__ float tile[12288];"
    outside, inside = (shared, "") if scope == "namespace" else ("", shared)
    kernel = f"""{outside}
__global__ void k(const float* x, float* y) {{
    {inside}
    float* volatile moved = tile;
    for (int i = threadIdx.x; i < 12288; i += 64) tile[i] = (float)((size_t)moved % {alignment});
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
    if (threadIdx.x == 0) moved[(int)x[0]] = 7;
}}"""
    module = build(host(kernel, "k<<<1, 64>>>(X_PTR, Y_PTR)"))
    for variant in (PLAIN_VARIANT, STRICT_VARIANTS[0], RACE_VARIANT):
        for at, found in (
            (0, set()),
            (12287, set()),
            (-1, {"shared-out-of-bounds"}),
            (12288, {"shared-out-of-bounds"}),
        ):
            module.configure(variant)
            assert torch.equal(module.f(torch.tensor([float(at)])), torch.zeros(64))
            assert codes(module) - {"race"} == (found if variant != PLAIN_VARIANT else set()), (variant, at)


def test_who_reads_beside_a_shared_array_reads_no_number(build: Any) -> None:
    kernel = """__global__ void k(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 1;
    __syncthreads();
    float* volatile moved = tile;
    y[threadIdx.x] = moved[threadIdx.x + (int)x[0]];
}"""
    module = build(host(kernel, "k<<<1, 64>>>(X_PTR, Y_PTR)"))
    module.configure(STRICT_VARIANTS[0])
    assert int(module.f(torch.tensor([1.0])).isnan().sum()) == 1
    module.configure(STRICT_VARIANTS[0])
    assert not module.f(torch.tensor([0.0])).isnan().any()


def test_unwritten_shared_memory_and_outputs_are_poison(build: Any) -> None:
    kernel = """__global__ void k(float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t) s[t] = 0;
    __syncthreads();
    if (t != 1) y[t] = s[t];
}"""
    module = build(host(kernel, "k<<<1, 64>>>(Y_PTR)", "torch::empty({64}, x.options())"))
    module.configure(STRICT_VARIANTS[1])
    y = module.f(torch.ones(1))
    assert y[:2].isnan().all()
    assert torch.equal(y[2:], torch.zeros(62))


@pytest.mark.parametrize(
    ("declared", "used"),
    [
        ("float v; if (t == 0) v = 0;", "v"),
        ("float v, w; if (t == 0) v = w = 0; else w = 1;", "v + 0 * w"),
        ("double v; switch (t) { case 0: v = 0; }", "(float)v"),
        ("int v; for (int i = 0; i < t - 62; i++) v = 0;", "v"),
        ("float v[2]; if (t == 0) v[0] = 0;", "v[0]"),
        ("struct P { float m; int i; } p; if (t == 0) p.m = 0;", "p.m"),
        ("auto g = [&] { float v; if (t == 0) v = 0; return v; };", "g()"),
    ],
)
def test_a_local_that_only_some_path_sets_is_poison_on_the_others(build: Any, declared: str, used: str) -> None:
    kernel = f"__global__ void k(float* y) {{ int t = threadIdx.x; {declared} y[t] = {used}; }}"
    module = build(host(kernel, "k<<<1, 64>>>(Y_PTR)"))
    for variant in (PLAIN_VARIANT, *STRICT_VARIANTS):
        module.configure(variant)
        y = module.f(torch.ones(1))
        right = (y == 0).nonzero().flatten().tolist()
        assert right == ([63] if "62" in declared else [0]), variant
