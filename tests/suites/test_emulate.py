"""Emulated members: each is a correct implementation, each really computes differently, none breaks on unknown ops."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites import emulate_online, emulate_order
from kernelward.suites.compare import flatten_outputs, normalised_error
from kernelward.suites.dispatch import OpMode
from kernelward.suites.emulate import MEMBERS, Emulation, plain_attention
from kernelward.suites.emulate_online import running_moments
from kernelward.suites.emulate_order import Blocked, Reordered, Sequential, evenly
from kernelward.suites.emulate_pointwise import exp_by_exp2, flushed, rounded_mantissa, tanh_by_exp
from kernelward.suites.emulate_rules import order_rules
from torch import Tensor, nn

torch.set_num_threads(1)

U = 2.0**-24
ORDERS = {"reordered": Reordered(), "sequential": Sequential(), "blocked": Blocked()}


def rand(*shape: int, seed: int = 0, signed: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) if signed else torch.rand(shape, generator=generator)


def run(name: str, f: Callable[..., Any], *args: Any) -> tuple[list[Tensor], int]:
    """Outputs of `f` under a member, and how many ops it replaced."""
    mode = MEMBERS[name].mode(f if isinstance(f, nn.Module) else nn.Identity())
    with torch.no_grad(), plain_attention(), mode:
        outputs = flatten_outputs(f(*args))
    return outputs, mode.hits


# ---------------------------------------------------------------- orders


def one_by_one(x: Tensor, multiply: bool = False) -> Tensor:
    """[R, n] -> [R], the loop of one thread."""
    total = x[:, 0].clone()
    for k in range(1, x.shape[1]):
        total = total * x[:, k] if multiply else total + x[:, k]
    return total


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 40])
@pytest.mark.parametrize("length", [1, 2, 33, 700])
def test_sequential_sum_is_the_loop_of_one_thread(rows: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_order, "_PIECE", 64)  # so that the carried total is tested too
    x = rand(rows, length, signed=False)
    assert torch.equal(Sequential().total(x, [1], np.add)[:, 0], one_by_one(x))
    assert torch.equal(Sequential().total(x.t(), [0], np.add)[0], one_by_one(x))
    near_one = 1 + x / 100
    assert torch.equal(Sequential().total(near_one, [1], np.multiply)[:, 0], one_by_one(near_one, multiply=True))


def test_sequential_sum_over_several_dimensions_runs_in_memory_order() -> None:
    x = rand(3, 4, 5, 6, signed=False)
    total = Sequential().total(x, [1, 3], np.add)
    assert total.shape == (3, 1, 5, 1)
    assert torch.equal(total.flatten(), one_by_one(x.permute(0, 2, 1, 3).reshape(15, 24)))


def test_a_very_long_sum_has_one_accumulator_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_order, "ONE_THREAD", 100)
    x = rand(1, 250, signed=False)
    parts = torch.stack([one_by_one(x[:, :100]), one_by_one(x[:, 100:200]), one_by_one(x[:, 200:])], dim=1)
    assert torch.equal(Sequential().total(x, [1], np.add)[:, 0], one_by_one(parts))


@pytest.mark.parametrize("shape", [(1, 3, 50, 4), (2, 9, 300, 11), (1, 1, 40, 1)])
def test_sequential_product_is_the_loop_of_one_thread(shape: tuple[int, int, int, int]) -> None:
    batch, height, depth, width = shape
    a, b = rand(batch, height, depth), rand(batch, depth, width, seed=1)
    total = torch.zeros(batch, height, width)
    for k in range(depth):
        total = total + a[..., k : k + 1] * b[:, k : k + 1, :]
    assert torch.equal(Sequential().matmul(a, b), total)


def test_beyond_the_budget_evenly_spaced_outputs_are_followed_the_last_one_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulate_order, "BUDGET", 3000)
    x = rand(50, 600, signed=False)
    followed, own = one_by_one(x), x.sum(1)
    got = Sequential().total(x, [1], np.add)[:, 0]
    assert torch.equal(got[[0, -1]], followed[[0, -1]])
    assert not torch.equal(own[[0, -1]], followed[[0, -1]])
    assert 2 <= int((got != own).sum()) <= 5
    scan = Sequential().scan(x, 1, np.add)
    assert scan[-1, -1] == followed[-1]
    a, b = rand(1, 40, 100, signed=False), rand(1, 100, 30, seed=1, signed=False)
    product = Sequential().matmul(a, b)
    assert product[0, -1, -1] == one_by_one((a[0, -1] * b[0, :, -1])[None])[0]
    assert normalised_error(product, a.double() @ b.double()) < 100 * U
    assert 4 <= int((product != a @ b).sum()) <= 40


def test_evenly_takes_both_ends() -> None:
    assert evenly(10, 3).tolist() == [0, 4, 9]
    assert evenly(3, 10).tolist() == [0, 1, 2]
    assert evenly(10, 1).tolist() == [0]


def test_sequential_scan_keeps_the_running_total() -> None:
    x = rand(5, 700, signed=False)
    assert torch.equal(Sequential().scan(x, 1, np.add)[:, -1], one_by_one(x))
    assert torch.equal(Sequential().scan(x.t(), 0, np.add)[-1], one_by_one(x))


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("ufunc", [np.add, np.multiply])
def test_blocked_scan_is_a_scan(length: int, ufunc: np.ufunc) -> None:
    x = 1 + rand(3, length, signed=False) / 100
    exact = (torch.cumsum if ufunc is np.add else torch.cumprod)(x.double(), 1)
    assert normalised_error(Blocked().scan(x, 1, ufunc), exact) < 200 * U


CONVS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv2d(6, 4, 3, padding=1), (2, 6, 7, 8)),
    (lambda: nn.Conv2d(6, 4, 3, groups=2, stride=2, bias=False), (2, 6, 9, 8)),
    (lambda: nn.Conv2d(6, 6, 3, groups=6), (2, 6, 7, 8)),
    (lambda: nn.Conv1d(70, 3, 3, dilation=2), (2, 70, 12)),
    (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (2, 6, 5, 4)),
    (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (2, 6, 5, 4)),
    (lambda: nn.Conv3d(4, 2, 2), (1, 4, 4, 5, 3)),
]


@pytest.mark.parametrize("name", ["reordered", "sequential", "tf32"])
@pytest.mark.parametrize(("make", "shape"), CONVS)
def test_convolutions_in_another_order_are_convolutions(name: str, make: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv, x = make(), rand(*shape)
    [got], hits = run(name, conv, x)
    with torch.no_grad():
        exact = conv.double()(x.double())
    assert normalised_error(got, exact) < (5e-3 if name == "tf32" else 300 * U)
    depthwise = x.shape[1] == getattr(conv, "groups", 1)
    assert hits == (0 if depthwise and name == "reordered" else 1)


@pytest.mark.parametrize("channels", [1, 32])
def test_a_sequential_convolution_errs_about_as_far_as_one_thread_per_output(channels: int) -> None:
    torch.manual_seed(0)
    conv = nn.ConvTranspose3d(channels, 16, 3, stride=2, padding=1, dilation=2, bias=False)
    x = -rand(2, channels, 3, 5, 7).abs()
    with torch.no_grad():
        exact = copy.deepcopy(conv).double()(x.double())
        one_thread = torch.zeros_like(exact, dtype=torch.float32)
        for tap in itertools.product(range(3), repeat=3):
            for channel in range(channels):
                term = copy.deepcopy(conv)
                kept = conv.weight[channel, :, *tap].clone()
                term.weight.zero_()
                term.weight[channel, :, *tap] = kept
                one_thread = one_thread + term(x)
    [got], _ = run("sequential", conv, x)
    true, emulated = normalised_error(one_thread, exact), normalised_error(got, exact)
    assert emulated == pytest.approx(true, rel=0.2)


def test_of_a_large_convolution_whole_items_of_the_batch_are_followed_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv = nn.Conv2d(32, 4, 3, bias=False)
    x = -rand(8, 32, 9, 9).abs()
    [every], _ = run("sequential", conv, x)
    own = conv(x)
    monkeypatch.setattr(emulate_order, "_ADDED", {"cpu": 2 * own[0].numel() * 32 * 9})
    [some], _ = run("sequential", conv, x)
    assert [torch.equal(a, b) for a, b in zip(some, every, strict=True)] == [True, *[False] * 6, True]
    assert torch.equal(some[1:-1], own[1:-1])


class Convolutions(OpMode):
    """Counts the convolutions that are computed while it is on, by emulations as well."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


