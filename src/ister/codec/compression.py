"""Compression of columns. The only file that knows the libraries, which are an extra.

A peer's word about the size after decompression is a limit, never an order: the output is
bounded by it, and a different size is an error.
"""

from functools import cache
from importlib.util import find_spec

from ister.base.errors import BadBatchError, CodecMissingError
from ister.codec.layout import Codec

_MODULES = {Codec.LZ4: "lz4", Codec.ZSTD: "zstandard"}


@cache  # Looking for modules takes 0.2 ms, and each task of Spark asks.
def available() -> list[Codec]:
    """Return the codecs this installation can read and write, `NONE` first."""
    return [Codec.NONE, *(c for c, module in _MODULES.items() if find_spec(module))]


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress `data`, or raise `CodecMissingError`."""
    try:
        if codec is Codec.LZ4:
            import lz4.block

            return bytes(lz4.block.compress(data, store_size=False))
        if codec is Codec.ZSTD:
            import zstandard

            return zstandard.compress(data, 3)
    except ImportError:
        raise CodecMissingError(codec.name.lower()) from None
    return data


def decompress(codec: Codec, data: memoryview, size_bytes: int) -> memoryview:
    """Return exactly `size_bytes` of decompressed data, or raise `BadBatchError`."""
    if codec is Codec.NONE:
        return data
    try:
        plain = _decompress(codec, data, size_bytes)
    except ImportError:
        raise CodecMissingError(codec.name.lower()) from None
    except Exception as error:  # Each library raises types of its own for broken input.
        raise BadBatchError(f"columns do not decompress as {codec.name.lower()}") from error
    if len(plain) != size_bytes:
        raise BadBatchError(f"columns hold {len(plain)} B, the header says {size_bytes} B")
    return memoryview(plain)


def _decompress(codec: Codec, data: memoryview, size_bytes: int) -> bytes:
    if codec is Codec.LZ4:
        import lz4.block

        return bytes(lz4.block.decompress(data, uncompressed_size=size_bytes))
    import zstandard

    # A frame that claims more than the header says is refused before memory is taken for it.
    claimed = zstandard.frame_content_size(data)
    if claimed not in (size_bytes, -1):
        raise ValueError("frame content size")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
