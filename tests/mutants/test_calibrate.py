"""A calibration from end to end: a tiny problem, kernels of its own, the real sandbox, emulator and matrix."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelward.mutants import calibrate_plan
from kernelward.mutants.calibrate import Calibrator
from kernelward.mutants.calibrate_command import folders_and_ids, run_calibrate, seconds_of
from kernelward.mutants.calibrate_mutants import COSTLY_PHASE
from kernelward.mutants.calibrate_plan import find_targets, ordered
from kernelward.mutants.calibrate_pools import CLEAN_RUN
from kernelward.mutants.calibrate_values import CalibrateOptions, Tally
from kernelward.mutants.coverage import measure
from kernelward.mutants.matrix import Matrix
from kernelward.mutants.matrix_delta import open_measured
from kernelward.mutants.measure import in_sample
from kernelward.mutants.mutant import FAMILIES, Edit, Operator, Site, Tree, generate
from kernelward.mutants.replay_command import run_replay
from kernelward.mutants.substrates import list_substrates
from kernelward.mutants.watch import only_one
from kernelward.suites.errors import InputError
from kernelward.suites.suite import load_suite

pytestmark = pytest.mark.timeout(600)  # whichever comes first makes the calibration that the others look at

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + x.sum(dim=1, keepdim=True)


rows, columns = 8, 64


def get_inputs():
    return [torch.rand(rows, columns)]


def get_init_inputs():
    return []
"""
KERNEL = '''"""Relu plus the sum of its row.
problem: ramped
style: naive
"""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
__global__ void k(const float* x, float* y, int rows, int columns) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows) {
        float sum = 0.0f;
        for (int c = 0; c < columns; ++c) sum += x[r * columns + c];
        for (int c = 0; c < columns; ++c) y[r * columns + c] = fmaxf(x[r * columns + c], 0.0f) + sum;
    }
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int rows = x.size(0), columns = x.size(1);
    k<<<(rows + 31) / 32, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), rows, columns);
    return y;
}
"""
extension = load_inline(name="ramped", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=CUDA,
                        functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of problems and one of substrates: a right kernel, and one that is wrong for negative numbers."""
    root = tmp_path_factory.mktemp("world")
    (root / "problems").mkdir()
    (root / "problems" / "ramped.py").write_text(PROBLEM)
    (root / "kernels" / "cuda").mkdir(parents=True)
    (root / "kernels" / "cuda" / "right.py").write_text(KERNEL)
    wrong = KERNEL.replace("fmaxf(x[r * columns + c], 0.0f)", "x[r * columns + c]")
    (root / "kernels" / "cuda" / "wrong.py").write_text(wrong)
    return root


def options(world: Path, out: Path, budget_s: float = 900.0, per_substrate: int = 15) -> CalibrateOptions:
    targets = tuple(find_targets([world / "problems"], substrates=world / "kernels"))
    return CalibrateOptions(targets, out, budget_s=budget_s, backends=("cuda",), per_substrate=per_substrate)


def calibrate(how: CalibrateOptions) -> Tally:
    with Matrix(how.matrix_path) as matrix:
        return Calibrator(how, matrix, lambda *_: None).run()


@pytest.fixture(scope="module")
def first(world: Path) -> tuple[Tally, CalibrateOptions]:
    how = options(world, world / "out")
    return calibrate(how), how


def test_it_fills_a_matrix_from_which_our_entries_detect_more_than_the_official_check(
    first: tuple[Tally, CalibrateOptions],
) -> None:
    tally, how = first
    assert tally.evaluations > 100
    assert tally.faults == []
    assert not tally.out_of_time
    with Matrix(how.matrix_path) as matrix:
        report = measure(matrix, device_class="cpu")
        (problem,) = matrix.problems()
        assert len(matrix.entries(problem, role="pool")) >= 30
    assert report.witnessed["ours"]["yes"] >= 4
    ours, official = report.get("kernelward@3").ours, report.get("kernelbench").ours
    assert ours.detected >= official.detected
    assert ours.unknown == official.unknown == 0


def test_costly_entries_come_last_and_change_no_cell(
    first: tuple[Tally, CalibrateOptions], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = first
    with Matrix(whole.matrix_path) as matrix:
        entries = {row.uid: row.bytes for row in matrix.entries(next(iter(matrix.problems()))).values() if row.bytes}
        declared = entries["own-c37b4e998be4"]
        expected = _classes(matrix)
    monkeypatch.setattr(calibrate_plan, "_costly", lambda _device_class, size: size >= declared)
    how = options(world, tmp_path / "out", per_substrate=8)
    seen: list[tuple[str, int, int]] = []
    with Matrix(how.matrix_path) as matrix:
        tally = Calibrator(how, matrix, lambda *step: seen.append(step)).run()
        cells = _classes(matrix)
        assert Calibrator(how, matrix, lambda *_: None).run().evaluations == 0, "nothing is left"
    assert tally.waiting == 0
    assert tally.mutants == tally.current == 8
    assert cells.items() <= expected.items()
    phases = [phase for phase, _, _ in seen if phase in ("mutants", COSTLY_PHASE)]
    assert phases == sorted(phases, key=["mutants", COSTLY_PHASE].index)
    rows: dict[str, set[str]] = {}
    for mutant, entry in cells:
        rows.setdefault(mutant, set()).add(entry)
    for mutant, asked in rows.items():
        cheap = {e for e in asked if entries[e] < declared}
        assert cheap
        shown = any(cells[mutant, e] not in ("pass", "refused") for e in cheap)
        assert (asked == cheap) is (shown and not in_sample(mutant))
        if in_sample(mutant):
            assert asked == {entry for id, entry in expected if id == mutant}


def test_a_mutant_that_came_back_is_counted_again_and_not_measured_twice(
    first: tuple[Tally, CalibrateOptions], tmp_path: Path
) -> None:
    _, whole = first
    shutil.copytree(whole.out, tmp_path / "out")
    how = replace(whole, out=tmp_path / "out")
    with Matrix(how.matrix_path) as matrix:
        (problem,) = matrix.problems()
        ready = matrix.mutants(problem, state="ready")
        back = next(iter(ready))
        matrix.set_mutant_state(back, "generated")  # as `renewed_mutants` leaves one that had been withdrawn
        tally = Calibrator(how, matrix, lambda *_: None).run()
        assert tally.evaluations == 0
        assert matrix.mutants(problem, state="ready").keys() == ready.keys()


def _classes(matrix: Matrix) -> dict[tuple[str, str], str]:
    """Mutant and entry -> class."""
    query = (
        "SELECT m.uid, e.uid, c.class FROM cells c JOIN mutants m ON m.id = c.mutant JOIN entries e ON e.id = c.entry"
    )
    return {(mutant, entry): cls for mutant, entry, cls in matrix.query(query)}


def test_a_planted_wrong_substrate_is_quarantined_and_has_no_mutants(first: tuple[Tally, CalibrateOptions]) -> None:
    tally, how = first
    assert list(tally.quarantined) == ["cuda/wrong"]
    with Matrix(how.matrix_path) as matrix:
        status = {row.name: row.status for row in matrix.substrates().values()}
        assert status == {"cuda/right": "admitted", "cuda/wrong": "quarantined"}
        wrong = [id for id, row in matrix.substrates().items() if row.name == "cuda/wrong"]
        assert all(row.substrate not in wrong for row in matrix.mutants().values())


def test_a_second_run_with_nothing_changed_evaluates_nothing(first: tuple[Tally, CalibrateOptions]) -> None:
    _, how = first
    again = calibrate(how)
    assert (again.evaluations, again.mutants, again.faults) == (0, 0, [])


def test_two_runs_agree_byte_for_byte(world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path) -> None:
    """Mutants and cells, from the same pool; the seconds of a cell are left out of what must agree."""
    _, how = first
    other = options(world, without_mutants(how, tmp_path), per_substrate=5)
    calibrate(other)
    found = []
    for each in (how, other):
        with Matrix(each.matrix_path) as matrix:
            cells = matrix.query(
                "SELECT m.uid, e.uid, c.variant, c.seeds, c.class, c.errs, c.margin FROM cells c "
                "JOIN mutants m ON m.id = c.mutant JOIN entries e ON e.id = c.entry ORDER BY 1, 2, 3"
            )
            states = matrix.query("SELECT uid, operator, state, code_hash FROM mutants ORDER BY uid")
            found.append((cells, states))
    ids = {uid for uid, *_ in found[1][1]}
    assert len(ids) == 5
    for ours, theirs in zip(*found, strict=True):
        assert [row for row in ours if row[0] in ids] == theirs
    assert len(found[1][0]) > 100


def without_mutants(how: CalibrateOptions, folder: Path) -> Path:
    """A copy of a calibration in which the gate has answered and nothing else has happened."""
    return without(how, folder, "cells", "rows", "mutants", "substrates")


def without(how: CalibrateOptions, folder: Path, *tables: str) -> Path:
    """A copy of a calibration with some tables empty."""
    copy = shutil.copytree(how.out, folder / "copy")
    with Matrix(copy / "matrix.sqlite") as matrix, matrix.transaction() as connection:
        for table in tables:
            connection.execute(f"DELETE FROM {table}")
    return Path(copy)


def _started(world: Path, out: Path, tmp_path: Path, *more: str, per_substrate: int = 4) -> subprocess.Popen[bytes]:
    """The command, in a process of its own."""
    code = textwrap.dedent(
        """
        import sys
        from kernelward.mutants.cli import main
        if __name__ == "__main__":
            main()
        """
    )
    script = tmp_path / "command.py"
    script.write_text(code)
    arguments = ["calibrate", "--problems", str(world / "problems"), "--substrates", str(world / "kernels")]
    arguments += ["--out", str(out), "--per-substrate", str(per_substrate), "--backend", "cuda", *more]
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # a shell lets what it starts in the background ignore interrupts, and these tests with it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _wait_for_a_row(child: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + 300
    while _rows(path) < 1 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)


def test_a_calibration_that_is_killed_goes_on_where_it_stopped(
    world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path
) -> None:
    out = without_mutants(first[1], tmp_path)
    child = _started(world, out, tmp_path)
    path = out / "matrix.sqlite"
    try:
        _wait_for_a_row(child, path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    before = _rows(path)
    assert before >= 1
    tally = calibrate(options(world, out, per_substrate=4))
    assert not tally.out_of_time
    assert tally.seconds["clean run"] < 30
    with Matrix(path) as matrix:
        ready = len(matrix.mutants(state="ready"))
    assert _rows(path) == ready
    assert tally.mutants <= 4 - before + 1  # what was done is not done again


def test_an_interrupted_calibration_ends_with_the_mutant_at_hand_and_exports_what_it_has(
    world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path
) -> None:
    out, delta = without_mutants(first[1], tmp_path), tmp_path / "interrupted.delta"
    # a batch is six of them, and some are left when the first row is noticed late
    child = _started(world, out, tmp_path, "--workers", "1", "--export-delta", str(delta), per_substrate=12)
    path = out / "matrix.sqlite"
    try:
        _wait_for_a_row(child, path)
        before = _rows(path)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=120) == 130
    finally:
        child.kill()
        child.wait()
    with Matrix(path) as matrix:
        ready = len(matrix.mutants(state="ready"))
    assert 1 <= before <= _rows(path) <= before + 1 < ready
    with open_measured(delta) as exported, Matrix(path) as matrix:
        counts = [m.query("SELECT count(*) FROM cells")[0][0] for m in (exported, matrix)]
    assert counts[0] == counts[1] > 0


def _rows(path: Path) -> int:
    if not path.is_file():
        return 0
    with Matrix(path) as matrix:
        return int(matrix.query("SELECT count(*) FROM rows")[0][0])


def test_the_command_writes_a_suite_that_carries_its_coverage(
    world: Path, first: tuple[Tally, CalibrateOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    _, how = first
    code = run_calibrate(
        [str(world / "problems")],
        budget="300s",
        out=how.out,
        device="cpu",
        backends=["cuda"],
        substrates=world / "kernels",
        per_substrate=15,
        export_delta=how.out / "delta.xz",
        as_json=True,
    )
    assert code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tally"]["evaluations"] == 0
    (line,) = shown["suites"]
    suite = load_suite(how.out / "suites" / "ramped.yaml")
    assert suite.calibrated
    assert suite.hash == line["suite"]
    assert suite.entries[0].entry.generator in ("normal", "own")
    assert suite.coverage is not None
    assert suite.coverage["kernelward"]["detected"] == line["detected"]
    assert (how.out / "delta.xz").stat().st_size < 2 << 20
    with Matrix(how.out / "elsewhere.sqlite") as other:
        report = other.import_delta(how.out / "delta.xz")
        assert report.added > 100
        assert measure(other).get("kernelward@3").ours == measure(Matrix(how.matrix_path)).get("kernelward@3").ours


@pytest.fixture
def replayed(world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path) -> dict[str, Any]:
    """Arguments of a replay from a copy of the matrix."""
    copy = shutil.copy(first[1].matrix_path, tmp_path / "matrix.sqlite")
    return {"matrix": Path(copy), "problems": [world / "problems"], "substrates": world / "kernels", "device": "cpu"}


def _cells(path: Path, outcome: str) -> tuple[str, str]:
    """A mutant and an entry with a strict cell of this class."""
    with Matrix(path) as matrix:
        rows = matrix.query(
            "SELECT m.uid, e.uid FROM cells c JOIN mutants m ON m.id = c.mutant JOIN entries e ON e.id = c.entry "
            "WHERE c.class = ? AND c.variant = 'strict' ORDER BY 1, 2",
            (outcome,),
        )
    return rows[0]


def test_a_kill_and_a_survivor_are_reproduced_and_what_is_not_the_same_is_said(
    replayed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = replayed["matrix"]
    kill, survivor = _cells(path, "value"), _cells(path, "pass")
    assert run_replay(*kill, **replayed, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["same"]
    assert all(cell["identical"] for cell in shown["cells"])
    assert shown["mutant"]["diff"].count("\n-") >= 1
    assert shown["command"] == f"kernelward replay {kill[0]} {kill[1]} --device cpu --matrix {path}"
    with Matrix(path) as matrix, matrix.transaction() as connection:
        connection.execute("UPDATE cells SET errs = '[0.25]' WHERE class = 'pass'")
    assert run_replay(*survivor, **replayed) == 1
    text = capsys.readouterr().out
    assert "stored: pass in 1 draw, error 0.25" in text
    assert text.rstrip().endswith("different")


def test_what_cannot_be_replayed_is_named(replayed: dict[str, Any], world: Path, tmp_path: Path) -> None:
    path = replayed["matrix"]
    mutant, entry = _cells(path, "value")
    with pytest.raises(InputError, match="no mutant ffff in"):
        run_replay("ffff", entry, **replayed)
    with pytest.raises(InputError, match=r"no entry nothing in .* for ramped on cpu; it has"):
        run_replay(mutant, "nothing", **replayed)
    other = shutil.copytree(world / "kernels", tmp_path / "kernels")
    (Path(other) / "cuda" / "right.py").write_text(KERNEL + "\n")
    with pytest.raises(InputError, match=r"substrate cuda/right .* has changed since"):
        run_replay(mutant, entry, **{**replayed, "substrates": other})
    edited = tmp_path / "problems"
    edited.mkdir()
    (edited / "ramped.py").write_text(PROBLEM.replace("64", "65"))
    with pytest.raises(InputError, match="not the problem that was measured any more"):
        run_replay(mutant, entry, **{**replayed, "problems": [edited]})
    with Matrix(path) as matrix, matrix.transaction() as connection:
        connection.execute("UPDATE mutants SET uid = 'eeee' WHERE uid = ?", (mutant,))
    with pytest.raises(InputError, match=r"mutant eeee is not made any more: .* of cuda/right"):
        run_replay("eeee", entry, **replayed)
    with Matrix(path) as matrix, matrix.transaction() as connection:
        connection.execute("DELETE FROM cells")
    with pytest.raises(InputError, match="was put to no entry: its state is ready"):
        run_replay("eeee", entry, **replayed)


def test_a_folder_that_another_process_works_on_is_left_alone_but_can_be_exported(world: Path, tmp_path: Path) -> None:
    out, delta = tmp_path / "out", tmp_path / "delta.xz"
    with Matrix(out / "matrix.sqlite") as matrix:
        matrix.add_problem("ramped", "0" * 64)
    rest = {"out": out, "device": "cpu", "substrates": world / "kernels"}
    with only_one(out) as mine:
        assert mine
        with pytest.raises(InputError, match=rf"process {os.getpid()} works on .*--budget 0 --export-delta"):
            run_calibrate([str(world / "problems")], export_delta=delta, **rest)
        assert run_calibrate([str(world / "problems")], budget="0", export_delta=delta, **rest) == 0
    assert delta.is_file()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--out .* cannot be used"):
        run_calibrate([str(world / "problems")], **{**rest, "out": tmp_path / "file" / "out"})


def test_an_operator_that_makes_an_uncompilable_edit_is_noticed(
    world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mutants are put to no entry and counted nowhere, and the operator is named."""

    def unbalance(tree: Tree) -> Iterator[Site]:
        for at in (i for i, c in enumerate(tree.source) if c == ";" and "for (int c" in tree.source[i - 60 : i]):
            yield Site((Edit(at, at + 1, ");"),), tree.source.count("\n", 0, at) + 1, "one bracket more")

    planted = Operator("unbalance", "arithmetic", "cuda", "adds a bracket", "it does not", (), unbalance)
    monkeypatch.setattr("kernelward.mutants.operators.operators_for", lambda backend: (planted,))
    how = options(world, without(first[1], tmp_path, "cells", "rows", "mutants"))
    tally = calibrate(how)
    assert tally.uncompilable == {"unbalance": 5}
    assert (tally.mutants, tally.evaluations, tally.faults) == (5, 0, [])
    with Matrix(how.matrix_path) as matrix:
        assert {row.state for row in matrix.mutants().values()} == {"compile-error"}


def test_an_oracle_with_a_loose_tolerance_is_noticed_by_the_forced_failure(
    world: Path, first: tuple[Tally, CalibrateOptions], tmp_path: Path
) -> None:
    """A tolerance that lets zeros pass drops its entry before any mutant is put to it."""
    _, how = first
    loose = options(world, without_mutants(how, tmp_path), budget_s=0.0)
    with Matrix(loose.matrix_path) as matrix:
        (problem,) = matrix.problems()
        rows = matrix.entries(problem, role="pool").values()
        admitted = next(row for row in rows if row.admitted and row.measured is not None)
        matrix.add_entry(replace(admitted, measured={**(admitted.measured or {}), "tolerance": [5.0]}))
        tally = Calibrator(loose, matrix, lambda *_: None).run()
        kept = {row.uid: row for row in matrix.entries(problem, role="pool").values()}
    assert ("ramped", admitted.uid) in tally.dropped
    assert not kept[admitted.uid].admitted
    assert kept[admitted.uid].reason == CLEAN_RUN


def test_any_beginning_of_the_order_of_mutants_is_a_fair_sample_of_families() -> None:
    substrate = next(s for s in list_substrates() if s.name == "cuda/layernorm__vec4")
    made = generate(substrate)
    order = ordered(made)
    assert sorted(m.id for m in order) == sorted(m.id for m in made)
    there = {m.family for m in made}
    assert {m.family for m in order[: len(there)]} == there
    assert there <= set(FAMILIES)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("25m", 1500), ("1.5h", 5400), ("7", 7)])
def test_budgets_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_bad_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--budget 'soon'"):
        seconds_of("soon")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="name a folder of problems"):
        folders_and_ids(["relu"])
    with pytest.raises(InputError, match="nothing to calibrate"):
        find_targets([tmp_path])
    with pytest.raises(InputError, match="--family rounding: there are arithmetic"):
        run_calibrate(["relu"], out=tmp_path, families=["rounding"])
    with pytest.raises(InputError, match="leave out --family"):
        run_calibrate(["relu"], out=tmp_path, families=["memory"], gate=True)
    assert os.getcwd() == str(tmp_path)


ADDING = '''"""The sum of all elements, added atomically.
problem: total
style: naive
"""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(y, x[i]);
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::zeros({1}, x.options());
    int n = x.numel();
    k<<<(n + 63) / 64, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