def test_a_network_s_convolutions_share_the_steps_of_a_few_and_err_hardly_less(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(16) for layer in (nn.Conv1d(24, 24, 31, padding=15, bias=False), nn.ReLU())]
    network, x = nn.Sequential(*layers), rand(2, 24, 20)
    with torch.no_grad():
        exact = copy.deepcopy(network).double()(x.double())
    counts, errors = [], []
    for shared_from in (4, 16):
        monkeypatch.setattr(emulate_order, "_SHARED_FROM", shared_from)
        with Convolutions() as seen:
            [got], hits = run("sequential", network, x)
        assert hits >= 16
        counts.append(seen.count)
        errors.append(normalised_error(got, exact))
    terms = 24 * 31  # of each, one by one where each has the whole budget
    assert 16 * terms <= counts[1] <= 16 * (terms + 1)
    assert counts[0] <= 4 * 1024 + 16
    assert errors[0] > errors[1] / 2


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), length=st.integers(2, 2048), signed=st.booleans(), spread=st.sampled_from([0, 2, 6]))
def test_permuting_a_sum_stays_within_the_tolerance_of_the_orders(
    seed: int, length: int, signed: bool, spread: int
) -> None:
    rows = 70
    x = rand(rows, length, seed=seed, signed=signed) * 2.0 ** (spread * rand(1, length, seed=seed + 1))
    exact = x.double().sum(1)
    members = [x.sum(1), *(o.total(x, [1], np.add)[:, 0] for o in (Reordered(), Sequential()))]
    envelope = max(normalised_error(y, exact) for y in members)
    allowed = max(16 * U, 2 * U * math.sqrt(length), 4 * envelope)
    for i in range(3):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + i))
        assert normalised_error(one_by_one(x[:, order]), exact) <= allowed


