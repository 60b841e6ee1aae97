"""Frames and values between judge and child."""

import json
import math
import os
import socket
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernelward.reward.sandbox import wire
from kernelward.reward.sandbox.wire import FrameReader, UnsupportedValueError, WireError

CPU = torch.device("cpu")

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


def there_and_back(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    told = json.loads(json.dumps(wire.encode_value(value, tensors), allow_nan=False))
    return wire.decode_value(told, lambda i: tensors[i], CPU)


@given(values)
def test_plain_values_survive_with_their_types(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value)  # 1 is not True, a tuple not a list


def test_tensors_dtypes_devices_and_odd_numbers_survive() -> None:
    tensor = torch.ones(2)
    back = there_and_back(
        [tensor, {"d": torch.float16}, torch.device("cpu"), math.inf, -math.inf, 2 - 3j, torch.Size([4])]
    )
    assert back[0] is tensor
    assert back[1:] == [{"d": torch.float16}, CPU, math.inf, -math.inf, 2 - 3j, (4,)]
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", torch.nn.Linear(1, 1), lambda: 0])
def test_values_without_a_form_are_refused(value: Any) -> None:
    with pytest.raises(UnsupportedValueError):
        wire.encode_value([value], [])


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnsupportedValueError):
        wire.encode_value(value, [])


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_a_frame_carries_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    read_end, write_end = os.pipe()
    wire.send_frame(left, {"op": "load", "text": "x" * 100_000}, [write_end])
    message, fds = wire.receive_frame(right)
    assert message == {"op": "load", "text": "x" * 100_000}
    os.write(fds[0], b"through")
    assert os.read(read_end, 10) == b"through"


def test_the_end_of_a_channel_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.send(struct.pack(">I", 10) + b"{")
    left.close()
    with pytest.raises(EOFError):
        wire.receive_frame(right)


def reader_for(data: bytes, limit: int = 1000) -> FrameReader:
    left, right = socket.socketpair()
    right.setblocking(False)
    left.sendall(data)
    reader = FrameReader(right, limit)
    reader.peer = left  # type: ignore[attr-defined]  # keep it open
    return reader


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_a_reader_takes_one_frame_at_a_time() -> None:
    reader = reader_for(frame(b'{"id": 1}') + frame(b'{"id": 2}') + frame(b'{"id": 3}')[:7])
    assert reader.poll() == {"id": 1}
    assert reader.poll() == {"id": 2}
    assert reader.poll() is None
    assert not reader.closed


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 1001),
        struct.pack(">I", 0xFFFFFFFF) + b"x",
        frame(b"[]"),
        frame(b"1"),
        frame(b"\x80\x04\x95"),
        frame(b""),
        frame(b'{"id": ' + b"9" * 900 + b"e999999}")[:-1],
    ],
)
def test_malformed_frames_are_errors(data: bytes) -> None:
    reader = reader_for(data)
    if data == frame(b'{"id": ' + b"9" * 900 + b"e999999}")[:-1]:
        assert reader.poll() is None  # not complete: nothing is believed before the end
    else:
        with pytest.raises(WireError):
            reader.poll()


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    data = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(WireError):
        wire.parse_object(data)
    with pytest.raises(WireError):
        wire.parse_object(b'{"a":' * 50_000 + b"1" + b"}" * 50_000)


def test_attached_descriptors_never_reach_the_judge() -> None:
    left, right = socket.socketpair()
    right.setblocking(False)
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(left, [frame(b'{"id": 1}')], [0] * 50)
    assert FrameReader(right).poll() == {"id": 1}
    assert len(os.listdir("/proc/self/fd")) == before
