"""The judge's side of a child: what works, how failures are told, and that nothing is left."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import pytest
import torch
from kernelward.reward.sandbox.buffers import OutputSpec
from kernelward.reward.sandbox.failure import ChildFailure
from kernelward.reward.sandbox.limits import MIB, Limits
from kernelward.reward.sandbox.session import ChildSession, Zygote

LINEAR = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, n, bias=True):
        super().__init__()
        self.linear = torch.nn.Linear(n, n, bias=bias)
        self.register_buffer("scale", torch.ones(n))

    def forward(self, x):
        return self.linear(x) * self.scale
"""
SQUARE = OutputSpec((4, 4), torch.float32)


def model(body: str, init: str = "pass") -> str:
    """A candidate with this forward(self, *xs), one statement a line."""
    lines = "\n        ".join(body.splitlines())
    return (
        "import os, sys, time, torch\n"
        "class ModelNew(torch.nn.Module):\n"
        f"    def __init__(self, *args):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, *xs):\n        x = xs[0]\n        {lines}\n"
    )


def loaded(zygote: Zygote, source: str, *init: object, limits: Limits | None = None) -> ChildSession:
    child = zygote.spawn(limits)
    child.load(source)
    child.build(list(init))
    return child


def failure_of(action: Callable[[], object]) -> ChildFailure:
    with pytest.raises(ChildFailure) as caught:
        action()
    return caught.value


# -- what works --------------------------------------------------------------------------------------------------------


def test_parameters_of_the_reference_are_copied_in(zygote: Zygote) -> None:
    reference = torch.nn.Linear(4, 4)
    state = {f"linear.{name}": value for name, value in reference.state_dict().items()} | {
        "scale": torch.full((4,), 2.0)
    }
    x = torch.randn(4, 4)
    with zygote.spawn() as child:
        assert child.load(LINEAR).engine == "torch"
        built = child.build([4], state)
        reply = child.run([x], [SQUARE])
    assert (built.missing, built.unexpected, built.mismatched) == ((), (), ())
    assert torch.equal(reply.outputs[0], reference(x) * 2)
    assert not reply.inputs_changed
    assert reply.findings == ()
    assert reply.seconds > 0


def test_parameters_that_do_not_match_are_named_not_refused(zygote: Zygote) -> None:
    with zygote.spawn() as child:
        child.load(LINEAR)
        built = child.build([4, False], {"linear.weight": torch.ones(4, 5), "gone": torch.ones(1)})
    assert built.missing == ("gone",)
    assert built.unexpected == ("scale",)
    assert built.mismatched == ("linear.weight",)


def test_construction_is_seeded_like_the_reference(zygote: Zygote) -> None:
    torch.manual_seed(7)
    reference = torch.nn.Linear(4, 4)
    x = torch.randn(4, 4)
    with zygote.spawn() as child:
        child.load(LINEAR)
        child.build([4], {}, seed=7)
        assert torch.equal(child.run([x], [SQUARE]).outputs[0], reference(x))