extension = load_inline(name="total", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=CUDA,
                        functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
'''


def test_a_race_at_an_entry_that_was_asked_for_it_because_of_another_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "total.py").write_text(
        PROBLEM.replace("torch.relu(x) + x.sum(dim=1, keepdim=True)", "x.sum().reshape(1)")
    )
    (tmp_path / "kernels" / "cuda").mkdir(parents=True)
    (tmp_path / "kernels" / "cuda" / "adds.py").write_text(ADDING)
    targets = tuple(find_targets([tmp_path / "problems"], substrates=tmp_path / "kernels"))
    how = CalibrateOptions(
        targets, tmp_path / "out", budget_s=600.0, backends=("cuda",), families=("synchronization",), per_substrate=1
    )
    assert calibrate(how).mutants == 1
    with Matrix(how.matrix_path) as matrix:
        rows = matrix.query("SELECT e.uid, e.recipe FROM cells c JOIN entries e ON e.id = c.entry WHERE class = 'race'")
        (mutant,) = (row.uid for row in matrix.mutants().values())
    shapes = Counter(json.dumps(json.loads(recipe).get("constants")) for _, recipe in rows)
    assert max(shapes.values()) > 1  # one entry of a shape asks for it in any case
    where = {"problems": [tmp_path / "problems"], "substrates": tmp_path / "kernels", "device": "cpu"}
    shape = shapes.most_common(1)[0][0]
    two = [uid for uid, recipe in rows if json.dumps(json.loads(recipe).get("constants")) == shape][:2]
    assert [run_replay(mutant, uid, matrix=how.matrix_path, **where) for uid in two] == [0, 0]
