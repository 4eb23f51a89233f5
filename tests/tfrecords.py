"""TFRecord files for tests, written by hand; the CRC is the textbook's, bit by bit (RFC 3720)."""

from __future__ import annotations

import struct
from functools import cache

POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _table()[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    parts = [
        length,
        struct.pack("<I", masked_crc(length)),
        data,
        struct.pack("<I", masked_crc(data)),
    ]
    return b"".join(parts)


def read_all(content: bytes) -> list[bytes]:
    """Return the records of a sound file, read from its beginning to its end."""
    records, offset = [], 0
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        data = content[offset + 12 : offset + 12 + length]
        assert content[offset : offset + 16 + length] == framed(data)
        records.append(data)
        offset += 16 + length
    return records
