"""Shared buffers: layout, guards, poison, private copies."""

import mmap
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernelward.reward.sandbox import buffers
from kernelward.reward.sandbox.arena import Arena, Slot
from kernelward.reward.sandbox.buffers import HostBuffer, OutputSpec
from kernelward.reward.sandbox.child import Shared
from kernelward.reward.sandbox.wire import DTYPES, TensorRef, UnsupportedValueError

CPU = torch.device("cpu")


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 2, shape).to(torch.float32).to(dtype)


def in_child(arena: Arena) -> list[torch.Tensor]:
    """The tensors as the child sees them."""
    shared = Shared(os.dup(arena.buffer.fd), arena.layout.size, CPU)
    return [shared.tensor(ref) for ref in arena.layout.refs]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_reaches_the_child_bit_by_bit(dtype: torch.dtype) -> None:
    tensors = [tensor_of(dtype, shape) for shape in ((3, 5), (), (0, 4), (7,))]
    with Arena.of_tensors(CPU, tensors) as arena:
        for sent, seen in zip(tensors, in_child(arena), strict=True):
            assert seen.dtype == dtype
            assert seen.shape == sent.shape
            assert torch.equal(buffers.raw_bytes(seen), buffers.raw_bytes(sent))


@given(st.permutations(range(3)), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_dense_strides_are_kept(order: list[int], shape: list[int]) -> None:
    tensor = torch.arange(shape[0] * shape[1] * shape[2]).reshape(shape).permute(order)
    with Arena.of_tensors(CPU, [tensor]) as arena:
        (seen,) = in_child(arena)
        assert torch.equal(seen, tensor)
        if tensor.numel():
            assert seen.stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(4).expand(3, 4), torch.arange(20)[::2], torch.arange(12).reshape(3, 4)[:, 1:3], torch.ones(3).conj()],
)
def test_other_strides_arrive_as_contiguous_copies(tensor: torch.Tensor) -> None:
    with Arena.of_tensors(CPU, [tensor]) as arena:
        (seen,) = in_child(arena)
        assert torch.equal(seen, tensor)
        assert seen.is_contiguous()


def test_a_childs_tensor_has_a_storage_of_its_own_size() -> None:
    with Arena.of_tensors(CPU, [torch.ones(3), torch.ones(5)]) as arena:
        assert [t.untyped_storage().nbytes() for t in in_child(arena)] == [12, 20]


@pytest.mark.parametrize(
    "tensor", [torch.ones(2, 2).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8)]
)
def test_unusual_tensors_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(UnsupportedValueError):
        buffers.layout_tensors([tensor])


def test_outputs_are_poisoned_and_copies_are_private() -> None:
    with Arena.of_outputs(CPU, [OutputSpec((2, 3), torch.float32)], pattern=0xFF) as arena:
        assert arena.copies()[0].isnan().all()
        (target,) = in_child(arena)
        target.fill_(2)
        (copy,) = arena.copies()
        target.fill_(3)
        assert (copy == 2).all()


def test_a_write_beside_a_tensor_is_noticed() -> None:
    with Arena.of_tensors(CPU, [torch.ones(3), torch.ones(5)], pattern=0x7F) as arena:
        assert arena.guards_intact()
        for start, stop in arena.layout.guards():
            assert stop - start >= buffers.GUARD // 2
            for place in (start, stop - 1):
                arena.buffer.tensor[place] ^= 1
                assert not arena.guards_intact()
                arena.buffer.tensor[place] ^= 1
        assert arena.guards_intact()


def test_the_last_guard_reaches_to_the_end_of_what_is_mapped() -> None:
    with Arena.of_outputs(CPU, [OutputSpec((3,), torch.float32)]) as arena:
        assert arena.layout.size == arena.buffer.size == os.fstat(arena.buffer.fd).st_size
        assert arena.layout.size % mmap.PAGESIZE == 0
        arena.buffer.tensor[-1] ^= 1
        assert not arena.guards_intact()