# ---------------------------------------------------------------- running means


def welford(row: Tensor, lanes: int = 32) -> tuple[Tensor, Tensor]:
    """[n] -> mean and sum of squared deviations, lane after lane and term after term, as a warp computes them."""
    state = [(torch.tensor(0.0), torch.tensor(0.0), torch.tensor(0.0)) for _ in range(lanes)]
    for i, v in enumerate(row):
        n, mean, squares = state[i % lanes]
        delta = v - mean
        mean = mean + delta / (n + 1)
        state[i % lanes] = (n + 1, mean, squares + delta * (v - mean))
    while len(state) > 1:
        half = len(state) // 2
        merged = []
        for (n, mean, squares), (m, other, more) in zip(state[:half], state[half:], strict=True):
            delta = other - mean
            if n + m > 0:
                squares = squares + (more + delta * delta * n * m / (n + m))
                mean = mean + delta * m / (n + m)
            merged.append((n + m, mean, squares))
        state = merged
    return state[0][1], state[0][2]


@pytest.mark.parametrize("length", [1, 2, 5, 31, 33, 70, 256])
def test_running_moments_are_the_loop_of_a_warp(length: int) -> None:
    x = rand(3, length) + 0.5
    mean, squares = running_moments(x)
    for i in range(3):
        assert (mean[i], squares[i]) == welford(x[i])


@pytest.mark.parametrize("length", [1, 2, 33, 1021, 8192, 8193, 40000])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_running_moments_are_right_to_float32_accuracy(length: int, offset: float) -> None:
    x = rand(4, length) + offset
    mean, squares = running_moments(x)
    size = x.double().abs().mean(1)
    assert float(((mean - x.double().mean(1)).abs() / size).max()) < 16 * U
    exact = (x.double() - x.double().mean(1, keepdim=True)).square().sum(1)
    assert torch.allclose(squares.double(), exact, rtol=16 * U * (1 + offset), atol=1e-12)


