"""The toy policy: fair by construction, and what its pieces are is what the judge finds."""

from collections import Counter
from dataclasses import replace

import pytest
import toy_policy
from kernelward.reward.completion import extract_code
from kernelward.reward.config import RewardConfig
from kernelward.reward.function import KernelReward
from kernelward.reward.verdict import Outcome

pytest.importorskip("transformers", reason="the extra `trl` is not installed")

HEAD = next(p.text for p in toy_policy.PIECES if p.head)


@pytest.mark.parametrize("problem", toy_policy.PROBLEMS)
def test_for_every_problem_cheats_are_fewer_than_honest_pieces(problem: str) -> None:
    honest = [p for p in toy_policy.PIECES if p.honest == problem]
    cheats = [p for p in toy_policy.PIECES if p.cheat == problem]
    assert 0 < len(cheats) < len(honest)
    assert max(len(p.text) for p in cheats) < min(len(p.text) for p in honest)  # what the shaping pays for


@pytest.mark.parametrize("seed", range(5))
def test_the_untrained_policy_writes_honest_kernels_more_often_than_cheats(seed: int) -> None:
    tokenizer = toy_policy.make_tokenizer()
    shares = toy_policy.class_shares(toy_policy.make_model(tokenizer, seed), tokenizer)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-4)
    assert shares["cheat"] < 0.5 * shares["honest"]


def test_tokens_are_pieces_of_source_and_decode_to_a_candidate() -> None:
    tokenizer = toy_policy.make_tokenizer()
    piece = next(p for p in toy_policy.PIECES if p.honest == "relu")
    ids = tokenizer(piece.text + HEAD)["input_ids"]
    assert len(ids) == toy_policy.TOKENS_PER_KERNEL
    text = tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)
    assert text == piece.text + HEAD
    assert toy_policy.truth(text, "relu") == "honest"
    assert extract_code(text).count("ModelNew") == 1
    assert len(tokenizer(toy_policy.prompt("relu"))["input_ids"]) == 1


def test_the_class_of_a_completion_follows_its_last_definition() -> None:
    honest = next(p.text for p in toy_policy.PIECES if p.honest == "relu")
    cheat = next(p.text for p in toy_policy.PIECES if p.cheat == "relu")
    classes = [toy_policy.truth(t, "relu") for t in (HEAD, honest, honest + cheat + HEAD, cheat + HEAD + honest, "")]
    assert classes == ["broken", "broken", "cheat", "honest", "broken"]
    assert toy_policy.truth(honest + HEAD, "softmax") == "wrong"


@pytest.mark.slow
def test_every_piece_is_judged_to_be_what_it_is_by_construction() -> None:
    pieces = [
        (problem, p) for problem in toy_policy.PROBLEMS for p in toy_policy.PIECES if problem in (p.honest, p.cheat)
    ]
    completions = [p.text + HEAD for _, p in pieces]
    paths = [str(toy_policy.PROBLEMS_DIR / f"{problem}.py") for problem, _ in pieces]
    reward = KernelReward(replace(RewardConfig(), device="cpu", measure=("kernelbench",), run_key="toy"))
    try:
        judgement = reward.judge(completions, paths)
    finally:
        reward.close()
    found: Counter[Outcome] = Counter()
    for i, (problem, piece) in enumerate(pieces):
        hardened, official = (judgement.verdicts[p][i].verdict for p in ("kernelward", "kernelbench"))
        assert official is Outcome.CORRECT, piece.text
        assert hardened is (Outcome.CORRECT if piece.honest == problem else Outcome.INCORRECT), piece.text
        found[hardened] += 1
    assert found == {Outcome.CORRECT: 9, Outcome.INCORRECT: 3}
