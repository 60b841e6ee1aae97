"""Exceptions cross processes: what a lane or a builder raises arrives as it was."""

import importlib
import inspect
import pickle
import pkgutil

import kernelward.mutants
import kernelward.reward
import kernelward.suites
import pytest


def public_exceptions() -> list[type[Exception]]:
    """Every exception class of the three rooms that a caller may name."""
    found: set[type[Exception]] = set()
    for room in (kernelward.suites, kernelward.reward, kernelward.mutants):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            try:
                loaded = importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name != "cuda":  # these bindings come with torch's CUDA build
                    raise
                continue
            own = vars(loaded).values()
            found |= {c for c in own if inspect.isclass(c) and issubclass(c, Exception) and c.__module__ == module.name}
    return sorted((c for c in found if not c.__name__.startswith("_")), key=lambda c: c.__name__)


@pytest.mark.parametrize("kind", public_exceptions(), ids=lambda kind: kind.__name__)
def test_a_pickled_exception_is_the_same_one(kind: type[Exception]) -> None:
    arguments: tuple[object, ...] = ("why it failed",)
    if "__init__" in vars(kind):
        needed = [
            p for p in list(inspect.signature(kind.__init__).parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY
        ]
        arguments = tuple(3 if p.annotation in (int, "int") else f"{p.name} said" for p in needed)
    error = kind(*arguments)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args) == (str(error), error.args)
    assert vars(again) == vars(error)
    error.args = ("told otherwise",)  # as a candidate may that catches it
    assert str(error) == "told otherwise"


def test_exceptions_of_all_three_rooms_are_tried() -> None:
    names = {c.__name__ for c in public_exceptions()}
    assert {"ChildFailure", "CompileFailure", "KernelBroken", "OracleError"} <= names
