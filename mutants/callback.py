"""Coverage beside the reward in a trainer's log: what the watcher publishes, for TRL and transformers trainers.

    callback = CoverageCallback(Path("calibration"), reward=reward, warn_below=0.9)
    trainer = GRPOTrainer(..., reward_funcs=reward)
    callback.attach(trainer)

Logged with every other metric: `kernelward/coverage/<family>`; `kernelward/coverage/overall` with `_low` and `_high`;
`kernelward/coverage/policy`, of mutants of the policy's own kernels, with its interval; `kernelward/suite_age_s` since
the suites in use changed; `kernelward/coverage_age_s` since they were measured; `kernelward/stale_share`;
`kernelward/false_accepts`, found by audits and by the calibrator; and what the reward's audits and shadow estimate, as
soon as there is an estimate. Shares of nothing are left out, never logged as 0.
"""

import json
import logging
import math
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..reward.metrics import MetricsReader
from ..reward.ranks import from_rank_zero
from ..suites.errors import InputError
from .watch_files import replace_file
from .watch_publish import read_coverage

if TYPE_CHECKING:
    from ..reward.function import KernelReward

_log = logging.getLogger(__name__)

Plain = dict[str, Any]
_KEPT = ("suites", "suites_since", "warned")  # in a checkpoint
_REWARDS: "weakref.WeakValueDictionary[tuple[str, str], KernelReward]" = weakref.WeakValueDictionary()