def test_the_forward_call_is_seeded(zygote: Zygote) -> None:
    with loaded(zygote, model("return torch.rand_like(x)")) as child:
        first, again, other = (child.run([torch.ones(4, 4)], [SQUARE], seed=s).outputs[0] for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dtype_applies_to_floating_parameters(zygote: Zygote) -> None:
    with zygote.spawn() as child:
        child.load(LINEAR)
        child.build([4], {"linear.weight": torch.ones(4, 4)}, dtype=torch.float16)
        reply = child.run([torch.ones(4, 4, dtype=torch.float16)], [OutputSpec((4, 4), torch.float16)])
    assert reply.outputs[0].dtype == torch.float16


def test_inputs_of_every_kind_arrive(zygote: Zygote) -> None:
    source = model(
        "a, n, pair, table, flag = xs\n"
        "assert type(n) is int and type(pair) is tuple and type(table) is dict and flag is None\n"
        "return a * n + table['b'], a.sum() > 0, pair[1]"
    )
    inputs = [torch.ones(2, 3).t(), 3, (1.5, torch.arange(4)), {"b": torch.zeros(3, 2)}, None]
    outputs = [OutputSpec((3, 2), torch.float32), OutputSpec((), torch.bool), OutputSpec((4,), torch.int64)]
    with loaded(zygote, source) as child:
        reply = child.run(inputs, outputs)
    assert torch.equal(reply.outputs[0], torch.full((3, 2), 3.0))
    assert reply.outputs[1].dtype == torch.bool
    assert bool(reply.outputs[1])
    assert torch.equal(reply.outputs[2], torch.arange(4))


def test_dictionaries_and_dataclasses_are_flattened_in_order(zygote: Zygote) -> None:
    source = "import dataclasses\n@dataclasses.dataclass\nclass Pair:\n    a: object\n    b: object\n" + model(
        "return {'first': x, 'rest': [x + 1, Pair(x + 2, (x + 3,))]}"
    )
    with loaded(zygote, source) as child:
        reply = child.run([torch.zeros(2)], [OutputSpec((2,), torch.float32)] * 4)
    assert [float(o[0]) for o in reply.outputs] == [0, 1, 2, 3]
    assert {f["code"] for f in reply.findings} == {"output-aliases-input"}


def test_empty_outputs_are_outputs(zygote: Zygote) -> None:
    with loaded(zygote, model("return x[:0], x[..., :0]")) as child:
        reply = child.run([torch.ones(2, 3)], [OutputSpec((0, 3), torch.float32), OutputSpec((2, 0), torch.float32)])
    assert [o.shape for o in reply.outputs] == [(0, 3), (2, 0)]


def test_unwritten_memory_holds_the_poison_not_zeros(zygote: Zygote) -> None:
    with loaded(zygote, model("return torch.empty(4, 4)")) as child:
        for poison in (0xFF, 0x7F):
            reply = child.run([torch.ones(1)], [SQUARE], poison=poison)
            assert (reply.outputs[0].flatten()[4:] != 0).all()  # malloc's own links are in the first 16 bytes


def test_freed_memory_of_an_earlier_run_is_poisoned(zygote: Zygote) -> None:
    source = model("if x.sum() > 0:\n    torch.full((4, 4), 9.0)\n    return x\nreturn torch.empty(4, 4)")
    with loaded(zygote, source) as child:
        child.run([torch.ones(4, 4)], [SQUARE])
        assert not (child.run([torch.zeros(4, 4)], [SQUARE]).outputs[0] == 9).any()


def test_calls_of_one_size_share_their_buffers_and_nothing_in_them(zygote: Zygote) -> None:
    body = "self.at = getattr(self, 'at', []) + [x.data_ptr()]\nprint(len(set(self.at)))\nreturn x + 1"
    with loaded(zygote, model(body)) as child:
        for value in (1.0, 2.0, 3.0):
            reply = child.run([torch.full((4, 4), value)], [SQUARE])
            assert (reply.outputs[0] == value + 1).all()
            assert not reply.inputs_changed
        assert child.output().split() == ["1", "1", "1"]
        wide = OutputSpec((4, 4096), torch.float32)
        assert (child.run([torch.zeros(4, 4096)], [wide]).outputs[0] == 1).all()
        assert (child.run([torch.zeros(4, 4)], [SQUARE]).outputs[0] == 1).all()


def test_a_failed_call_leaves_the_next_one_whole(zygote: Zygote) -> None:
    with loaded(zygote, model("if x[0, 0] == 2: raise ValueError\nreturn x + 1")) as child:
        for value in (1.0, 2.0, 3.0, 2.0, 1.0):
            x = torch.full((4, 4), value)
            if value == 2:
                assert failure_of(lambda x=x: child.run([x], [SQUARE])).reason == "refused"
            else:
                assert (child.run([x], [SQUARE]).outputs[0] == value + 1).all()


def test_what_an_earlier_call_keeps_of_its_inputs_is_no_answer_to_a_later_one(zygote: Zygote) -> None:
    with loaded(zygote, model("self.x = getattr(self, 'x', x)\nreturn self.x + 1")) as child:
        assert (child.run([torch.zeros(4, 4)], [SQUARE]).outputs[0] == 1).all()
        assert not (child.run([torch.ones(4, 4)], [SQUARE], moved=True).outputs[0] == 2).any()
        assert (child.run([torch.full((4, 4), 2.0)], [SQUARE]).outputs[0] == 3).all()  # where the first one lay


def test_a_timed_batch_returns_every_output(zygote: Zygote) -> None:
    batch = [[torch.full((4, 4), float(k))] for k in range(5)]
    with loaded(zygote, model("time.sleep(0.02)\nreturn x + 1")) as child:
        reply = child.time(batch, [SQUARE])
        assert child.run(batch[3], [SQUARE]).outputs[0][0, 0] == 4
    assert [float(o[0][0, 0]) for o in reply.outputs] == [1, 2, 3, 4, 5]
    assert 0.1 < reply.seconds < 5


def test_a_timed_batch_cannot_start_before_the_clock(zygote: Zygote) -> None:
    """A thread that computes as soon as the buffers are mapped sees poison."""
    source = model("return self.early if hasattr(self, 'early') else x + 1") + (
        "import threading, gc\n"
        "def peek():\n"
        "    while True:\n"
        "        for t in gc.get_objects():\n"
        "            if type(t) is torch.Tensor and t.shape == (4, 4) and 'model' in globals():\n"
        "                model.early = t + 1\n"
        "                return\n"
    )
    with loaded(zygote, source) as child:
        reply = child.time([[torch.ones(4, 4)]], [SQUARE])
    assert torch.equal(reply.outputs[0][0], torch.full((4, 4), 2.0))


def test_a_failure_while_timed_is_told(zygote: Zygote) -> None:
    with loaded(zygote, model("raise ValueError('no')")) as child:
        failure = failure_of(lambda: child.time([[torch.ones(4, 4)]], [SQUARE]))
    assert (failure.kind, failure.reason, failure.phase) == ("runtime_error", "refused", "time")


def test_output_is_kept_at_both_ends(zygote: Zygote) -> None:
    with loaded(zygote, model("print('first')\nprint('x' * 100_000)\nprint('last')\nreturn x")) as child:
        child.run([torch.ones(4, 4)], [SQUARE])
        output = child.output()
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n")
    assert "bytes dropped" in output
    assert len(output) < 20_000


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason", "told"),
    [
        ("def f(:", "syntax", "line 1"),
        ("x = '\0'", "syntax", "null"),
        ("import torch", "no-modelnew", "ModelNew"),
        ("ModelNew = 3", "no-modelnew", "ModelNew"),
        ("import torch\n1 / 0\n", "exception", "ZeroDivisionError: division by zero (candidate line 2)"),
        ("import nothing_like_it", "exception", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "exited", "SystemExit"),
        ("raise KeyboardInterrupt", "exception", "KeyboardInterrupt"),
        ("(" * 5000 + ")" * 5000, "syntax", "Error"),
        ("x = '\ud800'", "syntax", "Error"),
    ],
)
def test_a_source_that_does_not_load_is_a_compile_error(zygote: Zygote, source: str, reason: str, told: str) -> None:
    with zygote.spawn() as child:
        failure = failure_of(lambda: child.load(source))
        assert (failure.kind, failure.reason, failure.phase, failure.alive) == ("compile_error", reason, "load", True)
        assert told in failure.message
        child.load(LINEAR)  # the child can still be used