def test_a_buffer_of_the_same_size_is_used_again_and_written_anew() -> None:
    slot = Slot("given", CPU)
    with Arena.of_tensors(CPU, [torch.ones(3)], 0xFF, slot=slot) as first:
        kept = first.buffer
        kept.tensor.fill_(9)  # a candidate's doing
        assert slot.descriptors() == [kept.fd]
    with Arena.of_tensors(CPU, [torch.zeros(5)], 0x42, slot=slot) as second:
        assert second.buffer is kept
        assert slot.descriptors() == []
        assert slot.described() == {"slot": "given", "size": kept.size, "mapped": True, "keep": True}
        assert second.guards_intact()
        assert second.unchanged()
    with Arena.of_outputs(CPU, [OutputSpec((4096,), torch.float32)], slot=slot) as third:
        assert third.buffer is not kept
        assert kept.fd < 0
        assert slot.descriptors() == [third.buffer.fd]
    slot.close()
    assert slot.size == 0


def test_a_large_buffer_is_given_back_after_its_call() -> None:
    slot = Slot("taken", CPU, kept=4096)
    with Arena.of_outputs(CPU, [OutputSpec((4096,), torch.float32)], slot=slot) as arena:
        buffer = arena.buffer
        assert not slot.described()["keep"]
    assert (buffer.fd, slot.size) == (-1, 0)


def test_after_a_failed_call_the_child_maps_anew_and_the_memory_still_counts() -> None:
    slot = Slot("given", CPU)
    Arena.of_tensors(CPU, [torch.ones(3)], slot=slot).close()
    with pytest.raises(KeyError), Arena.of_tensors(CPU, [torch.ones(3)], slot=slot) as arena:
        raise KeyError
    assert slot.size == arena.buffer.size
    with Arena.of_tensors(CPU, [torch.ones(3)], slot=slot) as again:
        assert again.buffer is arena.buffer
        assert slot.descriptors() == [again.buffer.fd]
    slot.close()


@pytest.mark.parametrize("count", [1, 1000])
def test_a_tensor_kept_from_a_call_that_was_not_moved_is_not_what_a_moved_one_gets(count: int) -> None:
    slot = Slot("given", CPU)
    with Arena.of_tensors(CPU, [torch.ones(count)], slot=slot) as first:
        (kept,) = in_child(first)
    with Arena.of_tensors(CPU, [torch.arange(count) + 2.0], 0xFF, slot=slot, moved=True) as second:
        assert second.buffer is first.buffer
        (seen,) = in_child(second)
        assert torch.equal(seen, torch.arange(count) + 2.0)
        assert kept[: buffers.MOVE // 4].isnan().all()
        assert second.guards_intact()
    slot.close()


def test_a_changed_input_is_noticed_and_nan_equals_itself() -> None:
    with Arena.of_tensors(CPU, [torch.tensor([float("nan"), -0.0])]) as arena:
        (seen,) = in_child(arena)
        assert arena.unchanged()
        seen[1] = 0.0  # equal as a number, not as bytes
        assert not arena.unchanged()


def test_a_buffer_cannot_be_shrunk() -> None:
    buffer = HostBuffer(1 << 16)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 0)
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{buffer.fd}", 1 << 20)
    buffer.close()


def test_closing_gives_the_memory_back() -> None:
    buffer = HostBuffer(1 << 20)
    reader = os.dup(buffer.fd)
    buffer.tensor.fill_(1)
    buffer.close()
    buffer.close()
    with mmap.mmap(reader, 1 << 20) as view:
        assert view[5] == 1  # a child that has it mapped still sees it
    os.close(reader)
    with open("/proc/self/maps") as file:
        assert "memfd:kernelward" not in file.read()


def test_places_do_not_overlap() -> None:
    layout = buffers.layout_outputs([OutputSpec((n,), torch.int8) for n in (0, 1, 255, 256, 4096)])
    ends = [ref.offset + ref.nbytes for ref in layout.refs]
    for ref, end in zip(layout.refs[1:], ends, strict=False):
        assert ref.offset - end >= buffers.GUARD
        assert ref.offset % buffers.ALIGN == 0
    assert layout.size - ends[-1] >= buffers.GUARD
    assert TensorRef.from_list(layout.refs[1].to_list()) == layout.refs[1]
