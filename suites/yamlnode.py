"""YAML read with its positions, so that an error names the file, the line and the key, and lists what is allowed."""

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from .errors import InputError


class Node:
    """One value of a YAML document and where it stands.

    The accessors return plain values or raise `InputError` with file, line and key.
    """

    __slots__ = ("_raw", "key", "where")

    def __init__(self, raw: yaml.Node, where: str, key: str = "") -> None:
        self._raw = raw
        self.where = where
        self.key = key

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read a document; `where` names it in messages (a path, as a rule).

        Raises:
            InputError: not YAML, or empty.
        """
        try:
            raw = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            raise InputError(f"{where}{line}: not valid YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise InputError(f"{where}: not valid YAML: {error}") from error
        if raw is None:
            raise InputError(f"{where}: the file is empty")
        return cls(raw, where)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            InputError: the file is missing, unreadable, not UTF-8, or not YAML.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
        except OSError as error:
            raise InputError(f"{path}: cannot read it: {error.strerror}") from error
        return cls.parse(text, str(path))

    @property
    def line(self) -> int:
        """Line number in the document, from 1."""
        return self._raw.start_mark.line + 1

    def error(self, message: str) -> InputError:
        """An `InputError` that starts with file, line and key."""
        key = f"key `{self.key}`: " if self.key else ""
        return InputError(f"{self.where}:{self.line}: {key}{message}")

    def plain(self) -> Any:
        """The value as plain Python (dict, list, str, int, float, bool, None)."""
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_document(self._raw)
        except yaml.YAMLError as error:
            raise self.error(f"cannot be read: {error}") from error
        finally:
            loader.dispose()

    def mapping(self, allowed: Collection[str] | None = None, required: Collection[str] = ()) -> dict[str, "Node"]:
        """The value as a mapping of nodes; `allowed=None` takes any key.

        Raises:
            InputError: not a mapping, an unknown, repeated or missing key.
        """
        if not isinstance(self._raw, yaml.MappingNode):
            raise self.error(f"expected a mapping of keys, found {self._describe()}")
        found: dict[str, Node] = {}
        for raw_key, raw_value in self._raw.value:
            name = str(raw_key.value)
            child = Node(raw_value, self.where, f"{self.key}.{name}" if self.key else name)
            if allowed is not None and name not in allowed:
                at = Node(raw_key, self.where, child.key)
                close = difflib.get_close_matches(name, list(allowed), n=1)
                hint = f" Did you mean `{close[0]}`?" if close else ""
                raise at.error(f"unknown key.{hint} Allowed: {', '.join(sorted(allowed))}")
            if name in found:
                raise Node(raw_key, self.where, child.key).error("given twice")
            found[name] = child
        missing = [name for name in required if name not in found]
        if missing:
            raise self.error(f"missing {', '.join(f'`{m}`' for m in missing)}")
        return found

    def items(self) -> list["Node"]:
        """The value as a list of nodes.

        Raises:
            InputError: not a list.
        """
        if not isinstance(self._raw, yaml.SequenceNode):
            raise self.error(f"expected a list, found {self._describe()}")
        return [Node(raw, self.where, f"{self.key}[{i}]") for i, raw in enumerate(self._raw.value)]

    def text(self) -> str:
        """The value as a string."""
        value = self.plain()
        if not isinstance(value, str):
            raise self.error(f"expected text, found {self._describe()}")
        return value

    def choice(self, allowed: Sequence[str]) -> str:
        """The value as one of the allowed words."""
        value = self.plain()
        if value not in allowed:
            raise self.error(f"{value!r} is not one of: {', '.join(allowed)}")
        return value

    def flag(self) -> bool:
        """The value as true or false."""
        value = self.plain()
        if not isinstance(value, bool):
            raise self.error(f"expected true or false, found {self._describe()}")
        return value

    def number(self, minimum: float | None = None, maximum: float | None = None) -> float:
        """The value as a finite number (`1e-4`, which YAML 1.1 reads as text, included)."""
        value = self.plain()
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value
            or abs(value) == float("inf")
        ):
            raise self.error(f"expected a finite number, found {self._describe()}")
        self._bound(value, minimum, maximum)
        return float(value)

    def integer(self, minimum: int | None = None, maximum: int | None = None) -> int:
        """The value as a whole number."""
        value = self.plain()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"expected a whole number, found {self._describe()}")
        self._bound(value, minimum, maximum)
        return value

    def is_text(self) -> bool:
        """Whether the value is a scalar, not a list or mapping."""
        return isinstance(self._raw, yaml.ScalarNode)

    def _bound(self, value: float, minimum: float | None, maximum: float | None) -> None:
        if minimum is not None and value < minimum:
            raise self.error(f"{value} is below the minimum, {minimum}")
        if maximum is not None and value > maximum:
            raise self.error(f"{value} is above the maximum, {maximum}")

    def _describe(self) -> str:
        if isinstance(self._raw, yaml.MappingNode):
            return "a mapping"
        if isinstance(self._raw, yaml.SequenceNode):
            return "a list"
        return repr(self._raw.value)
