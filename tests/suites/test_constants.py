import ast
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites.constants import independent_constants, module_constants, rewrite_constants
from kernelward.suites.errors import InputError


def constants(source: str) -> dict[str, Any]:
    return module_constants(ast.parse(source))


def run(source: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(rewrite_constants(ast.parse(source), changes or {}), "problem.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("N = 16", {"N": 16}),
        ("N: int = 16", {"N": 16}),
        ("N: int", {}),
        ("M = 1024 * 2\nK = M // 4 + 1", {"M": 2048, "K": 513}),
        ("D, H, W = 24, 32, 33", {"D": 24, "H": 32, "W": 33}),
        ("(a, (b, c)) = 1, (2, 3)", {"a": 1, "b": 2, "c": 3}),
        ("height = width = 64", {"height": 64, "width": 64}),
        ("C = 8\nshape = (C, 1, 1)", {"C": 8, "shape": (8, 1, 1)}),
        ("shape = (4, 5)\nrows = shape[0]\nboth = (2, *shape)", {"shape": (4, 5), "rows": 4, "both": (2, 4, 5)}),
        ("n = 3\nn += 4", {"n": 7}),
        ("n = 3\nn = 5", {"n": 5}),
        ("eps = -1e-5\nflag = not True\nname = 'x'", {"eps": -1e-5, "flag": False, "name": "x"}),
        ("n = max(3, int(4.5))", {"n": 4}),
        ("sizes = [3] * 2", {"sizes": [3, 3]}),
    ],
)
def test_module_constants_are_read(source: str, expected: dict[str, Any]) -> None:
    assert constants(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import os\nN = os.cpu_count()",
        "N = 4\nN = object()",
        "N = unknown + 1",
        "a, b = 1, 2, 3",
        "a, *b = 1, 2, 3",
        "N = 1 // 0",
        "N = 10 ** 10 ** 10",
        "N = 'x' * 10 ** 9",
        "N = f(3)",
        "def f():\n    N = 3",
        "x.y = 3",
        "if True:\n    N = 3",
    ],
)
def test_what_is_no_literal_is_no_constant(source: str) -> None:
    assert constants(source) == {}


def test_constants_computed_from_others_are_not_independent() -> None:
    source = "C = 8\ngroups = C\nshape = (C, 1)\nother = 5\nm, n = 3, C\nk = 2\nk += C"
    assert independent_constants(ast.parse(source)) == {"C": 8, "other": 5}


def test_derived_constants_follow_a_change() -> None:
    names = run("C = 8\nshape = (C, 1, 1)\nD, H = C * 2, 5", {"C": 3})
    assert (names["C"], names["shape"], names["D"], names["H"]) == (3, (3, 1, 1), 6, 5)


def test_every_binding_of_a_changed_constant_is_replaced() -> None:
    names = run("height = width = 2048\nsnapshot = height\nheight, width = 32, 32", {"height": 7})
    assert (names["height"], names["snapshot"], names["width"]) == (7, 7, 32)


def test_augmented_and_annotated_bindings_are_replaced() -> None:
    names = run("n: int = 3\nn += 4\nm = n", {"n": 10})
    assert (names["n"], names["m"]) == (10, 10)


def test_a_change_may_be_a_tuple_or_a_list() -> None:
    assert run("shape = (1, 2)\nhidden = [3]", {"shape": (9,), "hidden": [4, 5]})["shape"] == (9,)


def test_the_given_tree_is_left_alone() -> None:
    tree = ast.parse("N = 16")
    before = ast.dump(tree)
    rewrite_constants(tree, {"N": 3})
    assert ast.dump(tree) == before


def test_line_numbers_stay_those_of_the_file() -> None:
    source = "N = 16\nM = 3\n\n\ndef f():\n    return 1 / 0\n"
    names = run(source, {"N": 1, "M": 2})
    with pytest.raises(ZeroDivisionError) as caught:
        names["f"]()
    assert caught.traceback[-1].lineno + 1 == 6


def test_an_unknown_constant_is_an_input_error_that_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no module constant 'batch'.*M, N"):
        rewrite_constants(ast.parse("N = 1\nM = 2"), {"batch": 3})


def test_a_value_that_is_no_literal_is_an_input_error() -> None:
    with pytest.raises(InputError, match="must get a literal, not a object"):
        rewrite_constants(ast.parse("N = 1"), {"N": object()})


names_ = st.sampled_from(["a", "b", "c", "d"])
expressions = st.recursive(
    st.one_of(st.integers(-9, 9).map(str), names_),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda xs: "(" + ", ".join(xs) + ",)"),
    ),
    max_leaves=4,
)
statements = st.one_of(
    st.tuples(names_, expressions).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(names_, names_, st.integers(-9, 9)).map(lambda t: f"{t[0]} = {t[1]} = {t[2]}"),
    st.tuples(names_, names_, expressions, expressions).map(lambda t: f"{t[0]}, {t[1]} = {t[2]}, {t[3]}"),
    st.tuples(names_, st.integers(-9, 9)).map(lambda t: f"{t[0]}: int = {t[1]}"),
)
programs = st.lists(statements, min_size=1, max_size=6).map("\n".join)


def executed(source: str) -> dict[str, Any] | None:
    names: dict[str, Any] = {}
    try:
        exec(source, names)
    except Exception:
        return None
    return without_extras(names)


def without_extras(names: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in names.items() if not k.startswith("__")}


@settings(max_examples=200, deadline=None)
@given(programs)
def test_read_constants_are_what_python_computes(source: str) -> None:
    truth = executed(source)
    if truth is not None:
        assert constants(source) == truth


@settings(max_examples=200, deadline=None)
@given(programs, names_, st.integers(10, 99))
def test_a_changed_program_behaves_as_if_every_binding_gave_the_new_value(source: str, name: str, value: int) -> None:
    if executed(source) is None or name not in constants(source):
        return
    by_hand = "\n".join(f"{line}; {name} = {value}" if binds(line, name) else line for line in source.split("\n"))
    truth = executed(by_hand)
    if truth is None:
        return
    assert without_extras(run(source, {name: value})) == truth


def binds(line: str, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(ast.parse(line))
    )
