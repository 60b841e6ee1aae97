"""The version of this package, also where it runs from a tree that nobody installed."""

from importlib import metadata


def version() -> str:
    """The installed version, or `uninstalled`."""
    try:
        return metadata.version("kernelward")
    except metadata.PackageNotFoundError:
        return "uninstalled"