@pytest.mark.parametrize(
    ("body", "reason", "exception"),
    [
        ("raise ValueError('only multiples of 128')", "refused", "ValueError"),
        ("raise NotImplementedError", "refused", "NotImplementedError"),
        ("assert x.shape[0] % 128 == 0, 'tail'", "refused", "AssertionError"),
        ("return x @ torch.ones(7, 7)", "refused", "RuntimeError"),
        ("raise KeyError('x')", "exception", "KeyError"),
        ("return 1 / 0", "exception", "ZeroDivisionError"),
        ("sys.exit(3)", "exited", "SystemExit"),
        ("raise MemoryError", "memory-limit", "MemoryError"),
    ],
)
def test_an_exception_in_forward_is_told_and_survived(zygote: Zygote, body: str, reason: str, exception: str) -> None:
    with loaded(zygote, model(f"if x.sum() == 0: return x + 0\nprint('seen')\n{body}")) as child:
        failure = failure_of(lambda: child.run([torch.ones(4, 4)], [SQUARE]))
        assert (failure.kind, failure.reason, failure.exception) == ("runtime_error", reason, exception)
        assert failure.phase == "run"
        assert failure.output == "seen\n"
        assert child.run([torch.zeros(4, 4)], [SQUARE]).outputs[0].sum() == 0


