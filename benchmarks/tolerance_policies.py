"""What each tolerance policy admits, what it still catches, and what it costs correct kernels.

    python benchmarks/tolerance_policies.py [--problems DIR] [--max-mib 8] [--json FILE] [PATTERN]

Per problem an `own` and a `normal` entry (at a small ragged shape where the declared one is large) go through the gate
under every policy. On three fresh draws each, four shortened implementations are judged (a policy that calls them
correct must not catch them, `fp32` must), and correct ones that are none of the envelope's members: sums in random
order and in strided parts, approximate functions, one-pass variance.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import le
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernelward.suites.compare import is_exact, normalised_error
from kernelward.suites.draw import Drawn, draw_entry, entry_bytes
from kernelward.suites.emulate import MEMBERS, Emulation, Member, member_outputs
from kernelward.suites.emulate_order import Reordered
from kernelward.suites.emulate_rules import order_rules
from kernelward.suites.entry import Entry
from kernelward.suites.envelope import Samples
from kernelward.suites.errors import InputError
from kernelward.suites.fan_in import fan_in
from kernelward.suites.generators import GENERATORS
from kernelward.suites.oracle import TRUE_FP32, OracleError, cast_inputs, compute_truth, reference_outputs, run_forward
from kernelward.suites.problem import Problem, list_problems
from kernelward.suites.shapes import ragged_variants
from kernelward.suites.tolerance import TolerancePolicy, tolerance
from kernelward.suites.traits import inspect_problem
from kernelward.suites.validity import POWER_DRAWS, SEEDS, admission_seed, admit
from rich.console import Console
from rich.table import Table
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
POLICIES = ("fp32", "fp32+fast_math", "fp32+one_pass_variance", "tf32", "fp16", "bf16")
Outputs = list[Tensor] | None
Pool = tuple[tuple[float, ...] | None, ...]


class RandomOrder(Reordered):
    """Terms added up in a random order."""

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        for dim in dims:
            x = x.index_select(dim, torch.from_numpy(np.random.default_rng(0).permutation(x.shape[dim])))
        return super().total(x, dims, ufunc)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        order = torch.from_numpy(np.random.default_rng(0).permutation(a.shape[-1]))
        return super().matmul(a[..., order], b[..., order, :])


class Strided(Reordered):
    """32 threads, each adding every 32nd term; products in slabs of a sixty-fourth."""

    def total(self, x: Tensor, dims: list[int], ufunc: np.ufunc) -> Tensor | None:
        longest = max(dims, key=lambda d: x.shape[d])
        if ufunc is not np.add or x.shape[longest] < 32:
            return None
        parts = [x[(slice(None),) * longest + (slice(j, None, 32),)].sum(dims, keepdim=True) for j in range(32)]
        return torch.stack(parts).sum(0)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor | None:
        step = max(8, a.shape[-1] // 64)
        return torch.stack([a[..., k : k + step] @ b[..., k : k + step, :] for k in range(0, a.shape[-1], step)]).sum(0)


def half_operands(drawn: Drawn) -> Outputs:
    """Inputs and parameters through fp16, everything else as it is."""
    model = drawn.build_model()
    for p in model.parameters():
        p.data = p.data.half().float()
    return run_forward(model, cast_inputs(cast_inputs(drawn.inputs, torch.float16), torch.float32), drawn.seed)


def half_output(drawn: Drawn) -> Outputs:
    """The right result, stored through fp16."""
    return [t if is_exact(t) else t.half().float() for t in reference_outputs(drawn)]


def member(name: str) -> Callable[[Drawn], Outputs]:
    """An implementation that is a member of some policies' envelopes."""
    return lambda drawn: member_outputs(MEMBERS[name], drawn)


def order(by: Reordered) -> Callable[[Drawn], Outputs]:
    """A correct implementation that adds up in an order that no member uses."""
    return lambda drawn: member_outputs(Member("other order", lambda: Emulation(order_rules(by), True), ""), drawn)


FAULTS: dict[str, Callable[[Drawn], Outputs]] = {
    "fp16 operands": half_operands,
    "fp16 output": half_output,
    "all fp16": member("fp16"),
    "tf32": member("tf32_truncated"),
}
CORRECT: dict[str, Callable[[Drawn], Outputs]] = {
    "random order": order(RandomOrder()),
    "strided": order(Strided()),
    "fast math": member("fast_math"),
    "one-pass": member("one_pass_variance"),
}


