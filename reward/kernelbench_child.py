"""Runs a KernelBench checkout's own evaluation of one candidate: `python -m kernelward.reward.kernelbench_child`.

Reads one JSON request from standard input and writes one JSON reply to a pipe.
The candidate shares this process with the checker, as the checker has it: a reply can be forged by a hostile candidate,
so it never raises a reward by itself.
"""

import argparse
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import socket
import sys
import tempfile
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .sandbox import confinement, isolation, linux
from .sandbox.isolation import IsolationReport
from .sandbox.limits import Limits
from .sandbox.supervisor import Supervisor

#: What a checkout imports and its evaluation never uses: model providers, data sets, cloud runners.
UNRELATED = (
    *("openai", "litellm", "modal", "dotenv", "datasets"),
    *("together", "anthropic", "google.genai", "google.generativeai"),  # older checkouts
)
#: What its evaluation imports; a stand-in is served only where the real one is not installed.
SUPPORTING = ("pydantic", "requests", "tqdm", "transformers", "google")

#: Layers that a candidate under the real checker goes without: its own /proc and mounts need a process 1 of its own.
_LEFT_OUT = ("pid-namespace", "mount-namespace")


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
    """Run the checkout's evaluation; its arguments that another version does not have are left out."""
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
        "hidden_test_path": request.get("hidden_test_path"),  # kernel_bench_verified's
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


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request; whatever the checkout lets escape is part of it."""
    stage = "import"
    try:
        finder = install_stand_ins()
        module = import_evaluation(Path(request["checkout"]))
        if request["op"] == "probe":
            known = list(inspect.signature(module.eval_kernel_against_ref).parameters)
            return {"status": "probe", "parameters": known, "stand_ins": sorted(finder.served)}
        stage = "evaluation"
        return evaluate(module, request)
    except Exception as error:
        traceback.print_exc()
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return {"status": "raised", "stage": stage, "error": f"{kind}: {error}"[:2000]}


def run(
    request: dict[str, Any], reply: int, output: int, directory: Path, limits: Limits, report: IsolationReport | None
) -> None:
    """In the fork: answer the request in a session and a directory of its own."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(directory)
    own = str(directory)
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), own))
    os.environ.update(TORCH_EXTENSIONS_DIR=f"{own}/extensions", TRITON_CACHE_DIR=f"{own}/triton")
    tempfile.tempdir = None

    device = request["device"].partition(":")[0]
    try:
        if request["device_first"]:
            start_device(device)
        if report is not None:  # else before CUDA starts, so that the threads of its driver are confined as well
            rules = confinement.readable(device, own_proc=False, extra=[Path(request["checkout"])])
            confinement.lock_down(report, rules, directory, limits, device)
        if not request["device_first"]:
            start_device(device)
        reply_text = json.dumps(answer(request))
    except (RuntimeError, AssertionError) as error:
        reply_text = json.dumps({"status": "no-device", "stage": "import", "error": f"CUDA does not start: {error}"})
    with os.fdopen(reply, "w", encoding="utf-8") as pipe:
        pipe.write(reply_text)
    os._exit(0)


def start_device(device: str) -> None:
    """A CUDA context, so that a GPU that cannot be reached is never blamed on the candidate.

    Raises:
        RuntimeError, AssertionError: it does not start here, or torch was built without it.
    """
    if device == "cuda":
        import torch

        torch.cuda.init()
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()


def main() -> None:
    """Supervise the answer to one request, so that nothing the candidate started outlives it."""
    parser = argparse.ArgumentParser()
    for name in ("control", "lifeline", "reply"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    for fd in (options.control, options.lifeline, options.reply):
        os.set_inheritable(fd, False)
    request = json.loads(sys.stdin.buffer.read())
    limits = Limits.from_dict(request["limits"])
    report = isolation.choose(without=_LEFT_OUT) if request["confine"] else None
    if report is not None:
        if "user-namespace" in report:
            isolation.enter_user_namespace()
        isolation.enter_namespaces(report, limits, ())
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=options.control)
    with tempfile.TemporaryDirectory(prefix="kernelward-official-", ignore_cleanup_errors=True) as name:
        directory = Path(name)

        def start(output: int) -> None:
            run(request, options.reply, output, directory, limits, report)

        Supervisor(control, options.lifeline, limits, start, directory, alone=False).run()


if __name__ == "__main__":
    main()
