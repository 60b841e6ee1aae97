"""What a reward reports about itself on every call: the same keys on every rank, finite numbers only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .store import RunStore
from .verdict import Outcome, Verdict

#: Shares are of all completions of the call. `no_verdict` is our fault or the problem's, never the candidate's.
_OUTCOMES = tuple(o for o in Outcome if o.decided)


@dataclass(frozen=True, slots=True)
class CallStats:
    """One call of the reward.

    Attributes:
        paid: the verdict of every completion under the protocol that pays.
        measured: the same under each further protocol.
        waited_s: seconds that the trainer waited.
        judged: candidates that were judged in this call (neither found in the cache nor a repetition within it).
    """

    paid: Sequence[Verdict]
    measured: Mapping[str, Sequence[Verdict]]
    waited_s: float
    judged: int


def summarise(name: str, protocol: str, stats: CallStats) -> dict[str, float]:
    """Metrics of one call under `<name>/...`.

    Besides the shares of the outcomes: `share_no_verdict`, `share_no_code`, `share_cached`, `waited_s`,
    `verdicts_per_minute`, `seconds_per_verdict` (of a candidate that was judged in this call), and for every further
    protocol P `P/share_correct`, `P/rejects_accepted` (P rejects what the paying protocol accepts) and
    `P/accepts_rejected`. Pairs without two verdicts count as agreeing.
    """
    count = max(len(stats.paid), 1)

    def share(matches: int) -> float:
        return matches / count

    values = {f"share_{o.value}": share(sum(v.verdict is o for v in stats.paid)) for o in _OUTCOMES}
    values["share_no_verdict"] = share(sum(not v.verdict.decided for v in stats.paid))
    values["share_no_code"] = share(sum(v.reason == "no-code" for v in stats.paid))
    values["share_cached"] = share(sum(v.cached for v in stats.paid))
    values["waited_s"] = stats.waited_s
    values["verdicts_per_minute"] = 60.0 * stats.judged / max(stats.waited_s, 1e-3)
    fresh = [v.seconds for v in stats.paid if not v.cached and v.verdict.decided]
    values["seconds_per_verdict"] = sum(fresh) / max(len(fresh), 1)
    for other, verdicts in stats.measured.items():
        label = protocol_label(other)
        pairs = [(p.verdict, m.verdict) for p, m in zip(stats.paid, verdicts, strict=True)]
        both = [(p, m) for p, m in pairs if p.decided and m.decided]
        values[f"{label}/share_correct"] = share(sum(v.verdict is Outcome.CORRECT for v in verdicts))
        accepted = [(p is Outcome.CORRECT, m is Outcome.CORRECT) for p, m in both]
        values[f"{label}/rejects_accepted"] = share(sum(p and not m for p, m in accepted))
        values[f"{label}/accepts_rejected"] = share(sum(m and not p for p, m in accepted))
    return {f"{name}/{key}": float(value) for key, value in values.items()}


def protocol_label(ref: str) -> str:
    """A protocol's name for a metric: the stem where the reference is a path."""
    return ref.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")


class MetricsReader:
    """Reads what rewards in other processes wrote into the store.

    Args:
        store: the run's store.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._last = 0

    def take(self) -> dict[str, float]:
        """Mean of every metric written since the last call; empty if there was none."""
        self._last, rows = self._store.metrics_after(self._last)
        sums: dict[str, list[float]] = {}
        for row in rows:
            for key, value in row.items():
                sums.setdefault(key, []).append(value)
        return {key: sum(values) / len(values) for key, values in sums.items()}


def log_stored_metrics(trainer: Any, store: RunStore) -> None:
    """Have a transformers trainer log what the rewards of its asynchronous rollout worker report.

    The callback goes first, so that every other one (and the loggers behind them) sees the metrics.

    Args:
        trainer: a trainer with a `callback_handler`.
        store: the reward's store (`KernelReward.store`).
    """
    from transformers import TrainerCallback  # here, so that importing the reward does not import transformers

    reader = MetricsReader(store)

    class StoredMetrics(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            values = reader.take()
            if logs is not None:
                logs.update(values)
            if state.log_history:
                state.log_history[-1].update(values)

    trainer.callback_handler.callbacks.insert(0, StoredMetrics())
