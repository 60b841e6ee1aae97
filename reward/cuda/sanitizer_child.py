"""The process that compute-sanitizer watches: one forward call of a candidate. `sanitizer.sanitize` starts it."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Read the request in the folder named on the command line, and run it."""
    import torch

    from ...suites.problem import load_problem, problem_from_source
    from ..sandbox.engine import LoadContext
    from .engine_gpu import CudaEngine
    from .sanitizer_workshop import SOCKET
    from .workshop import connect_at

    home = Path(sys.argv[1])
    os.chdir(home)
    request = json.loads((home / "request.json").read_text())
    engine = CudaEngine(bench=lambda arch: connect_at(Path(SOCKET), arch))
    engine.warm()
    loaded = load_problem(problem_from_source((home / "problem.py").read_text()), request["constants"])
    factory = engine.load((home / "candidate.py").read_text(), LoadContext(home, "cuda"))
    seed = int(request["seed"])
    initial = loaded.init_inputs(seed, "cuda")
    inputs = loaded.own_draw(seed, "cuda")
    with torch.no_grad():
        model = factory(*initial)
        if isinstance(model, torch.nn.Module):
            model = model.cuda()
        model(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
