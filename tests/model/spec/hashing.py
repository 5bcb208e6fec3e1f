"""Which partition of a super stream a routing key has: Murmur3 with 32 bits, as in the stream protocol."""

SEED = 104_729
_MASK = 0xFFFF_FFFF


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _mixed(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def partition(key: str, partitions: int) -> int:
    data = key.encode()
    whole = len(data) & ~3
    value = SEED
    for at in range(0, whole, 4):
        value = _rotated(value ^ _mixed(int.from_bytes(data[at : at + 4], "little")), 13)
        value = (value * 5 + 0xE6546B64) & _MASK
    if rest := data[whole:]:
        value ^= _mixed(int.from_bytes(rest, "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return (value ^ value >> 16) % partitions
