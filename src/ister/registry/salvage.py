"""Facts of schemas of which some are lost: what is left is made to be a registry again."""

from ister.base.errors import CorruptedError
from ister.metadata import Delete, Fact, Metadata, Put, facts_below
from ister.registry.records import ID_KEY, VERSIONS_PREFIX, SubjectVersion, decode_record, encode_id
from ister.registry.registry import Registry

# An id is given once: where the last one is lost, more than were ever given since.
IDS_SKIPPED = 1_000_000
FACTS_PER_PAGE = 100


async def repair_registry(metadata: Metadata) -> list[str]:
    """Delete what cannot be used any more, until a registry opens; return the keys of that."""
    dropped: list[str] = []
    while True:
        await _repair_id(metadata)
        try:
            await Registry.open(metadata, now_ms=lambda: 0)
        except CorruptedError as error:
            fact = await _find_fact(metadata, error.file)
            if fact is None:
                raise
            await metadata.write(Delete(fact.key))
            dropped.append(fact.key)
        else:
            return dropped


async def _repair_id(metadata: Metadata) -> None:
    if await metadata.get(ID_KEY) is not None:
        return
    ids = [0]
    async for fact in facts_below(metadata, VERSIONS_PREFIX, page=FACTS_PER_PAGE):
        try:
            ids.append(decode_record(fact, SubjectVersion).schema_id)
        except CorruptedError:
            continue
    if max(ids):
        await metadata.write(Put(ID_KEY, encode_id(max(ids) + IDS_SKIPPED)))


async def _find_fact(metadata: Metadata, file: str) -> Fact | None:
    async for fact in facts_below(metadata, "schemas/", page=FACTS_PER_PAGE):
        if file == f"fact {fact.key!r} of the metadata":
            return fact
    return None