def entries(problem: Problem, max_bytes: int) -> Iterator[Entry]:
    """The entries to measure for a problem; none where nothing small enough exists."""
    traits = inspect_problem(problem)
    constants: dict[str, Any] = {}
    if entry_bytes(problem, Entry()) > max_bytes:
        variants = ragged_variants(problem, traits, policy="all", max_bytes=max_bytes, limit=1)
        if not variants:
            return
        constants = variants[0]
    for family in ("own", "normal"):
        if GENERATORS[family].applies(traits):
            yield Entry.make(family, constants=constants)


def measure(problem: Problem, entry: Entry) -> list[dict[str, Any]]:
    """One row per policy: why the entry is not admitted, or which implementations are accepted.

    The gate decides under `fp32`; under the other policies only their members and caps differ, so all members are run
    once and shared. A correct implementation is accepted if it is on all of three fresh draws, a fault if on any.
    """
    row = {"problem": problem.id, "family": entry.generator}
    gate = admit(problem, entry)
    if gate.reason not in ("", "above-cap", "disagreement"):
        return [row | {"policy": p, "reason": gate.reason, "accepted": {}} for p in POLICIES]
    samples, counts = Samples(), []
    for draw in range(SEEDS):
        drawn = draw_entry(problem, entry, admission_seed(problem, entry, draw))
        truth = compute_truth(drawn, TRUE_FP32)
        samples.add(drawn, truth, ["reference", *MEMBERS])
        if draw < POWER_DRAWS:
            counts.append(fan_in(drawn, truth.reference or ()))
    pool, n = samples.finish(), [max(c) for c in zip(*counts, strict=True)]
    exact = [is_exact(t) for t in truth.outputs]
    if all(exact):  # indices: rounding is no question
        return []
    errors = implementation_errors(problem, entry, pool)
    rows = []
    for text in POLICIES:
        policy = TolerancePolicy.parse(text)
        members = [m for m in policy.members() if m in samples.members]
        allowed = [
            0.0 if x else tolerance(k, max(samples.members[m][i] for m in members), d)
            for i, (x, k, d) in enumerate(zip(exact, n, truth.output_dtypes, strict=True))
        ]
        reason = "above-cap" if max(allowed) > policy.cap() else ""
        accepted = {
            name: (any if name in FAULTS else all)(all(map(le, errs, allowed)) for errs in draws)
            for name, draws in errors.items()
        }
        rows.append(row | {"policy": text, "reason": reason, "accepted": {} if reason else accepted})
    return rows


def implementation_errors(problem: Problem, entry: Entry, pool: Pool) -> dict[str, list[list[float]]]:
    """Implementation -> per fresh draw, its error per output."""
    errors: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(3):
        drawn = draw_entry(problem, entry, seed)
        truth = compute_truth(drawn, scale_pool=pool)
        for name, run in (FAULTS | CORRECT).items():
            outputs = run(drawn)
            if outputs is not None:
                triples = zip(outputs, truth.outputs, truth.scales, strict=True)
                errors[name].append(
                    [normalised_error(y, t, s, truth.selection(i)) for i, (y, t, s) in enumerate(triples)]
                )
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="only problems whose id matches this expression")
    parser.add_argument("--problems", type=Path, default=ROOT / "examples" / "problems")
    parser.add_argument("--max-mib", type=float, default=8.0, help="largest entry")
    parser.add_argument("--json", type=Path, help="append one line per problem, entry and policy; skip those in it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in args.json.read_text().splitlines()] if args.json and args.json.exists() else []
    known = {(r["problem"], r["family"]) for r in rows}
    for problem in list_problems(args.problems):
        if not re.search(args.pattern, problem.id):
            continue
        try:
            todo = list(entries(problem, int(args.max_mib * (1 << 20))))
        except InputError as error:
            print(f"{problem.id}: left out: {error}")
            continue
        for entry in todo:
            if (problem.id, entry.generator) in known:
                continue
            try:
                found = measure(problem, entry)
            except OracleError as error:
                print(f"{problem.id}, {entry.generator}: left out: {error}")
                continue
            rows += found
            if args.json:
                with args.json.open("a") as file:
                    file.writelines(json.dumps(r) + "\n" for r in found)
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Print admitted entries and the share of faults caught and of correct kernels refused per policy."""
    table = Table("policy", "admitted", *(f"catches {n}" for n in FAULTS), *(f"refuses {n}" for n in CORRECT))
    for policy in POLICIES:
        mine = [r for r in rows if r["policy"] == policy]
        admitted = [r for r in mine if not r["reason"]]
        cells = []
        for name in (*FAULTS, *CORRECT):
            refused = [not r["accepted"][name] for r in admitted if name in r["accepted"]]
            share = f"{sum(refused) / len(refused):.0%} of" if name in FAULTS and refused else f"{sum(refused)} of"
            cells.append(f"{share} {len(refused)}")
        table.add_row(policy, f"{len(admitted)} of {len(mine)}", *cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
