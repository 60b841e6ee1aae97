"""Runs a KernelBench checkout's own evaluation of one candidate: `python -m kernelward.reward.kernelbench_child`.

Reads one JSON request from standard input and writes one JSON reply to the file descriptor that the request names.
The candidate shares this process with the checker, as the checker has it: a reply can be forged by a hostile candidate,
so it never raises a reward by itself.
"""

import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What a checkout imports and its evaluation never uses: model providers, data sets, cloud runners.
UNRELATED = (
    *("openai", "litellm", "modal", "dotenv", "datasets"),
    *("together", "anthropic", "google.genai", "google.generativeai"),  # older checkouts
)
#: What its evaluation imports; a stand-in is served only where the real one is not installed.
SUPPORTING = ("pydantic", "requests", "tqdm", "transformers", "google")


class Absent:
    """Stands for anything taken from a module that is not there; only using it fails."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> "Absent":
        return self

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()


class BaseModel:
    """The part of pydantic's BaseModel that KernelExecResult uses: annotated fields with defaults, set by keyword."""

    def __init__(self, **values: Any) -> None:
        names = [name for cls in reversed(type(self).__mro__) for name in inspect.get_annotations(cls)]
        for name in names:
            if name not in values and not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs {name}")
            setattr(self, name, values.pop(name) if name in values else copy.deepcopy(getattr(type(self), name)))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")


def _first_argument(value: Any = None, *args: Any, **kwargs: Any) -> Any:
    return value


_PROVIDED: dict[str, dict[str, Any]] = {"pydantic": {"BaseModel": BaseModel}, "tqdm": {"tqdm": _first_argument}}


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves stand-ins for exactly the named modules (and what is below them)."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.served: set[str] = set()

    def find_spec(
        self, fullname: str, path: Any = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for a named module; None leaves the import to the other finders."""
        parts = fullname.split(".")
        if not any(".".join(parts[: i + 1]) in self.names for i in range(len(parts))):
            return None
        self.served.add(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module whose every attribute is `Absent`."""
        module = types.ModuleType(spec.name)
        module.__dict__.update(_PROVIDED.get(spec.name, {}))
        module.__dict__["__getattr__"] = _absent_attribute
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


def _absent_attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent


def install_stand_ins() -> StandInFinder:
    """Serve the unrelated modules, and those supporting ones that are not installed, from now on."""
    missing = [name for name in SUPPORTING if importlib.util.find_spec(name) is None]
    finder = StandInFinder((*UNRELATED, *missing))
    sys.meta_path.insert(0, finder)
    return finder


def import_evaluation(checkout: Path) -> types.ModuleType:
    """The module of a checkout that defines `eval_kernel_against_ref`.

    Raises:
        FileNotFoundError: neither the package layout nor the older one is there.
    """
    layouts = (("src/kernelbench/eval.py", "src", "kernelbench.eval"), ("src/eval.py", ".", "src.eval"))
    for file, root, name in layouts:
        if (checkout / file).is_file():
            sys.path.insert(0, str((checkout / root).resolve()))
            return importlib.import_module(name)
    raise FileNotFoundError(
        f"{checkout} is no KernelBench checkout: it has neither src/kernelbench/eval.py nor src/eval.py"
    )


def evaluate(module: types.ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Run the checkout's evaluation; its arguments that an older version does not have are left out."""
    import torch

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[request["precision"]]
    wanted = {
        "original_model_src": request["reference"],
        "custom_model_src": request["candidate"],
        "seed_num": 42,
        "num_correct_trials": request["trials"],
        "measure_performance": False,
        "verbose": False,
        "build_dir": None,
        "device": torch.device("cuda:0"),  # the parent made the wanted one the only visible one
        "backend": request["backend"],
        "precision": dtype,
    }
    known = inspect.signature(module.eval_kernel_against_ref).parameters
    result = module.eval_kernel_against_ref(**{k: v for k, v in wanted.items() if k in known})
    if result is None:
        return {"status": "none"}
    metadata = {str(k): v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in result.metadata.items()}
    return {
        "status": "result",
        "compiled": bool(result.compiled),
        "correctness": bool(result.correctness),
        "metadata": metadata,
    }


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.read())
    with os.fdopen(request["reply_fd"], "w", encoding="utf-8") as reply:
        os.set_inheritable(reply.fileno(), False)
        try:
            finder = install_stand_ins()
            with contextlib.redirect_stdout(sys.stderr):
                module = import_evaluation(Path(request["checkout"]))
                if request["op"] == "probe":
                    known = list(inspect.signature(module.eval_kernel_against_ref).parameters)
                    answer = {"status": "probe", "parameters": known, "stand_ins": sorted(finder.served)}
                else:
                    answer = evaluate(module, request)
        except Exception as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            answer = {
                "status": "raised",
                "error": f"{type(error).__module__}.{type(error).__qualname__}: {error}"[:2000],
                "during": "evaluation" if any(name.endswith("eval.py") for name in frames) else "import",
            }
        json.dump(answer, reply)


if __name__ == "__main__":
    main()
