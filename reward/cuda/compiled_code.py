"""What identifies compiled code: the bytes that a machine would load, without what compilers add for people.

Two sources are proved equivalent here by one fact only: their compilers made the same code of them. Sources that behave
the same and compile differently are not found, and no claim is made about them.
"""

import hashlib
import re
import struct

# Debug information, comments, notes; the symbol table of a host library names its temporary files.
_LEFT_OUT = re.compile(rb"\.(?:debug|nv_debug|line|comment|note|gnu\.build|gnu_debuglink|shstrtab|symtab|strtab)")
# Names that NVRTC makes for what has internal linkage: they hold a hash of the source text.
_INTERNAL = re.compile(rb"_INTERNAL_[0-9a-f]{8}_\d+_kernelward_cu_[0-9a-f]{8}(?:_\d+)?")
_NOBITS = 8


def code_hash(image: bytes) -> str:
    """Hash of an ELF64 image (a cubin, a shared library, an object): its sections' names, flags and bytes.

    Debug information, comments and notes do not count; the names of symbols that can be looked up do.

    Raises:
        ValueError: the image is no ELF64 file.
    """
    if image[:4] != b"\x7fELF" or image[4:5] != b"\x02":
        raise ValueError("not an ELF64 image")
    try:
        return _hash_sections(image)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ValueError(f"a damaged ELF64 image: {error}") from None


def _hash_sections(image: bytes) -> str:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    _, _, _, _, start, size, *_ = headers[names_at]
    names = image[start : start + size]
    digest = hashlib.sha256()
    device = image[0x12:0x14] == b"\xbe\x00"
    for name_at, kind, flags, _address, offset, length, _link, _info, _align, _entry in headers:
        name = names[name_at : names.index(b"\0", name_at)]
        if _LEFT_OUT.match(name) and not (device and name in (b".symtab", b".strtab")):
            continue
        data = b"" if kind == _NOBITS else image[offset : offset + length]
        if device:
            name, data = _INTERNAL.sub(b"_INTERNAL_", name), _INTERNAL.sub(b"_INTERNAL_", data)
        digest.update(struct.pack("<IQQI", kind, flags, length if kind == _NOBITS else len(data), len(name)))
        digest.update(name)
        digest.update(data)
    return digest.hexdigest()
