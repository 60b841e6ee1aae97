"""The one place for hashing: content hashes of texts and values, and secret seeds."""

import hashlib
import hmac
import json
from typing import Any

SEED_BITS = 63  # torch.manual_seed takes a signed 64-bit value; keep it non-negative


def sha256_text(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes (lone surrogates are kept), as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def short(digest: str) -> str:
    """The first 12 digits of a digest: enough to name a thing in a message or a file name."""
    return digest[:12]


def stable_hash(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of key order and of the Python version.

    Raises:
        TypeError: the value holds something JSON cannot express.
    """
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True))


def derive_seed(key: bytes, *parts: str | int) -> int:
    """HMAC-SHA-256(key, parts) as a seed in [0, 2**63).

    Without the key the seed cannot be predicted; with it, every rank and every completion of a group derives the
    same one.
    """
    message = json.dumps(list(parts), separators=(",", ":")).encode()
    digest = hmac.new(key, message, hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)