def test_a_lane_takes_a_bounded_number_of_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_online, "STEPS", 4)
    x = rand(1, 32 * 4 + 1)
    assert running_moments(x)[0][0] == welford(x[0], 64)[0]
    assert running_moments(x[:, :-1])[0][0] == welford(x[0, :-1], 32)[0]


def test_running_means_beyond_the_budget_are_torchs_own_but_for_evenly_spaced_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulate_online, "BUDGET", 4 * 3000)
    x = rand(50, 600, signed=False) + 100
    [mean, variance], hits = run("online", lambda v: (v.mean(1), v.var(1)), x)
    assert hits == 2
    followed = running_moments(x)
    for got, own, want in ((mean, x.mean(1), followed[0]), (variance, x.var(1), followed[1] / 599)):
        assert torch.equal(got[[0, -1]], want[[0, -1]])
        assert 1 <= int((got != own).sum()) <= 5
    assert run("online", lambda v: v.mean(), x)[1] == 0  # longer than the budget


# ---------------------------------------------------------------- every op, every member

X = rand(4, 8, 16, seed=5)
OPS: dict[str, Callable[[Tensor], Any]] = {
    "layer_norm": lambda x: F.layer_norm(x, [16]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm_running": lambda x: F.batch_norm(x, x.new_zeros(8), x.new_ones(8), training=True),
    "instance_norm": lambda x: F.instance_norm(x),
    "rms_norm": lambda x: F.rms_norm(x, [16]),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: (x.norm(dim=-1), x.norm()),
    "mean": lambda x: (x.mean(), x.mean(-1, keepdim=True), x.mean((0, 2))),
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True)),
    "var": lambda x: (x.var(), x.var(-1), x.std(0, keepdim=True), *torch.var_mean(x, 1)),
    "var_biased": lambda x: (x.var(-1, unbiased=False), x.std(1, correction=0)),
    "prod": lambda x: ((1 + x / 9).prod(), (1 + x / 9).prod(1), (1 + x / 9).prod(2, keepdim=True)),
    "scan": lambda x: (x.cumsum(1), x.cumprod(-1)),
    "mse": lambda x: F.mse_loss(x, 2 * x + 1),
    "losses": lambda x: (F.huber_loss(x, 2 * x), F.smooth_l1_loss(x, 2 * x), F.l1_loss(x, 3 * x)),
    "cross_entropy": lambda x: F.cross_entropy(x[:, :, 0], torch.arange(4)),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.sigmoid(2 * x)),
    "matmul": lambda x: (x[0] @ x[1].t(), x @ x.transpose(1, 2), x[0] @ x[1, 0], x[0, 0] @ x[0, 1]),
    "addmm": lambda x: torch.addmm(x[0, :4, :4], x[0, :4], x[1, :4].t(), beta=0.5, alpha=2),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :8], x, x.transpose(1, 2)),
    "linear": lambda x: F.linear(x, x[0], x[0, :, 0]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "activations": lambda x: (F.gelu(x), F.silu(x), F.elu(x), F.mish(x), F.softplus(x), torch.tanh(x), F.selu(x)),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logsigmoid": lambda x: (F.logsigmoid(x), torch.sigmoid(x), F.glu(x)),
    "in_place": lambda x: x.clone().exp_().add_(1).log_().sigmoid_(),
    "views": lambda x: x.clone().view(-1).reshape(4, 8, 16).transpose(0, 1).mul_(3)[1:],
    "extremes": lambda x: (x.amax(1), x.max(-1), x.topk(3), x.sort(), x.argmin(0)),
    "unknown": lambda x: (torch.linalg.svdvals(x), torch.fft.rfft(x).abs(), F.pixel_shuffle(x[:, :, None], 2)),
    "double_inside": lambda x: x.double().sum(-1).float(),
    "sum_in_double": lambda x: x.sum(-1, dtype=torch.float64),
    "integers": lambda x: (x > 0).sum(-1),
    "empty": lambda x: (x[:, :0].sum(1), x[:0].mean(-1), x[:, :, :0] @ x[:, :, :0].transpose(1, 2)),
    "scalars": lambda x: (x[0, 0, 0].sum(), x[0, 0, 0].cumsum(0), x[0, 0, 0].mean()),
}
LOOSE = {"fp16": 3e-2, "bf16": 3e-1, "tf32": 6e-3, "tf32_truncated": 1e-2, "fast_math": 3e-3}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_computes_the_same_function(name: str, op: str) -> None:
    outputs, _ = run(name, OPS[op], X.clone())
    plain = flatten_outputs(OPS[op](X.clone()))
    exact = flatten_outputs(OPS[op](X.double()))
    assert len(outputs) == len(exact)
    for y, own, t in zip(outputs, plain, exact, strict=True):
        assert (y.shape, y.dtype) == (own.shape, own.dtype)
        if y.is_floating_point() and t.numel():
            assert normalised_error(y, t) < LOOSE.get(name, 100 * U)
        elif name not in ("fp16", "bf16"):  # shorter types may tie what differs
            assert torch.equal(y, t)


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("reordered", "layer_norm group_norm batch_norm softmax logsumexp norm mean sum var prod mse matmul attention"),
        ("sequential", "layer_norm group_norm instance_norm rms_norm log_softmax mean sum var scan losses bce linear"),
        ("blocked", "scan matmul addmm baddbmm linear attention"),
        ("online", "layer_norm group_norm batch_norm instance_norm rms_norm mean var var_biased mse losses"),
        ("exp2", "softmax logsumexp activations gelu_tanh logsigmoid in_place cross_entropy attention bce"),
        ("tf32", "matmul addmm linear attention"),
        ("tf32_truncated", "matmul baddbmm"),
        ("fast_math", "softmax activations logsigmoid layer_norm"),
        ("one_pass_variance", "layer_norm group_norm batch_norm var var_biased"),
    ],
)
def test_members_reach_into_compound_ops(name: str, ops: str) -> None:
    for op in ops.split():
        outputs, hits = run(name, OPS[op], X.clone())
        assert hits > 0, op
        plain = flatten_outputs(OPS[op](X.clone()))
        if name != "blocked" and plain[0].dim():  # small tiles and single numbers may well round alike
            assert any(not torch.equal(a, b) for a, b in zip(outputs, plain, strict=True)), op


