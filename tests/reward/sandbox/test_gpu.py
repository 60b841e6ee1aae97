"""Sessions on a GPU: buffers of the driver, shared by descriptor with a confined child."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from kernelward.reward.sandbox.arena import Arena
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import GIB, Limits
from kernelward.reward.sandbox.session import ChildSession, Zygote

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
SQUARE = OutputSpec((64, 64), torch.float32)
LIMITS = Limits(load_s=60, build_s=60, run_s=60)

TRITON = """
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.where(v > 0, v, 0.0), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        relu[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("torch", "cuda") as made:
        made.report  # noqa: B018 - wait until it is warm
        yield made


@pytest.fixture(scope="module")
def triton_zygote() -> Iterator[Zygote]:
    with Zygote("triton", "cuda") as made:
        made.report  # noqa: B018 - as above
        yield made


def model(body: str) -> str:
    lines = "\n        ".join(body.splitlines())
    return (
        "import ctypes, os, time, torch\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = torch.nn.Linear(64, 64)\n"
        f"    def forward(self, x):\n        {lines}\n"
    )


def loaded(zygote: Zygote, source: str, limits: Limits = LIMITS) -> ChildSession:
    child = zygote.spawn(limits)
    child.load(source)
    child.build([])
    return child


def failure_of(action: Callable[[], object]) -> ChildFailure:
    with pytest.raises(ChildFailure) as caught:
        action()
    return caught.value


def test_isolation_and_cuda_go_together(zygote: Zygote) -> None:
    """What this machine offers is in force beside a working device; the report is printed for the record."""
    print(zygote.report)
    x = torch.randn(64, 64, device=CUDA)
    with loaded(zygote, model("return torch.relu(x) * 1")) as child:
        reply = child.run([x], [SQUARE])
        assert torch.equal(reply.outputs[0], torch.relu(x))
        assert reply.outputs[0].device == CUDA
        assert not reply.inputs_changed
        assert reply.findings == ()


def test_parameters_reach_the_device(zygote: Zygote) -> None:
    reference = torch.nn.Linear(64, 64, device=CUDA)
    state = {f"linear.{name}": value for name, value in reference.state_dict().items()}
    x = torch.randn(64, 64, device=CUDA)
    with zygote.spawn(LIMITS) as child:
        child.load(model("return self.linear(x)"))
        assert child.build([], state).mismatched == ()
        torch.testing.assert_close(child.run([x], [SQUARE]).outputs[0], reference(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_dtypes_and_strides_survive(zygote: Zygote, dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (32, 48), device=CUDA).to(dtype).t()
    with loaded(zygote, model("assert not x.is_contiguous()\nreturn x.clone(), x[:0]")) as child:
        reply = child.run([x], [OutputSpec((48, 32), dtype), OutputSpec((0, 32), dtype)])
    assert torch.equal(reply.outputs[0], x)


def test_changed_inputs_aliases_and_strays_are_found(zygote: Zygote) -> None:
    x = torch.randn(64, 64, device=CUDA)
    with loaded(zygote, model("return x.relu_()")) as child:
        reply = child.run([x], [SQUARE])
        assert reply.inputs_changed
        assert {finding["code"] for finding in reply.findings} == {"output-aliases-input"}
    stray = (
        "class Beside:\n    __cuda_array_interface__ = {'shape': (16,), 'typestr': '|u1', 'version': 3,"
        " 'strides': None, 'data': (x.data_ptr() + x.nbytes, False)}\n"
        "torch.as_tensor(Beside(), device='cuda').zero_()\nreturn x.relu()"
    )
    with loaded(zygote, model(stray)) as child:
        assert {f["code"] for f in child.run([x], [SQUARE]).findings} == {"out-of-bounds-write"}


def test_unwritten_device_memory_holds_the_poison(zygote: Zygote) -> None:
    with loaded(zygote, model("return torch.empty_like(x)")) as child:
        reply = child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE], poison=0xFF)
    assert reply.outputs[0].isnan().any()


def test_work_on_another_stream_is_waited_for(zygote: Zygote) -> None:
    loop = "    y = x + 1\n    for _ in range(200): y = y + 1\n"
    body = f"s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n{loop}return y"
    with loaded(zygote, model(body)) as child:
        assert child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]).outputs[0][0, 0] == 201