def test_an_exception_in_the_constructor_is_of_phase_build(zygote: Zygote) -> None:
    with zygote.spawn() as child:
        child.load(model("return x", init="raise RuntimeError('needs a GPU')"))
        failure = failure_of(lambda: child.build([]))
    assert (failure.kind, failure.reason, failure.phase) == ("runtime_error", "refused", "build")
    assert "needs a GPU (candidate line 5)" in failure.message


def test_too_large_an_allocation_is_the_memory_limit(zygote: Zygote) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    with loaded(zygote, model("return torch.ones(1 << 30)"), limits=limits) as child:
        failure = failure_of(lambda: child.run([torch.ones(4, 4)], [SQUARE]))
    assert (failure.kind, failure.reason) == ("runtime_error", "memory-limit")


def test_large_buffers_of_the_judge_do_not_count_as_the_candidates_memory(zygote: Zygote) -> None:
    x = torch.ones(48 << 20)  # 192 MiB
    with loaded(
        zygote, model("x.sum()\ntime.sleep(0.1)\nreturn x[:1] + 1"), limits=Limits(memory_bytes=128 * MIB)
    ) as child:
        assert child.run([x], [OutputSpec((1,), torch.float32)]).outputs[0] == 2


def test_the_deadline_holds_for_each_phase(zygote: Zygote) -> None:
    for phase, limits in (("load", Limits(load_s=0.3)), ("build", Limits(build_s=0.3)), ("run", Limits(run_s=0.3))):
        source = {
            "load": "while True: pass",
            "build": model("return x", init="while True: pass"),
            "run": model("while True: pass"),
        }[phase]
        with zygote.spawn(limits) as child:
            started = time.monotonic()
            if phase == "load":
                failure = failure_of(lambda: child.load(source))  # noqa: B023
            else:
                child.load(source)
                if phase == "run":
                    child.build([])
                ask = {"build": lambda: child.build([]), "run": lambda: child.run([torch.ones(1)], [SQUARE])}
                failure = failure_of(ask[phase])
            assert (failure.kind, failure.phase, failure.alive) == ("timeout", phase, False)
            assert not child.alive
            assert time.monotonic() - started < 5


def test_a_dead_session_says_so(zygote: Zygote) -> None:
    child = loaded(zygote, model("os._exit(3)"))
    failure = failure_of(lambda: child.run([torch.ones(1)], [SQUARE]))
    assert (failure.reason, failure.alive) == ("exited", False)
    assert failure_of(lambda: child.run([torch.ones(1)], [SQUARE])).kind == "infra_error"
    child.close()


@pytest.mark.parametrize("value", [object(), torch.ones(2).to_sparse()])
def test_a_value_that_cannot_be_sent_is_our_fault(zygote: Zygote, value: object) -> None:
    with loaded(zygote, model("return x")) as child:
        failure = failure_of(lambda: child.run([value], [SQUARE]))
        assert (failure.kind, failure.reason, failure.alive) == ("infra_error", "unsupported-value", True)


def test_a_half_written_bool_is_never_true(zygote: Zygote) -> None:
    lie = (
        "import kernelward.reward.sandbox.child as c\n"
        "c.copy_out = lambda r, t, d, i=None: ([{'shape': [4], 'dtype': 'bool', 'aliases_input': False}], None)\n"
    )
    with loaded(zygote, lie + model("return x > 0")) as child:
        failure = failure_of(lambda: child.run([torch.ones(4)], [OutputSpec((4,), torch.bool)]))
    assert (failure.kind, failure.reason) == ("incorrect", "unwritten")


