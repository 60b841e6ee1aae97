"""What a reward reports about itself."""

import math
from pathlib import Path
from types import SimpleNamespace

from kernelward.reward.metrics import CallStats, MetricsReader, log_stored_metrics, protocol_label, summarise
from kernelward.reward.store import RunStore
from kernelward.reward.verdict import Outcome, Verdict


def verdicts(*outcomes: Outcome) -> list[Verdict]:
    return [Verdict(o) for o in outcomes]


def test_shares_count_every_completion() -> None:
    paid = [
        *verdicts(Outcome.CORRECT, Outcome.INCORRECT, Outcome.INFRA_ERROR),
        Verdict(Outcome.COMPILE_ERROR, "no-code"),
    ]
    values = summarise("kw", "kernelward", CallStats(paid, {}, waited_s=2.0, judged=3))
    assert values["kw/share_correct"] == values["kw/share_incorrect"] == values["kw/share_compile_error"] == 0.25
    assert values["kw/share_no_verdict"] == values["kw/share_no_code"] == 0.25
    assert values["kw/share_timeout"] == 0.0
    assert values["kw/waited_s"] == 2.0
    assert values["kw/verdicts_per_minute"] == 90.0


def test_a_verdicts_time_is_that_of_the_candidates_that_were_judged() -> None:
    def took(seconds: float, cached: bool = False, outcome: Outcome = Outcome.CORRECT) -> Verdict:
        return Verdict(outcome, seconds=seconds, cached=cached)

    paid = [took(1.0), took(3.0), took(9.0, cached=True), took(99.0, outcome=Outcome.INFRA_ERROR)]
    assert summarise("kw", "kernelward", CallStats(paid, {}, 2.0, 3))["kw/seconds_per_verdict"] == 2.0


def test_disagreement_is_reported_in_both_directions() -> None:
    paid = verdicts(Outcome.CORRECT, Outcome.CORRECT, Outcome.INCORRECT, Outcome.CORRECT)
    other = verdicts(Outcome.CORRECT, Outcome.INCORRECT, Outcome.CORRECT, Outcome.INFRA_ERROR)
    values = summarise("kw", "kernelbench", CallStats(paid, {"kernelward": other}, 1.0, 8))
    assert values["kw/kernelward/share_correct"] == 0.5
    assert values["kw/kernelward/rejects_accepted"] == 0.25
    assert values["kw/kernelward/accepts_rejected"] == 0.25


def test_every_call_reports_the_same_finite_keys() -> None:
    empty = summarise("kw", "a", CallStats([], {"b": []}, 0.0, 0))
    full = summarise("kw", "a", CallStats(verdicts(Outcome.TIMEOUT), {"b": verdicts(Outcome.CORRECT)}, 0.0, 1))
    assert list(empty) == list(full)
    assert all(math.isfinite(v) for v in [*empty.values(), *full.values()])


def test_a_protocol_file_is_reported_by_its_stem() -> None:
    assert protocol_label("/some/where/strict.yaml") == "strict"
    assert protocol_label("kernelbench-verified-1e-2") == "kernelbench-verified-1e-2"


def test_stored_metrics_are_averaged_between_two_logs(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "s.sqlite", b"k")
    reader = MetricsReader(store)
    assert reader.take() == {}
    store.add_metrics({"a": 1.0, "b": 4.0})
    store.add_metrics({"a": 2.0, "b": 4.0})
    assert reader.take() == {"a": 1.5, "b": 4.0}
    assert reader.take() == {}


def test_a_trainer_logs_what_lies_in_the_store_before_its_loggers_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "s.sqlite", b"k")
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=["a logger"]))
    log_stored_metrics(trainer, store)
    store.add_metrics({"kw/share_correct": 0.5})
    logs: dict[str, float] = {"loss": 1.0}
    state = SimpleNamespace(log_history=[{"loss": 1.0, "step": 1}])
    trainer.callback_handler.callbacks[0].on_log(None, state, None, logs=logs)
    assert logs == {"loss": 1.0, "kw/share_correct": 0.5}
    assert state.log_history == [{"loss": 1.0, "step": 1, "kw/share_correct": 0.5}]