@pytest.mark.parametrize("name", ["reordered", "sequential", "blocked", "online", "exp2", "tf32", "one_pass_variance"])
def test_a_member_that_finds_nothing_to_replace_says_so(name: str) -> None:
    for op in ("views", "extremes", "unknown", "double_inside"):
        assert run(name, OPS[op], X.clone())[1] == 0


def test_recurrent_layers_and_encoders_run_under_every_member() -> None:
    torch.manual_seed(0)
    models = [nn.LSTM(16, 5), nn.GRU(16, 5), nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()]
    for model in models:
        with torch.no_grad():
            plain = flatten_outputs(model(X))
        for name in ("reordered", "sequential", "exp2"):
            outputs, _ = run(name, model, X)
            assert all(normalised_error(a, b.double()) < 300 * U for a, b in zip(outputs, plain, strict=True))


def test_running_statistics_are_still_updated() -> None:
    bn = nn.BatchNorm1d(8)
    run("sequential", bn, X)
    assert torch.allclose(bn.running_mean, 0.1 * X.mean((0, 2)), atol=1e-6)  # type: ignore[arg-type]


def test_a_rule_that_declines_leaves_the_op_to_torch() -> None:
    class Nothing(Blocked):
        def matmul(self, a: Tensor, b: Tensor) -> None:
            return None

    mode = Emulation(order_rules(Nothing()), True)
    with torch.no_grad(), mode:
        got = F.linear(X, X[0])
    assert torch.equal(got, F.linear(X, X[0]))
    assert mode.hits == 0


