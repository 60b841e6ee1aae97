"""Building one extension for the GPU: host library and cubin, or torch's own compilation.

A `Builder` works in a process outside of the candidate's (`workshop.py`), with the candidate's sources as its only
input.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..sandbox.engine import CompileFailure
from . import fallback
from .cache import build_key
from .demangle import canonical, template_id
from .device_code import device_program, instantiations
from .frontend import ExtensionSource, Flags, Unsupported
from .host_code import HostUnits, host_units, is_gap
from .nvrtc import Cubin, DeviceProgram, nvrtc
from .split import split
from .split_model import SplitSource
from .toolchain import PreparedHost, ToolLimits, preprocess, tree_hash
from .torch_units import check_units

PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Built:
    """A built extension.

    Attributes:
        path: `nvrtc` or `load-inline`; why: for the latter, what the fast path lacks.
        library: the shared library; under `load-inline` a Python extension module called `name`.
        image: cubin with the kernels in `symbols`; empty where the extension has none.
        symbols: canonical kernel expression -> symbol in the cubin.
        strict_image: the same kernels with pauses and poison (`instrument`), under the same symbols; empty where nobody
            asked for it, where the extension has variables in device memory (a second copy of the code has its own),
            and where it does not compile.
        variables: names of variables in device memory.
        libraries: CUDA libraries that must be loaded before `library` (`cublas`).
        cached: it came out of the cache.
    """

    path: str
    library: bytes
    name: str
    why: str = ""
    image: bytes = b""
    symbols: Mapping[str, str] = field(default_factory=dict)
    strict_image: bytes = b""
    variables: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    cached: bool = False


class Builder:
    """Builds extensions.

    Args:
        host: the prepared host compiler, or None where the fast path cannot work here (`missing` says why).
        arch: `sm_90`.
        limits: of one compiler run.
        device_options: further NVRTC options.
    """

    def __init__(
        self,
        host: PreparedHost | None,
        arch: str,
        missing: str = "",
        limits: ToolLimits | None = None,
        device_options: tuple[str, ...] = (),
    ) -> None:
        self._host = host
        self._arch = arch
        self._missing = missing
        self._limits = limits or ToolLimits()
        self._device_options = device_options

    def build(self, extension: ExtensionSource, directory: Path, strict: bool = False) -> Built:
        """The fast path where it can, torch's own otherwise.

        Args:
            strict: for strict runs as well.

        Raises:
            CompileFailure: the code is wrong, by a compiler that torch would use as well.
        """
        try:
            return self.fast(extension, directory, strict)
        except Unsupported as gap:
            return self.slow(extension, directory, f"{gap.feature}: {gap.message}")

    def fast(self, extension: ExtensionSource, directory: Path, strict: bool = False) -> Built:
        """NVRTC and our header.

        Args:
            strict: for strict runs as well.

        Raises:
            CompileFailure: the code is wrong.
            Unsupported: this path cannot say.
        """
        if self._host is None:
            raise Unsupported("not-installed", self._missing)
        check_units(extension)
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
            work = Path(scratch)
            parts = split(extension, lambda text: preprocess(text, work))
            units = host_units(extension, parts)
            with ThreadPoolExecutor(3) as pool:
                host = pool.submit(self.compile_host, units, work)
                device = pool.submit(self.compile_device, extension, parts, instantiations(parts))
                poisoned = pool.submit(self.compile_strict, extension, parts, instantiations(parts)) if strict else None
                # A device error decides, whatever the host's compiler thinks of our header.
                cubin = device.result()
                library = host.result()
        return Built(
            "nvrtc",
            library,
            extension.name,
            image=cubin.image,
            symbols=_by_name(cubin),
            strict_image=b"" if poisoned is None else poisoned.result(),
            variables=tuple(symbol.qualified for symbol in parts.symbols),
            libraries=units.libraries,
        )

    def compile_host(self, units: HostUnits, work: Path) -> bytes:
        """The host part as a shared library; `work` is a scratch folder.

        Raises:
            CompileFailure: the code is wrong. Unsupported: our header may be to blame.
        """
        assert self._host is not None
        output = work / "host.so"
        try:
            self._host.compile(units.together, output, work, units.defines, units.link, self._limits)
        except CompileFailure as first:
            if first.reason == "compile-limit":
                raise
            # As one text the two parts may clash (a default argument given in both); torch compiles them apart.
            try:
                if len(units.apart) < 2:
                    raise
                self._host.compile(units.apart, output, work, units.defines, units.link, self._limits)
            except CompileFailure as second:
                if is_gap(str(first)) and second.reason != "compile-limit":
                    raise Unsupported("host-api", str(first)) from first
                raise first from None
        return output.read_bytes()

    def compile_device(self, extension: ExtensionSource, parts: SplitSource, expressions: Sequence[str]) -> Cubin:
        """The device part as a cubin with those instantiations; an empty one where there is no kernel.

        Raises:
            CompileFailure: the code is wrong. Unsupported: this path lacks a header or an option.
        """
        if not parts.kernels:
            return Cubin(b"", {})
        return self._compile(extension, parts, expressions, strict=False)

    def compile_strict(self, extension: ExtensionSource, parts: SplitSource, expressions: Sequence[str]) -> bytes:
        """The kernels once more, for strict runs; nothing where that cannot be. See `Built.strict_image`."""
        if not parts.kernels or parts.symbols:
            return b""
        try:
            return self._compile(extension, parts, expressions, strict=True).image
        except CompileFailure:
            return b""

    def _compile(
        self, extension: ExtensionSource, parts: SplitSource, expressions: Sequence[str], strict: bool
    ) -> Cubin:
        # A variable's address is asked for as well: one that is static has a symbol of the compiler's making.
        variables = [f"&{symbol.qualified}" for symbol in parts.symbols]
        try:
            return nvrtc().compile(self._program(extension, parts, [*expressions, *variables], strict))
        except CompileFailure as failure:
            plain = [kernel.qualified for kernel in parts.kernels if not kernel.template_params]
            if "__nv_name_map" not in str(failure) or set(plain) == set(expressions):
                raise
            # An instantiation that was guessed from the text does not exist; the launch will name the right one.
            return nvrtc().compile(self._program(extension, parts, [*plain, *variables], strict))

    def _program(
        self, extension: ExtensionSource, parts: SplitSource, expressions: Sequence[str], strict: bool
    ) -> DeviceProgram:
        program = device_program(extension, parts, self._arch, expressions, strict)
        return replace(program, options=(*program.options, *self._device_options))

    def more(
        self, extension: ExtensionSource, expressions: Sequence[str], directory: Path, strict: bool = False
    ) -> Built:
        """A cubin with kernels that only the running host code could name.

        Args:
            strict: for strict runs as well.

        Raises:
            CompileFailure: they do not compile.
        """
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
            parts = split(extension, lambda text: preprocess(text, Path(scratch)))
        cubin = nvrtc().compile(device_program(extension, parts, self._arch, expressions))
        again = self.compile_strict(extension, parts, expressions) if strict else b""
        return Built("nvrtc", b"", extension.name, image=cubin.image, symbols=_by_name(cubin), strict_image=again)

    def slow(self, extension: ExtensionSource, directory: Path, why: str) -> Built:
        """torch's own `load_inline` or `load`, without importing what it builds.

        Raises:
            CompileFailure: it fails there too.
        """
        key = request_key("load-inline", self._arch, extension, {})
        try:
            name, library = fallback.compile_extension(extension, key, self._arch, directory)
        except CompileFailure as failure:
            raise CompileFailure(failure.reason, f"{failure}\n(not built by the fast path: {why})") from None
        return Built("load-inline", library, name, why=why)


def versions(host: PreparedHost | None) -> dict[str, str]:
    """What a build depends on beside the candidate's sources, as part of its key."""
    import torch

    found = {"torch": torch.__version__, "package": tree_hash(PACKAGE)}
    if host is not None:
        found |= {"host": host.key, "nvrtc": ".".join(map(str, nvrtc().version))}
    return found


