"""Device memory shared with a child: one driver allocation (cuMemCreate), passed as a POSIX file descriptor.

Unlike a legacy CUDA IPC handle this exposes exactly one buffer and works across user and pid namespaces. The judge
allocates (`DeviceBuffer`), the child maps (`ImportedBuffer`). Both use torch's own (primary) context.
"""

import os
from typing import Any

import torch
from cuda.bindings import driver

_POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_ON_DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM


class DeviceBufferError(OSError):
    """The driver refused an allocation or a mapping."""


def call(function: Any, *arguments: Any) -> Any:
    """A driver call's value (None, one value, or a tuple).

    Raises:
        MemoryError: no device memory left.
        DeviceBufferError: any other refusal; its text says `CUDA error`.
    """
    code, *values = function(*arguments)
    if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"{function.__name__}: no device memory left")
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DeviceBufferError(f"{function.__name__}: CUDA error {code.name}")
    return values[0] if len(values) == 1 else tuple(values) or None


class DeviceBytes:
    """A piece of device memory as torch takes it: zero-copy, without ownership."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


class Mapped:
    """One allocation mapped into this process's address space, readable and writable by one device.

    Args:
        guard: bytes of address space on either side in which nothing will ever be mapped.
    """

    def __init__(self, handle: Any, size: int, device: torch.device, guard: int = 0) -> None:
        self.size = size
        self.device = device
        self._reserved = size + 2 * guard
        self._address = call(driver.cuMemAddressReserve, self._reserved, 0, 0, 0)
        self.pointer = int(self._address) + guard
        try:
            call(driver.cuMemMap, self.pointer, size, 0, handle, 0)
            access = driver.CUmemAccessDesc()
            access.location.type = _ON_DEVICE
            access.location.id = ordinal(device)
            access.flags = _READ_WRITE
            call(driver.cuMemSetAccess, self.pointer, size, [access], 1)
        except BaseException:
            call(driver.cuMemAddressFree, self._address, self._reserved)
            raise

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """A uint8 tensor on a part of the memory; its storage covers nothing else."""
        return torch.as_tensor(DeviceBytes(self.pointer + offset, size), device=self.device)

    def close(self) -> None:
        """Unmap; nothing may use the memory any more."""
        if self.pointer:
            call(driver.cuMemUnmap, self.pointer, self.size)
            call(driver.cuMemAddressFree, self._address, self._reserved)
            self.pointer = 0


def ordinal(device: torch.device) -> int:
    """The device's number within this process."""
    return device.index or 0


def padded(size: int, properties: Any) -> int:
    """The size rounded up to what the device allocates in."""
    granularity = call(driver.cuMemGetAllocationGranularity, properties, _MINIMUM)
    return -(-max(size, 1) // granularity) * granularity


def properties_of(device: torch.device) -> Any:
    """Allocation properties: pinned on the device, exportable."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = _ON_DEVICE
    properties.location.id = ordinal(device)
    properties.requestedHandleTypes = _POSIX
    return properties


class DeviceBuffer:
    """The judge's end: allocates, maps, and holds a descriptor to send.

    Raises:
        MemoryError: no device memory left.
        OSError: the driver refuses.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        torch.cuda.set_device(device)
        torch.cuda.synchronize(device)  # makes the context, if this is the first use
        self.size = size
        properties = properties_of(device)
        whole = padded(size, properties)
        handle = call(driver.cuMemCreate, whole, properties, 0)
        try:
            self._mapping = Mapped(handle, whole, device)
            self.fd = int(call(driver.cuMemExportToShareableHandle, handle, _POSIX, 0))
        finally:
            call(driver.cuMemRelease, handle)  # mapping and descriptor keep the memory alive
        os.set_inheritable(self.fd, False)
        self.tensor = self._mapping.bytes(0, size)

    def close(self) -> None:
        """Unmap and close; the memory is free once the child has unmapped it too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self.tensor
            self._mapping.close()


class LocalBuffer(Mapped):
    """Memory of this process alone, of at least `size` bytes, with nothing mapped on either side.

    Raises:
        MemoryError: no device memory left.
        OSError: the driver refuses.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        properties = properties_of(device)
        whole = padded(size, properties)
        handle = call(driver.cuMemCreate, whole, properties, 0)
        try:
            super().__init__(handle, whole, device, guard=padded(1, properties))
        finally:
            call(driver.cuMemRelease, handle)


class ImportedBuffer(Mapped):
    """The child's end of a `DeviceBuffer`. The descriptor stays the caller's to close.

    Raises:
        OSError: the driver refuses.
    """

    def __init__(self, fd: int, size: int, device: torch.device) -> None:
        handle = call(driver.cuMemImportFromShareableHandle, fd, _POSIX)
        try:
            super().__init__(handle, padded(size, properties_of(device)), device)
        finally:
            call(driver.cuMemRelease, handle)
