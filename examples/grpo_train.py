"""Train a toy policy with TRL's GRPOTrainer and a kernel reward, from random weights, on a CPU.

    python examples/grpo_train.py                             one run, paid by `kernelward`
    python examples/grpo_train.py --protocol kernelbench      the same run, paid by the official check
    python examples/grpo_train.py --compare                   five seeds of each, a picture and the numbers

The policy is a toy (see toy_policy.py): it chooses two of some twenty pieces of source text, so it cannot discover a
cheat that nobody wrote down. What the runs show is the other half: which of the candidates within reach a reward makes
likely. That is fair by construction. Both runs of a pair start from the same weights with the same random stream and
the same budget; for every problem the pieces that cheat are fewer than the honest ones, so cheats are the rarer class
under the untrained policy (printed); and what the shaping pays (toy_reward.yaml) is the same for both: a little for a
candidate that runs, much for one that the protocol accepts, and up to half as much again for a short one, in place of
a speed-up.

"Correct" always means the verdict of `kernelward` under all of a problem's entries, never knowledge about the pieces.
That knowledge is used at the end, to count where the verdicts differ from it.
"""

import argparse
import json
import math
import os
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import toy_policy
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.verdict import Outcome
from kernelward.suites.errors import InputError

HERE = Path(__file__).parent
HARDENED = "kernelward"
OFFICIAL = "kernelbench"
GROUP = 16  # completions per prompt and step
BATCH = GROUP * len(toy_policy.PROBLEMS)
CURVES = ("correct", "accepted", "accepted_wrong")


class WatchedReward(KernelReward):
    """The reward, with a note of every completion that it scored, and a sign of life."""

    def __init__(self, config: RewardConfig) -> None:
        super().__init__(config)
        self.seen: list[tuple[str, str]] = []  # (problem, completion), in order

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Score, as `KernelReward` does."""
        step = len(self.seen) // BATCH
        if step % 10 == 0:
            print(f"  {self.config.protocol}: step {step}", file=sys.stderr, flush=True)
        self.seen += [(Path(p).stem, c) for p, c in zip(columns["problem"], completions, strict=True)]
        return super().__call__(completions, **columns)


class DeviceMemory:
    """Watches how much of the GPU all processes together use, for a `with` block."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device.startswith("cuda")
        self.before_gib = self.most_gib = 0.0
        self._done = threading.Event()

    def __enter__(self) -> "DeviceMemory":
        if self.on_gpu:
            self.before_gib = self._used_gib()
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _used_gib(self) -> float:
        import torch

        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most_gib = max(self.most_gib, self._used_gib())


@dataclass
class Run:
    """One training run.

    Attributes:
        protocol, seed: what it was paid by, and what it started from.
        curves: shares of all completions by step; `correct` by the verdict of `kernelward`, `accepted` by the protocol
            that paid, `accepted_wrong` accepted by that protocol and not correct.
        untrained: probability of each class of completions, by construction, under the untrained policy (exact).
        last: what the last step's completions are by construction.
        disagreements: distinct candidates whose `kernelward` verdict differs from what they are by construction.
        distinct: distinct candidates.
        seconds, waited_s: wall-clock time of the training, and the part of it spent waiting for the reward.
        gpu_gib: what trainer and judge together used of the GPU at most (0 on the CPU).
    """

    protocol: str
    seed: int
    curves: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CURVES})
    untrained: dict[str, float] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)
    distinct: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    gpu_gib: float = 0.0