def test_an_illegal_access_stays_in_the_child(zygote: Zygote) -> None:
    mine = torch.arange(1000, device=CUDA)
    body = (  # an index checked on the device: the failed assertion spoils the context for good
        "far = torch.full((4,), 1 << 40, device='cuda')\ny = x.flatten()[far]\ntorch.cuda.synchronize()\nreturn x"
    )
    with loaded(zygote, model(body)) as child:
        failure = failure_of(lambda: child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]))
    assert failure.kind == "runtime_error"
    assert failure.reason in ("cuda-error", "abort", "segfault")
    assert torch.equal(mine, torch.arange(1000, device=CUDA))
    with loaded(zygote, model("return x + 1")) as child:
        assert child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]).outputs[0][0, 0] == 1


def test_an_endless_kernel_ends_with_its_process(zygote: Zygote) -> None:
    body = "while True:\n    x = (x @ x).clamp(-1, 1)"
    with loaded(zygote, model(body), Limits(load_s=60, build_s=60, run_s=2)) as child:
        started = time.monotonic()
        failure = failure_of(lambda: child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]))
    assert (failure.kind, failure.phase) == ("timeout", "run")
    assert time.monotonic() - started < 30


def test_too_much_device_memory_is_the_candidates_fault_where_enough_was_free(zygote: Zygote) -> None:
    with loaded(zygote, model("return torch.empty(1 << 42, device='cuda')"), Limits(device_bytes=1 * GIB)) as child:
        failure = failure_of(lambda: child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]))
    assert (failure.kind, failure.reason) == ("runtime_error", "memory-limit")
    with loaded(zygote, model("return torch.empty(1 << 42, device='cuda')"), Limits(device_bytes=1 << 50)) as child:
        failure = failure_of(lambda: child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE]))
    assert (failure.kind, failure.reason) == ("infra_error", "device-memory")


def test_a_timed_batch_on_the_device(zygote: Zygote) -> None:
    batch = [[torch.full((64, 64), float(k), device=CUDA)] for k in range(5)]
    with loaded(zygote, model("return x + 1")) as child:
        reply = child.time(batch, [SQUARE])
    assert [float(o[0][0, 0]) for o in reply.outputs] == [1, 2, 3, 4, 5]
    assert 0 < reply.seconds < 5


def test_device_buffers_give_their_memory_back(zygote: Zygote) -> None:
    def free() -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(CUDA)[0]

    Arena.of_outputs(CUDA, [OutputSpec((1,), torch.float32)]).close()
    before = free()
    arena = Arena.of_outputs(CUDA, [OutputSpec((1 << 28,), torch.float32)])
    assert before - free() >= 1 << 30
    arena.close()
    assert abs(before - free()) < 64 << 20
    with loaded(zygote, model("return x + 1")) as child:
        for _ in range(20):
            child.run([torch.zeros(64, 64, device=CUDA)], [SQUARE])
    assert abs(before - free()) < 1 << 30


def test_triton_compiles_in_the_child(triton_zygote: Zygote) -> None:
    x = torch.randn(64, 64, device=CUDA)
    with loaded(triton_zygote, TRITON) as child:
        reply = child.run([x], [SQUARE])
    assert torch.equal(reply.outputs[0], torch.relu(x))


def test_a_triton_compilation_error_is_a_compile_error(triton_zygote: Zygote) -> None:
    with loaded(triton_zygote, TRITON.replace("tl.where(v > 0, v, 0.0)", "tl.nothing_like_it(v)")) as child:
        failure = failure_of(lambda: child.run([torch.randn(64, 64, device=CUDA)], [SQUARE]))
    assert failure.kind in ("compile_error", "runtime_error")
    assert "nothing_like_it" in failure.message


def test_bf16_is_fine_on_a_device(triton_zygote: Zygote) -> None:
    x = torch.randn(64, 64, device=CUDA, dtype=torch.bfloat16)
    with loaded(triton_zygote, TRITON) as child:
        assert torch.equal(child.run([x], [OutputSpec((64, 64), torch.bfloat16)]).outputs[0], torch.relu(x))