class CoverageCallback(TrainerCallback, ExportableState):
    """Logs what the watcher measured, warns where the suite notices too little of what the policy could do wrong.

    Put it on every rank: rank zero reads and logs, all stop together. Its state is saved in the trainer's checkpoints
    and taken up again where a training resumes from one.

    Args:
        out: folder that `kernelward calibrate --watch` publishes into.
        reward: the run's reward, for its audits, for metrics that it could not log, and for its rule of promotion.
        warn_below: coverage on mutants of the policy's own kernels (of all mutants, where there are none of those)
            below which a warning is logged, once per fall.
        stop_below: coverage below which the training ends.
        least: witnessed mutants below which neither happens.
        prefix: of the logged names.
    """

    def __init__(
        self,
        out: str | Path,
        reward: "KernelReward | None" = None,
        warn_below: float | None = None,
        stop_below: float | None = None,
        least: int = 20,
        prefix: str = "kernelward",
    ) -> None:
        self.out = Path(out)
        if reward is None:  # a trainer that restores callbacks makes a new one from what JSON can hold
            reward = _REWARDS.get((str(out), prefix))
        else:
            _REWARDS[str(out), prefix] = reward
        self.reward = reward
        self.warn_below = warn_below
        self.stop_below = stop_below
        self.least = least
        self.prefix = prefix
        self.suites: dict[str, str] = {}  # by problem, and since when they are in use
        self.suites_since = 0.0
        self.warned = False
        self._reader: MetricsReader | None = None
        self._said: set[str] = set()
        self._proposals = 0  # when their folder changed

    def attach(self, trainer: Any) -> None:
        """Add it to a trainer before all other callbacks, so that every logger sees what it logs."""
        trainer.callback_handler.callbacks.insert(0, self)

    def state(self) -> Plain:
        """What goes into a checkpoint."""
        names = ("warn_below", "stop_below", "least", "prefix")
        arguments = {"out": str(self.out)} | {name: getattr(self, name) for name in names}
        return {"args": arguments, "attributes": {name: getattr(self, name) for name in _KEPT}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up what a checkpoint holds."""
        kept = (state.stateful_callbacks or {}).get(type(self).__name__)
        for name, value in ((kept or {}).get("attributes") or {}).items() if isinstance(kept, dict) else ():
            if name in _KEPT:
                setattr(self, name, value)

    def on_log(self, args: Any, state: Any, control: Any, logs: Plain | None = None, **kwargs: Any) -> None:
        """Add the metrics to what is being logged, and decide with all ranks whether to go on."""
        stop = False
        if state.is_world_process_zero:
            published = read_coverage(self.out)
            values = self.values(published)
            if logs is not None:
                logs.update(values)
            if state.log_history:
                state.log_history[-1].update(values)
            stop = self._judge(published)
            self._tell_step(state.global_step)
            self._promote()
        if from_rank_zero(f"stop/{self.prefix}/{state.global_step}", "1" if stop else "0") == "1":
            control.should_training_stop = True

    def values(self, published: Plain) -> dict[str, float]:
        """The metrics that one publication and the reward give now."""
        now = time.time()
        values: dict[str, float] = {}
        for family, counted in (published.get("families") or {}).items():
            _put(values, f"coverage/{family}", counted, interval=False)
        _put(values, "coverage/overall", published.get("overall"))
        _put(values, "coverage/policy", (published.get("bank") or {}).get("overall"))
        self._note_suites(published.get("suites") or {}, now)
        if self.suites:
            values["suite_age_s"] = now - self.suites_since
        if isinstance(published.get("time"), (int, float)):
            values["coverage_age_s"] = max(0.0, now - published["time"])
        stale = (published.get("stale") or {}).get("share")
        if isinstance(stale, (int, float)):
            values["stale_share"] = float(stale)
        named = {f"{self.prefix}/{name}": value for name, value in values.items()}
        return named | self._of_the_reward()

    def _of_the_reward(self) -> dict[str, float]:
        if self.reward is None:
            return {}
        if self._reader is None:
            self._reader = MetricsReader(self.reward.store)
        stored = {k: v for k, v in self._reader.take().items() if math.isfinite(v)}
        tally = self.reward.audits
        values = stored | {f"{self.prefix}/false_accepts": float(self.reward.false_accepts)}
        for name, found in (("false_accept_rate", tally.false_accept_rate), ("disagreement", tally.disagreement)):
            if found is not None:
                values |= {
                    f"{self.prefix}/{name}": found.rate,
                    f"{self.prefix}/{name}_low": found.low,
                    f"{self.prefix}/{name}_high": found.high,
                    f"{self.prefix}/{name}_samples": float(found.samples),
                }
        return values

    def _note_suites(self, suites: Plain, now: float) -> None:
        hashes = {problem: str(used.get("hash")) for problem, used in suites.items() if isinstance(used, dict)}
        if hashes and hashes != self.suites:
            changed = [f"{p}: {h[:12]}" for p, h in hashes.items() if self.suites and self.suites.get(p) != h]
            if changed:
                _log.info("other suites are in use now: %s", ", ".join(changed))
            self.suites, self.suites_since = hashes, now

    def _judge(self, published: Plain) -> bool:
        """Warn where coverage is too low; whether the training has to end."""
        own = (published.get("bank") or {}).get("overall") or {}
        of_policy = own.get("witnessed", 0) >= self.least
        counted = own if of_policy else published.get("overall") or {}
        share = counted.get("share")
        if share is None or counted.get("witnessed", 0) < self.least:
            return False
        what = "mutants of the policy's own kernels" if of_policy else "mutants"
        said = f"the suites in use detect {share:.1%} of {counted['witnessed']} {what}"
        low = self.warn_below is not None and share < self.warn_below
        if low and not self.warned:
            _log.warning(
                "%s, less than %.1f %%: the reward may be easy to fool. `kernelward suite promote` lists better suites",
                said,
                100 * (self.warn_below or 0.0),
            )
        self.warned = low
        if self.stop_below is not None and share < self.stop_below:
            self._say(f"{said}, less than {100 * self.stop_below:.1f} %: the training ends here")
            return True
        return False

    def _tell_step(self, step: int) -> None:
        """Where the training is, for the watcher's history."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            replace_file(self.out / "trainer.json", json.dumps({"step": step}) + "\n")
        except OSError as error:
            self._say(f"{self.out / 'trainer.json'}: {error.strerror or error}")

    def _promote(self) -> None:
        """Promote what the reward's rule allows; the reward takes it up when its inputs change."""
        config = self.reward.config if self.reward is not None else None
        if config is None or config.promote is None or config.suites is None:
            return
        from .promote import promote_allowed

        try:
            changed = (self.out / "proposals").stat().st_mtime_ns
        except OSError:
            return
        if changed == self._proposals:
            return
        self._proposals = changed
        try:
            for proposal in promote_allowed(config.promote, self.out / "proposals", Path(config.suites)):
                _log.warning("promoted suite %s under the configuration's rule (%s)", proposal.id, proposal.why)
        except InputError as error:
            self._say(f"{error}; nothing is promoted")

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            _log.warning("%s", message)


def _put(values: dict[str, float], name: str, counted: Plain | None, interval: bool = True) -> None:
    """One counted share; nothing where nothing was counted."""
    if not counted or counted.get("share") is None:
        return
    values[name] = float(counted["share"])
    if interval:
        values[f"{name}_low"], values[f"{name}_high"] = float(counted["low"]), float(counted["high"])
