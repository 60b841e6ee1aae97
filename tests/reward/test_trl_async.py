"""TRL's asynchronous rollout worker, the real one, with the real judge.

The worker runs in a spawned daemon process that sees no GPU and calls rewards from threads. It talks to its generation
server over HTTP; here that is a small server on the loopback interface which answers with the toy policy's tokens. The
worker refuses to start where vLLM is not installed although it only needs the server, so that check is answered for it.
"""

import itertools
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import toy_policy
import trl_tiny
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.metrics import MetricsReader

pytest.importorskip("trl", reason="the extra `trl` is not installed")
pytest.importorskip("aiohttp", reason="TRL's asynchronous rollout worker needs aiohttp")

KINDS = ("honest", "cheat", "wrong", "broken")
PAID = {"honest": 1.1, "cheat": 0.1, "wrong": 0.1, "broken": 0.1}


@pytest.fixture
def server() -> Iterator[str]:
    """Answers completion requests with candidates of every kind in turn."""
    tokenizer = toy_policy.make_tokenizer()
    texts = {kind: trl_tiny.kernel("relu", kind) for kind in KINDS}
    kinds = itertools.cycle(KINDS)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                ids = [*tokenizer(texts[next(kinds)])["input_ids"], tokenizer.eos_token_id]
            choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}}
            body = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_the_real_rollout_worker_is_paid_by_the_real_judge(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from accelerate import PartialState
    from trl.experimental.async_grpo import async_rollout_worker

    PartialState(cpu=True)  # what a trainer has done by then
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tokenizer = toy_policy.make_tokenizer()
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "fields": {"content": {"close_pattern": r"<end>\s*", "content": "text"}},
    }
    hardened = KernelReward(replace(RewardConfig(), device="cpu"))
    official = KernelReward(replace(RewardConfig(name="official", protocol="kernelbench"), device="cpu"))
    worker = async_rollout_worker.AsyncRolloutWorker(
        model_name="toy",
        dataset=trl_tiny.rows(4, chat=True),
        reward_funcs=[hardened, official],  # two functions, so that the worker calls them from two threads at once
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=4,
        max_inflight_tasks=8,
        max_tokens=8,
        vllm_server_url=server,
    )
    try:
        worker.start()
        assert worker._process is not None
        samples = collect(worker, 12)
        judges = [p for p in psutil.Process(worker._process.pid).children(recursive=True) if is_judge(p)]
        assert len(judges) == 2
    finally:
        worker.stop()
    by_text = {trl_tiny.kernel("relu", kind): kind for kind in KINDS}
    kinds = [by_text[sample.completion[0]["content"]] for sample in samples]
    assert set(kinds) == set(KINDS)
    for kind, sample in zip(kinds, samples, strict=True):
        assert sample.metrics["rewards/kernelward"] == pytest.approx(PAID[kind])
        assert sample.metrics["rewards/official"] == pytest.approx(1.1 if kind == "cheat" else PAID[kind])

    # The child had no logger: its metrics arrive here through the store that both derive from the run's secret.
    taken = MetricsReader(hardened.store).take()
    assert taken["kernelward/share_no_verdict"] == 0.0
    assert 0.0 < taken["kernelward/share_correct"] < 1.0

    deadline = time.monotonic() + 60.0
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in judges):
        assert time.monotonic() < deadline, "the judge outlived its rollout worker"
        time.sleep(0.1)


def collect(worker: Any, count: int) -> list[Any]:
    """Samples from the worker's queue; fails early where the worker failed."""
    samples: list[Any] = []
    deadline = time.monotonic() + 150.0
    while len(samples) < count:
        worker.check_health(stale_after_s=120.0)
        assert time.monotonic() < deadline, f"{len(samples)} of {count} samples"
        try:
            samples.append(worker.rollout_buffer.get(timeout=1.0))
        except queue.Empty:
            continue
    return samples


def is_judge(process: psutil.Process) -> bool:
    """Whether a process is a judge (not one of the processes that it started)."""
    try:
        return "kernelward.reward.service" in process.cmdline()
    except psutil.Error:
        return False
