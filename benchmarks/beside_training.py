"""What the watcher does beside a training, and what it costs: everything real, on a CPU, in copies that may be edited.

    python benchmarks/beside_training.py follow        edits of a suite, an operator and a substrate; cells counted
    python benchmarks/beside_training.py throughput    verdicts a minute with and without the watcher, by turns
    python benchmarks/beside_training.py killed        kill -9 of trainer, watcher and both; stores held together
    python benchmarks/beside_training.py exploit       a suite with a hole, and a policy that finds it
    python benchmarks/beside_training.py               all four

The toy policy of examples/ is trained on three problems; one CUDA kernel of each is broken on the emulator. The first
run calibrates (some minutes), later ones start from that. --out/*.json gets the figures.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from beside import exploit, follow, killed, speed
from beside.world import World

PARTS = ("follow", "throughput", "killed", "exploit")


def main() -> int:
    """Run the parts; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="all, where none is named")
    parser.add_argument("--out", type=Path, default=Path("build/beside"), help="folder for copies and figures")
    parser.add_argument(
        "--at-once",
        action="store_true",
        help="follow: no low priority, to count cells where other work fills the machine",
    )
    parser.add_argument("--pairs", type=int, default=6, help="throughput: pairs of segments (goes on where it stopped)")
    parser.add_argument("--seconds", type=float, default=70.0, help="throughput: of a segment")
    parser.add_argument("--rounds", type=int, default=12, help="killed: how often")
    parser.add_argument("--seed", type=int, default=0, help="killed: of the moments")
    parser.add_argument("--by", choices=("audit", "bank", "both"), default="both", help="exploit: who looks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.pop("KERNELWARD_CONFIG", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends as well
    torch.set_num_threads(1)
    base = World((options.out / "base").resolve())
    began = time.monotonic()
    base.prepare()
    spent = time.monotonic() - began
    print(f"calibrated after {spent:.0f} s: {len(base.cells())} cells of {len(base.ready())} mutants", flush=True)
    parts: dict[str, Callable[[World, argparse.Namespace], tuple[bool, dict[str, Any], list[str]]]] = {
        "follow": _follow,
        "throughput": _throughput,
        "killed": _killed,
        "exploit": _exploit,
    }
    good = True
    for name in options.part or PARTS:
        print(f"{name}:", flush=True)
        reached, figures, said = parts[name](base, options)
        machine = f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, torch {torch.__version__}"
        (options.out / f"{name}.json").write_text(json.dumps({"machine": machine, **figures}, indent=1) + "\n")
        print("\n".join(f"  {line}" for line in said), flush=True)
        good &= reached
    return 0 if good else 1


def _world(base: World, name: str, anew: bool = True) -> World:
    """A copy of the calibrated world."""
    root = base.root.parent / name
    if anew:
        shutil.rmtree(root, ignore_errors=True)
    if not root.exists():
        shutil.copytree(base.root, root, ignore=shutil.ignore_patterns("*.log"))
    return World(root, base.per_substrate)


def _follow(base: World, options: argparse.Namespace) -> tuple[bool, dict[str, Any], list[str]]:
    found = follow.follow(_world(base, "follow"), options.at_once)
    rows = follow.plain(found)
    return all(r["exact"] and r["in_time"] for r in rows), {"edits": rows}, follow.show(found)


def _throughput(base: World, options: argparse.Namespace) -> tuple[bool, dict[str, Any], list[str]]:
    world = _world(base, "throughput", anew=False)
    os.environ["XDG_CACHE_HOME"] = str(world.root / "cache")
    segments = speed.compare(world, options.pairs, options.seconds)
    cost = speed.Cost.of(segments)
    return cost.ratio > speed.GOAL, speed.plain(segments, cost), speed.show(cost)


def _killed(base: World, options: argparse.Namespace) -> tuple[bool, dict[str, Any], list[str]]:
    world = _world(base, "killed")
    found = killed.survive(world, base, options.rounds, options.seed)
    return found.whole, killed.plain(found), killed.show(found)


def _exploit(base: World, options: argparse.Namespace) -> tuple[bool, dict[str, Any], list[str]]:
    world = _world(base, f"exploit-{options.by}")
    story = exploit.exploit(world, options.by)
    ended = story.paid_after <= exploit.COMPILE < story.paid_before
    return ended, exploit.plain(story), exploit.show(story, world.root / "training" / "trainer.out")


if __name__ == "__main__":
    sys.exit(main())
