from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.suites.entry import Entry

plain = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False))
values = st.one_of(plain, st.text(max_size=5), st.none(), st.lists(plain, max_size=3))
mappings = st.dictionaries(st.text("abcxyz_", min_size=1, max_size=6), values, max_size=3)
entries = st.builds(
    lambda generator, params, constants, dtype, scale, draw, skip, policy, device: Entry.make(
        generator,
        params=params,
        constants=constants,
        dtype=dtype,
        scale=scale,
        draw=draw,
        skip=skip,
        seed_policy=policy,
        draw_device=device,
    ),
    st.sampled_from(["own", "normal", "spiky"]),
    mappings,
    mappings,
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([1.0, 3.0, -1.0]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from(["secret", "kernelbench"]),
    st.sampled_from(["judge", "cpu"]),
)


@settings(max_examples=200, deadline=None)
@given(entries)
def test_an_entry_survives_its_dictionary(entry: Entry) -> None:
    again = Entry.from_dict(entry.to_dict())
    assert again == entry
    assert again.id == entry.id


@settings(max_examples=100, deadline=None)
@given(entries, entries)
def test_only_equal_recipes_share_an_id(a: Entry, b: Entry) -> None:
    assert (a.id == b.id) == (a.to_dict() == b.to_dict())


def test_defaults_are_left_out_of_the_dictionary() -> None:
    assert Entry().to_dict() == {"generator": "own"}


def test_the_order_of_parameters_does_not_matter() -> None:
    assert Entry.make("own", constants={"a": 1, "b": 2}) == Entry.make("own", constants={"b": 2, "a": 1})


def test_lists_become_tuples_so_that_entries_are_hashable() -> None:
    entry = Entry.make(constants={"input_shape": [3, 4]})
    assert entry.constants == (("input_shape", (3, 4)),)
    assert len({entry, Entry.make(constants={"input_shape": (3, 4)})}) == 1


def test_a_changed_constant_is_not_the_declared_shape() -> None:
    assert Entry().declared_shape
    assert not Entry.make(constants={"batch_size": 3}).declared_shape


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError):
        Entry.from_dict({"generator": "own", "seed": 3})


def test_a_tensor_is_no_parameter() -> None:
    with pytest.raises(TypeError, match="literals"):
        Entry.make(params={"x": object()})


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Entry().scale = 2.0  # type: ignore[misc]
