import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.suites.hashing import derive_seed, sha256_text, short, stable_hash


def test_a_text_hashes_as_its_utf8_bytes() -> None:
    assert sha256_text("größe") == hashlib.sha256("größe".encode()).hexdigest()


def test_a_lone_surrogate_can_be_hashed() -> None:
    assert len(sha256_text("\ud800")) == 64


def test_short_is_a_prefix() -> None:
    digest = sha256_text("x")
    assert digest.startswith(short(digest))
    assert len(short(digest)) == 12


def test_key_order_does_not_change_a_hash() -> None:
    assert stable_hash({"a": 1, "b": [2, None]}) == stable_hash({"b": [2, None], "a": 1})


@pytest.mark.parametrize("other", [{"a": 2}, {"a": "1"}, {"a": 1.5}, {"b": 1}, [1]])
def test_other_values_hash_differently(other: object) -> None:
    assert stable_hash({"a": 1}) != stable_hash(other)


def test_what_json_cannot_express_is_refused() -> None:
    with pytest.raises(TypeError):
        stable_hash({"a": object()})


@given(st.binary(max_size=32), st.lists(st.one_of(st.text(max_size=8), st.integers(0, 2**63)), max_size=4))
def test_seeds_are_repeatable_and_in_range(key: bytes, parts: list[str | int]) -> None:
    seed = derive_seed(key, *parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(key, *parts)


def test_seeds_depend_on_the_key_and_on_where_the_parts_end() -> None:
    seeds = {
        derive_seed(b"k", "ab", "c"),
        derive_seed(b"k", "a", "bc"),
        derive_seed(b"j", "ab", "c"),
        derive_seed(b"k", "abc"),
        derive_seed(b"k", "1"),
        derive_seed(b"k", 1),
    }
    assert len(seeds) == 6
