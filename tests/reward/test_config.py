"""Reading a reward's configuration."""

import pickle
from pathlib import Path

import pytest
from kernelward.reward.audit import ShadowConfig
from kernelward.reward.bank import BankConfig
from kernelward.reward.config import RewardConfig, list_configs
from kernelward.reward.promoted import PromotionRule
from kernelward.reward.shaping import Speed
from kernelward.suites.errors import InputError
from kernelward.suites.yamlnode import Node


def read(text: str, base: Path | None = None) -> RewardConfig:
    return RewardConfig.from_node(Node.parse(text, "reward.yaml"), base)


@pytest.mark.parametrize("name", list_configs())
def test_every_packaged_configuration_loads(name: str) -> None:
    assert RewardConfig.load(name).protocol == "kernelward"


def test_the_default_is_first_and_states_the_defaults() -> None:
    assert list_configs()[0] == "default"
    packaged, built_in = RewardConfig.load("default"), RewardConfig()
    assert (packaged.judge, packaged.rotate_every, packaged.cache) == (
        built_in.judge,
        built_in.rotate_every,
        built_in.cache,
    )


def test_the_speed_configuration_times_candidates() -> None:
    assert RewardConfig.load("speed").shaping.speed == Speed(1.0, 8.0)


def test_the_environment_names_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n")
    monkeypatch.setenv("KERNELWARD_CONFIG", str(path))
    assert RewardConfig.load().name == "mine"
    assert RewardConfig.load("default").name == "kernelward"


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text(
        "name: strict\nentries: suite\ncomparison: truth\n",
    )
    path = tmp_path / "reward.yaml"
    (tmp_path / "problems").mkdir()
    path.write_text("protocol: strict.yaml\nproblems: problems\nstore: run.sqlite\n")
    config = RewardConfig.load(path)
    assert config.protocol == str(tmp_path / "strict.yaml")
    assert config.problems == str(tmp_path / "problems")
    assert config.store == str(tmp_path / "run.sqlite")


def test_the_judge_section_sets_up_the_judge() -> None:
    config = read(
        "judge:\n  device: cuda:1\n  workers: 3\n  memory: 4GiB\n  truth_cache: 512 MB\n  precision: bf16\n"
        "  limits: {run_s: 5}\n  screen: {torch_ops: deny}\n"
    )
    assert config.device == "cuda:1"
    assert (config.judge.workers, config.judge.precision) == (3, "bf16")
    assert (config.judge.memory_bytes, config.judge.truth_bytes) == (4 << 30, 512_000_000)
    assert config.judge.limits == (("run_s", 5),)
    assert config.judge.screen.torch_ops == "deny"


def test_a_configuration_survives_pickling_and_hides_its_key() -> None:
    config = read("{run_key: s3cret, measure: [kernelbench], shaping: {reasons: {race: -0.5}}}")
    assert pickle.loads(pickle.dumps(config)) == config
    assert "s3cret" not in repr(config)


def test_what_watches_the_reward_is_set_up_and_switched_off(tmp_path: Path) -> None:
    packaged = RewardConfig.load("default")
    assert (packaged.bank, packaged.audit, packaged.shadow, packaged.promote) == (BankConfig(), 0.02, None, None)
    off = read("{bank: off, audit: 0, shadow: null, promote: off}")
    assert (off.bank, off.audit, off.shadow, off.promote) == (None, 0.0, None, None)
    (tmp_path / "suites").mkdir()
    on = read(
        "bank: {file: bank.sqlite, kernels: 10, size: 1MiB}\nshadow: kernelbench\nsuites: suites\n"
        "promote: {false_accepts: true, least_gain: 0.01, known_correct: 3, most_bytes: 1GiB}\n",
        tmp_path,
    )
    assert on.bank == BankConfig(str(tmp_path / "bank.sqlite"), 10, 1 << 20)
    assert on.shadow == ShadowConfig("kernelbench", 0.02)
    assert on.promote == PromotionRule(True, 0.01, 3, 1 << 30)
    assert read("shadow: {protocol: kernelbench, share: 0.5}").shadow == ShadowConfig("kernelbench", 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("audit: 2", "key `audit`: 2 is above the maximum"),
        ("bank: {kernels: 0}", "key `bank.kernels`: 0 is below the minimum"),
        ("bank: somewhere", "key `bank`: expected a mapping"),
        ("shadow: kernelbunch", "key `shadow`: unknown protocol"),
        ("shadow: {share: 0.1}", "missing `protocol`"),
        ("promote: {false_accepts: true}", "key `promote`: `suites` names no folder"),
        ("promote: {gain: 1}", "key `promote.gain`: unknown key"),
        ("protocl: kernelward", "reward.yaml:1: key `protocl`: unknown key. Did you mean `protocol`?"),
        ("name: x\nprotocol: kernelbunch", "reward.yaml:2: key `protocol`: unknown protocol 'kernelbunch'"),
        ("measure: kernelbench", "key `measure`: expected a list"),
        ("measure:\n  - kernelbench\n  - kernelbench", "is there twice"),
        ("measure: [kernelward]", "is there twice"),
        ("name: a/b", "key `name`"),
        ("suites: no/such/folder", "key `suites`: no such folder"),
        ("rotate_every: 0", "key `rotate_every`: 0 is below the minimum"),
        ("cache: many", "key `cache`: expected a whole number"),
        ("judge:\n  worker: 2", "reward.yaml:2: key `judge.worker`: unknown key"),
        ("judge: {workers: 0}", "key `judge.workers`: 0 is below the minimum"),
        ("judge: {device: tpu}", "key `judge`: judge setting device"),
        ("judge: {memory: lots}", "key `judge.memory`: expected a size such as 4GiB"),
        ("judge: {memory: -1}", "below the minimum"),
        ("judge: {screen: {hard: [nonsense]}}", "unknown screen code"),
        ("shaping: {correct: high}", "key `shaping.correct`: expected a finite number"),
        ("name: [", "not valid YAML"),
        ("", "the file is empty"),
        ("- a", "expected a mapping"),
    ],
)
def test_errors_name_the_file_the_line_and_the_key(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert str(error.value).startswith("reward.yaml")
    assert said in str(error.value)


def test_an_unknown_configuration_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Packaged: default, own-kernel, speed"):
        RewardConfig.load("defualt")
    with pytest.raises(InputError, match="cannot read it"):
        RewardConfig.load(tmp_path / "missing.yaml")


def test_own_kernel_refuses_candidates_that_compute_with_torch() -> None:
    assert RewardConfig.load("own-kernel").judge.screen.torch_ops == "deny"
