"""How a reward is set up: one YAML file, packaged (`default`, `speed`) or the user's own."""

import os
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from .. import configs
from ..suites.errors import InputError
from ..suites.protocol import DEFAULT_PROTOCOL, load_protocol
from ..suites.yamlnode import Node
from .audit import ShadowConfig
from .bank import BankConfig
from .promoted import PromotionRule
from .shaping import Shaping
from .task import JudgeConfig

DEFAULT_CONFIG = "default"
CONFIG_VARIABLE = "KERNELWARD_CONFIG"
RUN_KEY_VARIABLE = "KERNELWARD_RUN_KEY"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_JUDGE_SIZES = {"memory": "memory_bytes", "truth_cache": "truth_bytes"}
_JUDGE_KEYS = ("device", "workers", "threads", "precision", "ties", "limits", "screen", "suite_cache")


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """What a `KernelReward` needs to know. Plain values only: it is pickled with the reward.

    Attributes:
        name: what the trainer logs the reward as.
        protocol: the protocol that pays: a name, or the path of a YAML file.
        measure: further protocols that judge the same candidates for the metrics only; they never pay.
        suites: folder of suite files (`kernelward suite build`) for problems that the library has none for, or to be
            judged by in its place. Read again whenever the inputs change, so a promoted suite is used from then on.
        problems: folder in which ids of the column `problem` are looked up (None: KERNELBENCH_DIR, or paths only).
        rotate_every: optimiser steps (calls, where the trainer tells no step) after which the inputs change.
        run_key: secret of the run in text form; None takes KERNELWARD_RUN_KEY, or draws one that all ranks share.
        cache: verdicts kept in memory.
        store: SQLite file for verdicts and metrics that several processes share (None: only where one is needed).
        device: `auto` (the rank's GPU where there is one), `cpu`, or `cuda:N`.
        judge: how the judge process is set up; its `device` is replaced by the resolved one.
        shaping: what each verdict is paid.
        bank: where accepted kernels are kept for the calibrator; None keeps none.
        audit: share of the accepted candidates that are judged again by entries which pay nobody; 0 = none.
        shadow: a protocol that judges a sample of the candidates as well, after they were paid; None = none.
        promote: which proposals may go into `suites` without a person; None = none.
    """

    name: str = "kernelward"
    protocol: str = DEFAULT_PROTOCOL
    measure: tuple[str, ...] = ()
    problems: str | None = None
    suites: str | None = None
    rotate_every: int = 20
    run_key: str | None = field(default=None, repr=False)
    cache: int = 4096
    store: str | None = None
    device: str = "auto"
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    shaping: Shaping = field(default_factory=Shaping)
    bank: BankConfig | None = field(default_factory=BankConfig)
    audit: float = 0.02
    shadow: ShadowConfig | None = None
    promote: PromotionRule | None = None

    @classmethod
    def load(cls, ref: str | Path | None = None) -> Self:
        """A configuration by the path of a YAML file or by the name of a packaged one.

        Args:
            ref: path or name; None takes the environment variable KERNELWARD_CONFIG, else `default`.

        Raises:
            InputError: no such configuration, or a fault in it (file, line and key are named).
        """
        text = str(ref if ref is not None else os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
        path = Path(text)
        if path.is_file() or path.suffix in (".yaml", ".yml"):
            return cls.from_node(Node.read(path), base=path.parent)
        if text not in list_configs():
            raise InputError(
                f"unknown reward configuration {text!r}. Packaged: {', '.join(list_configs())}; "
                "or give the path of a YAML file (.yaml)"
            )
        resource = resources.files(configs) / "reward" / f"{text}.yaml"
        return cls.from_node(Node.parse(resource.read_text(encoding="utf-8"), str(resource)))

    @classmethod
    def from_node(cls, node: Node, base: Path | None = None) -> Self:
        """Read a configuration from YAML.

        Args:
            node: the document.
            base: folder that relative paths of protocols, problems and the store start from.

        Raises:
            InputError: names file, line and key, and lists what is allowed.
        """
        allowed = set(cls.__dataclass_fields__) - {"device"}
        keys = node.mapping(allowed)
        values: dict[str, Any] = {}
        for name, child in keys.items():
            match name:
                case "name":
                    values[name] = _name(child)
                case "protocol":
                    values[name] = _protocol(child, base)
                case "measure":
                    values[name] = tuple(_protocol(item, base) for item in child.items())
                case "problems" | "suites" | "store":
                    values[name] = _path(child, base)
                    if name != "store" and values[name] is not None and not Path(values[name]).is_dir():
                        raise child.error(f"no such folder: {values[name]}")
                case "run_key":
                    values[name] = None if child.plain() is None else child.text()
                case "rotate_every" | "cache":
                    values[name] = child.integer(minimum=1 if name == "rotate_every" else 0)
                case "judge":
                    values["device"], values[name] = _judge(child)
                case "shaping":
                    values[name] = Shaping.from_node(child)
                case "bank":
                    values[name] = _bank(child, base)
                case "audit":
                    values[name] = child.number(0.0, 1.0)
                case "shadow":
                    values[name] = _shadow(child, base)
                case "promote":
                    values[name] = _promotion_rule(child)
        config = cls(**values)
        if config.promote is not None and config.suites is None:
            raise keys["promote"].error("`suites` names no folder that suites could be promoted into")
        for repeated in {p for p in config.measure if config.measure.count(p) > 1 or p == config.protocol}:
            raise keys["measure"].error(f"{repeated!r} is there twice; it already judges")
        return config


def list_configs() -> list[str]:
    """Names of the configurations that come with the package, the default one first."""
    folder = resources.files(configs) / "reward"
    names = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
    return sorted(names, key=lambda name: name != DEFAULT_CONFIG)


def _name(node: Node) -> str:
    name = node.text()
    if not re.fullmatch(r"[\w.-]+", name):
        raise node.error("a name for log files: letters, digits, `_`, `-` and `.` only")
    return name


def _protocol(node: Node, base: Path | None) -> str:
    name = node.text()
    if base is not None and name.endswith((".yaml", ".yml")):
        name = str(base / name)
    try:
        load_protocol(name)
    except InputError as error:
        raise node.error(str(error)) from error
    return name


def _path(node: Node, base: Path | None) -> str | None:
    if node.plain() is None:
        return None
    path = Path(node.text()).expanduser()
    return str(base / path if base is not None else path)


def _is_off(node: Node) -> bool:
    return node.plain() is None or node.plain() is False  # YAML reads `off` as false


def _bank(node: Node, base: Path | None) -> BankConfig | None:
    if _is_off(node):
        return None
    keys = node.mapping(BankConfig.__dataclass_fields__)
    values: dict[str, Any] = {}
    for name, child in keys.items():
        match name:
            case "file":
                values[name] = _path(child, base)
            case "kernels":
                values[name] = child.integer(minimum=1)
            case "size":
                values[name] = size(child)
    return BankConfig(**values)


def _shadow(node: Node, base: Path | None) -> ShadowConfig | None:
    if _is_off(node):
        return None
    if node.is_text():
        return ShadowConfig(_protocol(node, base))
    keys = node.mapping(ShadowConfig.__dataclass_fields__, required=("protocol",))
    values: dict[str, Any] = {"protocol": _protocol(keys["protocol"], base)}
    if "share" in keys:
        values["share"] = keys["share"].number(0.0, 1.0)
    return ShadowConfig(**values)


def _promotion_rule(node: Node) -> PromotionRule | None:
    if _is_off(node):
        return None
    keys = node.mapping(PromotionRule.__dataclass_fields__)
    values: dict[str, Any] = {}
    for name, child in keys.items():
        match name:
            case "false_accepts":
                values[name] = child.flag()
            case "least_gain":
                values[name] = None if child.plain() is None else child.number(0.0, 1.0)
            case "known_correct":
                values[name] = child.integer(minimum=1)
            case "most_bytes":
                values[name] = size(child)
    return PromotionRule(**values)


def _judge(node: Node) -> tuple[str, JudgeConfig]:
    keys = node.mapping({*_JUDGE_KEYS, *_JUDGE_SIZES})
    device = keys.pop("device").text() if "device" in keys else "auto"
    values: dict[str, Any] = {}
    for name, child in keys.items():
        if name in _JUDGE_SIZES:
            values[_JUDGE_SIZES[name]] = size(child)
        elif name in ("workers", "threads"):
            values[name] = child.integer(minimum=1 if name == "workers" else 0)
        elif name in ("limits", "screen"):
            child.mapping()
            values[name] = child.plain()
        elif child.plain() is not None:
            values[name] = child.text()
    try:
        # `auto` is resolved on the rank that judges; everything else is checked here, where the line is known.
        judge = JudgeConfig.from_wire(values | {"device": "cpu" if device == "auto" else device})
    except (InputError, TypeError, ValueError) as error:
        raise node.error(str(error)) from error
    return device, judge


def size(node: Node) -> int:
    """Bytes from a YAML value such as `4GiB`, `512 MB` or a whole number.

    Raises:
        InputError: something else.
    """
    value = node.plain()
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        if isinstance(value, str):
            raise node.error(f"expected a size such as 4GiB or 512MB, found {value!r}")
        return node.integer(minimum=0)
    unit = (found[2] or "").lower().removesuffix("b")
    return int(float(found[1]) * _UNITS[unit])