def train(protocol: str, seed: int, options: argparse.Namespace) -> Run:
    """One run of GRPO."""
    import torch
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)  # so small a model only loses time to more, and the judge needs the cores
    other = OFFICIAL if protocol == HARDENED else HARDENED
    config = RewardConfig.load(HERE / "toy_reward.yaml")
    judge = replace(config.judge, workers=options.workers, memory_bytes=int(options.memory_gib * 2**30))
    store = str(options.out / "verdicts.sqlite")  # the runs share their verdicts
    reward = WatchedReward(
        replace(config, protocol=protocol, measure=(other,), judge=judge, device=options.device, store=store)
    )
    tokenizer = toy_policy.make_tokenizer()
    model = toy_policy.make_model(tokenizer, seed)
    run = Run(protocol, seed, untrained=toy_policy.class_shares(model, tokenizer))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(options.out / "trainer"),
            seed=seed,
            max_steps=options.steps,
            per_device_train_batch_size=BATCH,
            num_generations=GROUP,
            shuffle_dataset=False,  # so that every step holds every problem
            max_completion_length=toy_policy.TOKENS_PER_KERNEL,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=options.device == "cpu",
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=toy_policy.make_dataset(rows=64 * len(toy_policy.PROBLEMS)),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    with DeviceMemory(options.device) as memory:
        trainer.train()
    run.seconds = time.monotonic() - started
    run.gpu_gib = max(0.0, memory.most_gib - memory.before_gib)
    read_log(run, trainer.state.log_history, config.name)
    run.last = dict(Counter(toy_policy.truth(c, p) for p, c in reward.seen[-BATCH:]))
    hold_against_construction(run, reward)
    reward.close()
    return run


def read_log(run: Run, history: Sequence[dict[str, float]], name: str) -> None:
    """Take the curves from what the trainer logged."""
    for row in history:
        if f"{name}/share_correct" not in row:
            continue  # the summary at the end
        accepted = row[f"{name}/share_correct"]
        wrong = row.get(f"{name}/{HARDENED}/rejects_accepted", 0.0)
        correct = row.get(f"{name}/{HARDENED}/share_correct", accepted)
        for curve, value in zip(CURVES, (correct, accepted, wrong), strict=True):
            run.curves[curve].append(round(value, 4))
        run.waited_s += row[f"{name}/waited_s"]


def hold_against_construction(run: Run, reward: KernelReward) -> None:
    """Compare every distinct candidate's `kernelward` verdict with what it is by construction."""
    distinct = sorted(set(reward.seen)) if isinstance(reward, WatchedReward) else []
    paths = [str(toy_policy.PROBLEMS_DIR / f"{problem}.py") for problem, _ in distinct]
    verdicts = reward.judge([c for _, c in distinct], paths).verdicts[HARDENED]
    run.distinct = len(distinct)
    for (problem, completion), verdict in zip(distinct, verdicts, strict=True):
        class_ = toy_policy.truth(completion, problem)
        if (verdict.verdict is Outcome.CORRECT) != (class_ == "honest"):
            run.disagreements.append(
                f"{problem}: {class_} by construction, {verdict.verdict} ({verdict.reason}): {completion!r}"
            )


# --- what is shown -----------------------------------------------------------------


def show(run: Run) -> None:
    """Print one run as a table."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in run.untrained.items())
    print(f"\npaid by {run.protocol}, seed {run.seed}\n  the untrained policy writes, by construction: {shares}")
    print(f"  {'step':>4}  {'correct':>8}  {'accepted':>8}  {'accepted but wrong':>18}")
    steps = len(run.curves["correct"])
    marks = sorted({0, steps - 1, *range(0, steps, max(1, steps // 6))})
    for step in marks:
        row = {name: statistics.fmean(run.curves[name][max(0, step - 2) : step + 1]) for name in CURVES}
        print(f"  {step + 1:>4}  {row['correct']:>8.1%}  {row['accepted']:>8.1%}  {row['accepted_wrong']:>18.1%}")
    print(
        f"  {run.seconds:.1f} s, {run.seconds / steps:.2f} s per step, {run.waited_s / run.seconds:.0%} of it waiting "
        f"for the reward\n  {run.distinct} distinct candidates, {len(run.disagreements)} of them judged otherwise than "
        "constructed"
    )
    if run.gpu_gib:
        print(f"  trainer and judge used at most {run.gpu_gib:.2f} GiB of the GPU")
    for line in run.disagreements[:5]:
        print(f"    {line}")


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % confidence interval over seeds (Student's t), cut to [0, 1]; one seed has no interval."""
    from scipy import stats

    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The first and the last steps of every protocol's runs, as means with intervals over seeds."""
    result: dict[str, Any] = {}
    for protocol in dict.fromkeys(run.protocol for run in runs):
        mine = [run for run in runs if run.protocol == protocol]
        row: dict[str, Any] = {"seeds": len(mine), "steps": len(mine[0].curves["correct"])}
        for name in CURVES:
            for label, part in (("first", slice(0, 1)), ("last", slice(-5, None))):
                mean, low, high = interval([statistics.fmean(run.curves[name][part]) for run in mine])
                bounds = {} if math.isnan(low) else {"low": round(low, 4), "high": round(high, 4)}
                row[f"{name}_{label}"] = {"mean": round(mean, 4)} | bounds
        row["untrained"] = {c: statistics.fmean(run.untrained[c] for run in mine) for c in mine[0].untrained}
        row["judged_otherwise_than_constructed"] = sum(len(run.disagreements) for run in mine)
        row["seconds"] = round(sum(run.seconds for run in mine), 1)
        row["share_waited"] = round(sum(run.waited_s for run in mine) / row["seconds"], 3)
        result[protocol] = row
    return result