# -- processes ---------------------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for each in found:
        try:
            with open(f"/proc/{each}/task/{each}/children") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found


def test_two_hundred_candidates_leave_no_process_and_no_descriptor(zygote: Zygote) -> None:
    source = "class ModelNew:\n    def __call__(self, x):\n        return x + 1\n"

    def once(k: int) -> None:
        with zygote.spawn() as child:
            if k % 3 == 0:
                failure_of(lambda: child.load("import os; os._exit(1)"))
            elif k % 3 == 1:
                child.load(source)
            else:
                child.load(source)
                child.build([])
                assert child.run([torch.ones(2)], [OutputSpec((2,), torch.float32)]).outputs[0][0] == 2

    once(2)
    served = tree(zygote.pid)[1]
    before = open_files(), len(os.listdir(f"/proc/{served}/fd"))
    for k in range(200):
        once(k)
    deadline = time.monotonic() + 30
    while len(tree(zygote.pid)) > 2 and time.monotonic() < deadline:  # the process that waits and the one that serves
        time.sleep(0.02)
    assert len(tree(zygote.pid)) <= 2
    assert (open_files(), len(os.listdir(f"/proc/{served}/fd"))) == before


def test_threads_share_a_zygote(zygote: Zygote) -> None:
    results: list[float] = []

    def work(k: int) -> None:
        with loaded(zygote, model(f"return x + {k}")) as child:
            results.append(float(child.run([torch.zeros(1)], [OutputSpec((1,), torch.float32)]).outputs[0]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_a_hanging_candidate_does_not_delay_another(zygote: Zygote) -> None:
    hanging = loaded(zygote, model("while True: pass"), limits=Limits(run_s=3))
    thread = threading.Thread(target=lambda: failure_of(lambda: hanging.run([torch.ones(1)], [SQUARE])))
    thread.start()
    with loaded(zygote, model("return x")) as child:
        child.run([torch.ones(4, 4)], [SQUARE])
    assert thread.is_alive()
    hanging_gone = time.monotonic()
    thread.join()
    assert time.monotonic() - hanging_gone < 10


def test_a_zygote_that_dies_is_replaced_and_its_candidates_are_not_blamed() -> None:
    with Zygote("torch") as zygote:
        child = loaded(zygote, model("time.sleep(60)"))
        first = zygote.pid
        threading.Timer(0.3, lambda: os.kill(tree(first)[1], signal.SIGKILL)).start()
        failure = failure_of(lambda: child.run([torch.ones(1)], [SQUARE]))
        assert failure.kind == "infra_error"
        with loaded(zygote, model("return x")) as other:
            other.run([torch.ones(4, 4)], [SQUARE])
        assert zygote.pid != first


def test_a_closed_zygote_refuses() -> None:
    zygote = Zygote("torch")
    zygote.close()
    assert failure_of(zygote.spawn).kind == "infra_error"
    zygote.close()


JUDGE = """
import sys, time
from kernelward.reward.sandbox.session import Zygote
zygote = Zygote("torch", without=[name for name in sys.argv[1].split(",") if name])
child = zygote.spawn()
child.load('''
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
class ModelNew: pass
''')
print(zygote.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "without", ["", "user-namespace,pid-namespace,mount-namespace,network-namespace,ipc-namespace"]
)
def test_a_judge_killed_by_sigkill_leaves_nothing(without: str) -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    judge = subprocess.Popen([sys.executable, "-c", JUDGE, without], stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    zygote = int(judge.stdout.readline())
    everything = tree(zygote)
    assert len(everything) >= 5  # zygote, supervisor, candidate, two daemons
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    judge.stdout.close()
    deadline = time.monotonic() + 30
    left = everything
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if os.path.exists(f"/proc/{pid}/exe")]
    assert not left
    assert set(os.listdir(tempfile.gettempdir())) <= before