# ---------------------------------------------------------------- rounding


def test_mantissas_are_rounded_to_even_or_cut() -> None:
    step = 2.0**-10
    x = torch.tensor([1.0, 1 + step, 1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -(1 + 0.49 * step), math.inf])
    nearest = [1.0, 1 + step, 1.0, 1 + 2 * step, 1 + step, -1.0, math.inf]
    cut = [1.0, 1 + step, 1.0, 1 + step, 1.0, -1.0, math.inf]
    assert rounded_mantissa(x, 10).tolist() == nearest
    assert rounded_mantissa(x, 10, truncate=True).tolist() == cut
    assert math.isnan(rounded_mantissa(torch.tensor([math.nan]), 10)[0])
    assert rounded_mantissa(torch.tensor([3.0e38]), 10)[0] < math.inf


@settings(deadline=None, max_examples=50)
@given(value=st.floats(-65000, 65000, width=32).filter(lambda v: v == 0 or abs(v) > 1e-4))
def test_eleven_bits_are_those_of_float16(value: float) -> None:
    x = torch.tensor([value], dtype=torch.float32)
    assert rounded_mantissa(x, 10)[0] == x.half().float()[0]


def test_shorter_types_round_every_intermediate_result() -> None:
    x = torch.tensor([2048.0, 1.0, 0.5])
    [y], _ = run("fp16", lambda v: (v + 0.75) - v, x)
    assert y.tolist() == (((x.half() + 0.75) - x.half()).float()).tolist()
    [y], _ = run("bf16", lambda v: v.clone().add_(0.01).sub_(v), x)
    assert y.tolist() == (((x.bfloat16() + 0.01) - x.bfloat16()).float()).tolist()
    [y], _ = run("fp16", lambda v: v * 100, x)
    assert y[0] == math.inf  # as in real half precision


def test_honest_functions_by_exp_stay_within_a_few_ulp_of_a_row() -> None:
    x = torch.linspace(-20, 20, 4001)
    assert normalised_error(tanh_by_exp(x), torch.tanh(x.double())) < 4 * U
    assert float((exp_by_exp2(x).double() / torch.exp(x.double()) - 1).abs().max()) < 32 * U
    assert tanh_by_exp(torch.tensor([-100.0, 100.0, 0.0])).tolist() == [-1.0, 1.0, 0.0]
    assert flushed(torch.tensor([1e-39, -1e-39, 1e-37])).tolist() == [0.0, 0.0, pytest.approx(1e-37)]


def test_one_pass_variance_shows_on_offset_data_only() -> None:
    offset = X + 1000
    [y], _ = run("one_pass_variance", lambda v: v.var(-1), offset)
    [near], _ = run("one_pass_variance", lambda v: v.var(-1), X)
    assert normalised_error(y, offset.double().var(-1)) > 1e-3
    assert normalised_error(near, X.double().var(-1)) < 16 * U


@pytest.mark.parametrize("operation", [torch.softmax, torch.log_softmax])
def test_exp2_scales_logits_before_the_maximum_is_taken_off(operation: Any) -> None:
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(3)) * 300
    scaled = x * 1.4426950408889634
    honest = torch.exp2(scaled - scaled.amax(1, keepdim=True))
    honest = honest / honest.sum(1, keepdim=True)
    with MEMBERS["exp2"].mode(nn.Identity()) as mode:
        emulated = operation(x, dim=1)
    assert mode.hits
    if operation is torch.softmax:
        assert torch.equal(emulated, honest)
    else:  # the same in the logarithm, where it does not underflow
        kept = honest > 1e-30
        torch.testing.assert_close(emulated[kept], honest.log()[kept], rtol=1e-4, atol=1e-3)


def test_masked_logits_stay_right_under_exp2() -> None:
    x = torch.tensor([[0.0, float("-inf"), 1.0]])
    with MEMBERS["exp2"].mode(nn.Identity()):
        emulated = torch.softmax(x, dim=1)
    torch.testing.assert_close(emulated, torch.softmax(x, dim=1))