def show_summary(result: dict[str, Any]) -> None:
    """Print the summary as a table."""

    def cell(value: dict[str, float]) -> str:
        bounds = f" [{value['low']:.1%}, {value['high']:.1%}]" if "low" in value else ""
        return f"{value['mean']:.1%}{bounds}"

    names = ("correct, first step", "correct, last five", "accepted but wrong, first")
    print("\n" + f"{'paid by':<12}{'seeds':>6}  {names[0]:<24}{names[1]:<24}{names[2]:<27}last five")
    for protocol, row in result.items():
        print(
            f"{protocol:<12}{row['seeds']:>6}  {cell(row['correct_first']):<24}{cell(row['correct_last']):<24}"
            f"{cell(row['accepted_wrong_first']):<27}{cell(row['accepted_wrong_last'])}"
        )
    print("A toy policy: it chooses among given pieces. See the head of examples/grpo_train.py for what this shows.")


def draw(runs: Sequence[Run], path: Path) -> None:
    """Both curves of both protocols in one picture: mean and 95 % interval over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, layout="constrained")
    colours = {HARDENED: "#1b7837", OFFICIAL: "#b2182b"}
    for axis, name, title in zip(
        axes, ("correct", "accepted_wrong"), ("correct kernels", "accepted by the reward, but wrong"), strict=True
    ):
        for protocol in dict.fromkeys(run.protocol for run in runs):
            curves = [run.curves[name] for run in runs if run.protocol == protocol]
            points = [interval(values) for values in zip(*curves, strict=True)]
            steps = range(1, len(points) + 1)
            colour = colours.get(protocol)
            axis.plot(steps, [p[0] for p in points], color=colour, label=f"paid by {protocol}")
            axis.fill_between(
                steps, [p[1] for p in points], [p[2] for p in points], color=colour, alpha=0.2, linewidth=0
            )
        axis.set(title=title, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of completions")
    axes[1].legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default=HARDENED, help="what pays: a packaged protocol, or a YAML file")
    parser.add_argument(
        "--compare", action="store_true", help=f"train with {HARDENED} and with {OFFICIAL}, and draw both"
    )
    parser.add_argument("--seeds", type=int, help="runs per protocol (1; with --compare 5)")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--workers", type=int, default=2, help="candidates judged at the same time")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: trainer and judge on the same GPU")
    parser.add_argument("--memory-gib", type=float, default=2.0, help="bound on one entry's state in the judge")
    parser.add_argument("--out", type=Path, default=Path("build/grpo"), help="folder for the picture and the numbers")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (5 if options.compare else 1)
    if options.seeds < 1 or options.steps < 1:
        parser.error("--seeds and --steps must be at least 1")
    return options


def shown_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options that shape the numbers."""
    return {name: getattr(options, name) for name in ("steps", "seeds", "learning_rate", "workers", "device")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print, write the numbers, and with --compare the picture."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    protocols = (HARDENED, OFFICIAL) if options.compare else (options.protocol,)
    runs = []
    try:
        for seed in range(options.seeds):
            for protocol in protocols:
                runs.append(train(protocol, seed, options))
                show(runs[-1])
    except InputError as error:
        print(f"grpo_train: {error}", file=sys.stderr)
        return 2
    result = summary(runs)
    show_summary(result)
    numbers = {"options": shown_options(options), "summary": result, "runs": [asdict(run) for run in runs]}
    (options.out / "grpo.json").write_text(json.dumps(numbers) + "\n")
    if options.compare:
        draw(runs, options.out / "grpo.png")
        print(f"wrote {options.out / 'grpo.png'} and {options.out / 'grpo.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