# ---- bytes -----------------------------------------------------------------------------------------------------------


def request_key(
    operation: str,
    arch: str,
    extension: ExtensionSource,
    versions: Mapping[str, str],
    expressions: Sequence[str] = (),
    strict: bool = False,
) -> str:
    """The cache's key for one build: sources and flags as given, architecture, and what compiles them."""
    source = {**asdict(extension), "headers": dict(extension.headers)}
    request: dict[str, Any] = {"operation": operation, "arch": arch, "source": source}
    request |= {"expressions": sorted(expressions), "strict": strict}
    return build_key({**request, "versions": dict(versions)})


def extension_from(data: Mapping[str, Any]) -> ExtensionSource:
    """Inverse of `asdict` after JSON.

    Raises:
        KeyError, TypeError, ValueError: it is not one.
    """
    flags = Flags(**{name: _texts(data["flags"][name]) for name in Flags.__dataclass_fields__})
    headers = {str(name): str(text) for name, text in data["headers"].items()}
    return ExtensionSource(
        str(data["name"]),
        _texts(data["cpp"]),
        _texts(data["cuda"]),
        _texts(data["functions"]),
        flags,
        _texts(data["labels"]),
        str(data["origin"]),
        headers,
    )


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TypeError("expected a list of strings")
    return tuple(value)


def _by_name(cubin: Cubin) -> dict[str, str]:
    """Symbols by canonical expression: as asked for, and as the symbol itself says (constants evaluated)."""
    names = {canonical(expression): symbol for expression, symbol in cubin.symbols.items()}
    return names | {template_id(symbol): symbol for symbol in cubin.symbols.values()}


def pack(built: Built) -> dict[str, bytes]:
    """A build as files."""
    about = {
        "path": built.path,
        "name": built.name,
        "why": built.why,
        "symbols": dict(built.symbols),
        "variables": list(built.variables),
        "libraries": list(built.libraries),
    }
    about_bytes = json.dumps(about).encode()
    return {"library": built.library, "image": built.image, "strict": built.strict_image, "about": about_bytes}


def unpack(files: Mapping[str, bytes], cached: bool) -> Built:
    """Inverse of `pack`."""
    about = json.loads(files["about"])
    return Built(
        about["path"],
        files["library"],
        about["name"],
        about["why"],
        files["image"],
        about["symbols"],
        files["strict"],
        tuple(about["variables"]),
        tuple(about["libraries"]),
        cached=cached,
    )
