import random
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from kernelward.suites.errors import InputError
from kernelward.suites.folders import PROBLEMS_VARIABLE
from kernelward.suites.problem import (
    Problem,
    find_problem,
    forward,
    is_out_of_memory,
    kernelbench_trial_seeds,
    list_problems,
    load_problem,
    problem_from_source,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "problems"

SOURCE = textwrap.dedent(
    """\
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.linear = nn.Linear(features, 3)

        def forward(self, x):
            return self.linear(x)

    batch_size = 4
    features = 5

    def get_inputs():
        return [torch.rand(batch_size, features)]

    def get_init_inputs():
        return [features]
    """
)


def changed(old: str, new: str) -> str:
    assert old in SOURCE
    return SOURCE.replace(old, new)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder laid out like a KernelBench checkout."""
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for name in ("1_First", "2_Second", "12_Twelfth", "23_Softmax"):
        (level / f"{name}.py").write_text(SOURCE)
    (level / "__init__.py").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.py").write_text("print('Model')")
    return tmp_path


# ---------------------------------------------------------------- finding


@pytest.mark.parametrize("inner", ["", "KernelBench", "KernelBench/level1"])
@pytest.mark.parametrize("ref", ["level1/23_Softmax", "level1/23", "level1/23_Softmax.py", "23_Softmax"])
def test_an_id_is_found_from_any_of_a_checkouts_folders(checkout: Path, inner: str, ref: str) -> None:
    found = find_problem(ref, checkout / inner)
    assert found.id == "level1/23_Softmax"
    assert found.source == SOURCE


def test_a_number_does_not_match_a_longer_one(checkout: Path) -> None:
    assert find_problem("level1/2", checkout).id == "level1/2_Second"


def test_the_environment_names_the_folder(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROBLEMS_VARIABLE, str(checkout))
    assert find_problem("level1/1").id == "level1/1_First"


def test_a_folder_given_outright_wins_over_the_environment(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROBLEMS_VARIABLE, "/nowhere")
    assert find_problem("level1/1", checkout).id == "level1/1_First"


def test_a_path_gets_the_same_id_as_a_lookup(checkout: Path) -> None:
    path = checkout / "KernelBench" / "level1" / "23_Softmax.py"
    assert find_problem(str(path)).id == "level1/23_Softmax"
    assert find_problem(str(EXAMPLES / "relu.py")).id == find_problem("relu", EXAMPLES).id == "relu"


def test_a_folder_with_one_problem_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_text(SOURCE)
    assert find_problem(str(tmp_path)).id == "only"


def test_problems_are_listed_by_level_and_number(checkout: Path) -> None:
    assert [p.id for p in list_problems(checkout)] == [
        "level1/1_First",
        "level1/2_Second",
        "level1/12_Twelfth",
        "level1/23_Softmax",
    ]


def test_a_file_without_a_model_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("x = 1")
    (tmp_path / "one.py").write_text(SOURCE)
    assert [p.id for p in list_problems(tmp_path)] == ["one"]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("level1/99", r"no problem 'level1/99' in .*it holds 4 problems \(level1/12_Twelfth"),
        ("nowhere.py", "no problem 'nowhere.py' in"),
        ("/nowhere/x.py", "no problem file /nowhere/x.py"),
        ("", "no problem was named"),
    ],
)
def test_a_name_that_nothing_goes_by(checkout: Path, ref: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_problem(ref, checkout)


def test_an_id_without_a_folder_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROBLEMS_VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"--problems DIR.*KERNELBENCH_DIR"):
        find_problem("level1/23")


def test_a_missing_file_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROBLEMS_VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"no problem file absent\.py: check the path"):
        find_problem("absent.py")


def test_a_missing_problems_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder of problems at"):
        find_problem("level1/1", tmp_path / "absent")


def test_an_ambiguous_id_names_the_possibilities(checkout: Path) -> None:
    level2 = checkout / "KernelBench" / "level2"
    level2.mkdir()
    (level2 / "23_Softmax.py").write_text(SOURCE)
    with pytest.raises(InputError, match=r"ambiguous.*level1/23_Softmax, level2/23_Softmax"):
        find_problem("23_Softmax", checkout)


def test_a_folder_with_several_problems_is_not_one(checkout: Path) -> None:
    with pytest.raises(InputError, match="holds 4 problems, not one"):
        find_problem(str(checkout))


# ---------------------------------------------------------------- parsing


def test_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\n\ndef get_inputs(:\n    pass\n")
    with pytest.raises(InputError, match=rf"{path}, line 3: syntax error"):
        find_problem(str(path))


def test_a_null_byte_is_a_syntax_error() -> None:
    with pytest.raises(InputError, match="syntax error"):
        problem_from_source("x = 1\0")


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# gr\xf6\xdfe\n")
    with pytest.raises(InputError, match=r"not UTF-8 \(byte 4\): save it as UTF-8"):
        find_problem(str(path))


def test_a_byte_order_mark_is_no_part_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "bom.py"
    path.write_bytes(b"\xef\xbb\xbf" + SOURCE.encode())
    assert find_problem(str(path)).source == SOURCE


@pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
def test_a_missing_definition_is_named(name: str) -> None:
    for keyword in ("class", "def"):
        if f"{keyword} {name}" in SOURCE:
            source = changed(f"{keyword} {name}(", f"{keyword} Other(")
    with pytest.raises(InputError, match=f"has no {name} at top level: define {name}"):
        problem_from_source(source)


@pytest.mark.parametrize(
    "definition",
    ["Model = Other", "from m import Model", "if True:\n    class Model: pass", "from m import *", "import m as Model"],
)
def test_a_name_may_be_bound_in_any_way(definition: str) -> None:
    source = changed("class Model(", "class Other(") + "\n" + definition
    assert problem_from_source(source).source == source


def test_a_definition_inside_a_function_does_not_count() -> None:
    with pytest.raises(InputError, match="has no Model"):
        problem_from_source("def get_inputs(): Model = 1\ndef get_init_inputs(): return []")


def test_source_text_gets_an_id_from_its_hash() -> None:
    problem = problem_from_source(SOURCE)
    assert problem.id == f"source-{problem.hash[:12]}"
    assert problem_from_source(SOURCE, "mine").hash == problem.hash
    assert problem_from_source(SOURCE + "\n").hash != problem.hash


def test_constants_are_those_of_the_module() -> None:
    assert problem_from_source(SOURCE).constants == {"batch_size": 4, "features": 5}


# ---------------------------------------------------------------- loading


def load(source: str, **constants: object) -> object:
    return load_problem(problem_from_source(source), constants)


def test_changed_constants_change_inputs_and_constructor_arguments() -> None:
    loaded = load_problem(problem_from_source(SOURCE), {"features": 7})
    assert loaded.own_draw(0)[0].shape == (4, 7)
    assert loaded.init_inputs(0) == [7]


def test_an_error_in_the_module_names_the_line() -> None:
    with pytest.raises(InputError, match=r"line 21: the module raises ZeroDivisionError"):
        load(SOURCE + "\nx = 1 / 0\n")


def test_an_error_in_get_inputs_names_the_line_and_the_changed_constants() -> None:
    source = changed("torch.rand(batch_size, features)", "torch.rand(batch_size, -features)")
    loaded = load_problem(problem_from_source(source), {"batch_size": 9})
    with pytest.raises(InputError, match=r"line 16: get_inputs raises RuntimeError.*\(with batch_size=9\)"):
        loaded.own_draw(0)


def test_an_error_in_the_constructor_names_the_line() -> None:
    loaded = load_problem(problem_from_source(changed("nn.Linear(features, 3)", "nn.Linear(features, '3')")))
    with pytest.raises(InputError, match=r"line 7: Model.__init__ raises TypeError"):
        loaded.build_model(loaded.init_inputs(0), 0)


def test_a_missing_module_is_named() -> None:
    with pytest.raises(InputError, match="imports no_such_module, which is not installed: install it"):
        load("import no_such_module\n" + SOURCE)


def test_a_module_that_exits_is_an_input_error() -> None:
    with pytest.raises(InputError, match="raises SystemExit"):
        load(SOURCE + "\nraise SystemExit(0)\n")


def test_a_draw_that_is_no_list_is_an_input_error() -> None:
    loaded = load_problem(problem_from_source(changed("return [torch.rand(batch_size, features)]", "return 3")))
    with pytest.raises(InputError, match=r"get_inputs\(\) returns a int; it must return a list"):
        loaded.own_draw(0)


def test_a_model_that_is_no_module_is_an_input_error() -> None:
    source = "def Model(): return 3\ndef get_inputs(): return []\ndef get_init_inputs(): return []"
    with pytest.raises(InputError, match=r"Model makes a int, not a torch\.nn\.Module"):
        load_problem(problem_from_source(source)).build_model([], 0)


def test_running_out_of_memory_is_not_the_users_fault() -> None:
    loaded = load_problem(problem_from_source(SOURCE), {"batch_size": 2**55})
    with pytest.raises(MemoryError, match="get_inputs ran out of memory"):
        loaded.own_draw(0)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_recognised(error: BaseException, memory: bool) -> None:
    assert is_out_of_memory(error) is memory


def test_a_dataclass_with_postponed_annotations_loads() -> None:
    extra = "from __future__ import annotations\nfrom dataclasses import dataclass\n" + SOURCE
    load(extra + "\n@dataclass\nclass Config:\n    x: ClassVar[int] = 3\n")


def test_nothing_stays_in_the_module_table() -> None:
    before = set(sys.modules)
    load(SOURCE)
    assert {m for m in set(sys.modules) - before if "problem" in m} == set()


# ---------------------------------------------------------------- random streams


def test_trial_seeds_are_kernelbenchs() -> None:
    torch.manual_seed(42)
    expected = [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(5)]
    assert kernelbench_trial_seeds(5) == expected
    assert kernelbench_trial_seeds(2) == expected[:2]


def test_trial_seeds_leave_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    kernelbench_trial_seeds(5)
    assert torch.equal(torch.rand(3), expected)


def test_an_own_draw_is_what_get_inputs_gives_after_manual_seed() -> None:
    loaded = load_problem(problem_from_source(SOURCE))
    for seed in kernelbench_trial_seeds(3):
        torch.manual_seed(seed)
        expected = torch.rand(4, 5)
        assert torch.equal(loaded.own_draw(seed)[0], expected)


def test_skipped_draws_are_thrown_away() -> None:
    loaded = load_problem(problem_from_source(SOURCE))
    torch.manual_seed(3)
    _, expected = torch.rand(4, 5), torch.rand(4, 5)
    assert torch.equal(loaded.own_draw(3, skip=1)[0], expected)


def test_parameters_are_what_the_constructor_gives_after_manual_seed() -> None:
    loaded = load_problem(problem_from_source(SOURCE))
    torch.manual_seed(42)
    expected = torch.nn.Linear(5, 3)
    model = loaded.build_model(loaded.init_inputs(42), 42)
    assert torch.equal(model.linear.weight, expected.weight)
    assert model.training


def test_numpy_and_random_are_seeded_as_well() -> None:
    source = changed(
        "return [torch.rand(batch_size, features)]",
        "import random, numpy\n    return [random.random(), numpy.random.rand()]",
    )
    loaded = load_problem(problem_from_source(source))
    np.random.seed(7)
    random.seed(7)
    expected = [random.random(), np.random.rand()]
    assert loaded.own_draw(7) == expected


def test_models_can_be_had_in_other_dtypes_and_on_the_meta_device() -> None:
    loaded = load_problem(problem_from_source(SOURCE))
    assert loaded.build_model([5], 0, dtype=torch.float64).linear.weight.dtype is torch.float64
    assert loaded.build_model([5], 0, "meta").linear.weight.is_meta
    assert loaded.own_draw(0, "meta")[0].is_meta


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the file's own choice is honoured")
@pytest.mark.parametrize(
    "draw", ["torch.rand(4, 5, device='cuda')", "torch.rand(4, 5).cuda()", "torch.rand(4, 5).to('cuda', torch.float64)"]
)
def test_a_device_that_is_not_there_is_replaced(draw: str) -> None:
    loaded = load_problem(problem_from_source(changed("torch.rand(batch_size, features)", draw)))
    (x,) = loaded.own_draw(0)
    assert x.device.type == "cpu"
    assert loaded.own_draw(0, "meta")[0].is_meta
    torch.manual_seed(0)
    assert torch.equal(x.float(), torch.rand(4, 5))


def test_draws_in_threads_do_not_disturb_each_other() -> None:
    source = changed("[torch.rand(batch_size, features)]", "[torch.rand(batch_size, features) for _ in range(50)]")
    loaded = load_problem(problem_from_source(source))
    expected = {seed: torch.stack(loaded.own_draw(seed)) for seed in range(4)}
    wrong: list[int] = []

    def draw(seed: int) -> None:
        for _ in range(20):
            if not torch.equal(torch.stack(loaded.own_draw(seed)), expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_random_forward_repeats_under_its_seed() -> None:
    model = torch.nn.Dropout(0.5)
    x = [torch.ones(64)]
    assert torch.equal(forward(model, x, 3), forward(model, x, 3))
    assert not torch.equal(forward(model, x, 3), forward(model, x, 4))


# ---------------------------------------------------------------- our own problems


@pytest.mark.parametrize("problem", list_problems(EXAMPLES), ids=lambda p: p.id)
def test_every_example_runs_as_declared_and_fits_a_small_machine(problem: Problem) -> None:
    loaded = load_problem(problem)
    inputs = loaded.own_draw(0)
    outputs = forward(loaded.build_model(loaded.init_inputs(0), 0), inputs, 0)
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    assert all(torch.isfinite(t.double()).all() for t in tensors)
    assert sum(t.numel() * t.element_size() for t in inputs) <= 64 << 20


def test_the_examples_cover_what_checkers_are_fooled_on() -> None:
    problems = {p.id: p for p in list_problems(EXAMPLES)}
    assert len(problems) >= 20
    assert problems["softmax_wide"].constants["dim"] == 393_216
    fills = ("torch.randn", "torch.normal")
    assert not [id for id, p in problems.items() if any(f in p.source.split("def get_inputs")[1] for f in fills)]
