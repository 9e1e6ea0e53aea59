"""Every limit of the platform, with its default and where the number comes from.

Two kinds live here. Constants that are part of a format or of the protocol, which nobody can
change without a new version; and the defaults of `Limits`, which an operator can change.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# A name goes into metrics labels, file names and terminals: one line of any of them.
NAME_BYTES_MAX = 255

# FNV-1a in Python costs about 60 ns a byte, so a key is one line of text, not a document.
KEY_BYTES_MAX = 4 * KIB

# Attributes are headers: as many and as long as HTTP servers commonly take.
ATTRIBUTES_COUNT_MAX = 128
ATTRIBUTE_BYTES_MAX = 8 * KIB

# A message id is a natural key (an order number, a UUID), never content.
MESSAGE_ID_BYTES_MAX = 255

# What a client shows to be let in. 32 random bytes are 64 digits; 512 fits every header, and a
# hello.
TOKEN_CHARACTERS_MAX = 512

# Offsets inside a batch are Arrow's 32-bit offsets, and a batch is one allocation on each hop.
# 64 MiB is what an operator may raise `batch_bytes_max` to; the default is below.
BATCH_BYTES_CEILING = 64 * MIB

# 65,536 single-byte messages are 320 KiB of columns: more gains nothing, and bounds the Python
# lists that decoding a hostile batch can make.
BATCH_COUNT_MAX = 65_536

# A control frame holds names, filters, listings, which are paged to stay below this, and
# definitions of schemas, which have up to 1 MiB.
CONTROL_BYTES_MAX = 2 * MIB

# The client closes a batch at this size. Python and the system cost the same for a small batch
# as for a large one, so larger is faster, until a batch waits too long behind another (measured
# with 1 KiB messages: 256 KiB lost 30 % of the throughput, 1 MiB gained nothing).
PRODUCER_BATCH_BYTES = 512 * KIB
PRODUCER_BATCH_COUNT = 16_384

# A frame may be this much larger than `batch_bytes_max` before it ends the connection: a batch
# that is a little too large is to be refused by an error that names the limit.
BATCH_BYTES_EXCESS = 512 * KIB

# What one producer may hold unacknowledged before `send` waits and `send_nowait` refuses.
# 1,000,000 messages of 100 bytes fit (each counted with 32 bytes on top), so a burst from a
# loop without an await is fine.
PRODUCER_PENDING_BYTES_MAX = 128 * MIB

# Sent but unacknowledged bytes of one producer; beyond it, batches wait in the client so that a
# slow broker is not flooded. 100 ms at 40 MB/s.
PRODUCER_WINDOW_BYTES = 4 * MIB

# What a consumer asks the broker to send ahead of its processing: 100 ms at 80 MB/s and
# 600,000 msg/s, so a round trip or a pause of the event loop never empties the buffer.
CREDIT_BYTES = 8 * MIB
CREDIT_COUNT = 65_536
CREDIT_MAX = 2**31 - 1

# Requests of one client waiting for their answers.
REQUESTS_MAX = 65_536

PARTITIONS_MAX = 1_024

# Who waits for messages without reading asks again after this: no answer is ever later.
WATCH_MS_MAX = 60_000
# Of one connection, each with a place in the list of every stream it waits for: 100 B for each of
# those, 25 MiB in all when all are as large as they may be.
WATCHES_MAX = 64
# Asked for at once: an answer has about 300 B for each, and has to fit into CONTROL_BYTES_MAX.
WATCHED_STREAMS_MAX = 4_096
# Rows of one answer to where a stream lies: about 200 B each. The header of each file is read.
LOCATED_ROWS_MAX = 1_000

# A filter is evaluated on every batch: bound the work of one.
FILTERS_MAX = 64
# All of them together are in every listing of the subscription.
FILTERS_BYTES_MAX = 64 * KIB

# A page of a listing ends with the row that passes this. The largest row, a subscription with all
# its filters and `LISTED_CONSUMERS_MAX` consumers of at most 450 B, is another 64 KiB + 440 KiB,
# so that every page fits into a control frame.
LISTING_BYTES = 256 * KIB
LISTED_CONSUMERS_MAX = 1_000

# How long a consumer may keep a message before it is delivered again; the SDK renews by itself.
ACK_TIMEOUT_MS = 30_000
ACK_TIMEOUT_MS_MIN = 1_000
ACK_TIMEOUT_MS_MAX = 12 * 3_600_000
# Deliveries of one message before it goes to the dead letters.
MAX_DELIVERIES = 5
MAX_DELIVERIES_MAX = 1_000_000
BACKOFF_STEPS_MAX = 32
# Longest delay of a nack.
NACK_DELAY_MS_MAX = ACK_TIMEOUT_MS_MAX
# Delivered and not acknowledged, of one subscription: twice the default credit of a consumer, for
# one that works on a window while the next is under way; bounded again by bytes.
IN_FLIGHT_COUNT_MAX = 262_144
IN_FLIGHT_BYTES_MAX = 256 * MIB
# Ranges in one frame of acknowledgements: 128 KiB of them.
ACKS_PER_FRAME_MAX = 4_096

# For how long a stream remembers message ids, and how many of them at most: an id costs about
# 200 B of memory, so that one topic cannot take more than 200 MB.
DEDUP_WINDOW_MS = 120_000
DEDUP_WINDOW_MS_MAX = 24 * 3_600_000
DEDUP_IDS_MAX = 1_000_000
# Producers a stream remembers the last sequence number of; the longest silent makes room.
PRODUCERS_REMEMBERED_MAX = 10_000

# A transaction is one entry of the journal, held in memory until it is committed.
TRANSACTION_BYTES_MAX = 64 * MIB
TRANSACTION_BATCHES_MAX = 10_000
TRANSACTION_TIMEOUT_MS = 60_000
# Batches that are staged wait in files without a name, one for each stage, and so in as many
# descriptors: as many as half of the connections a broker takes.
STAGES_MAX = 10_000
# Four of the largest publishes of four queries: what a disk of 100 GB can well spare.
STAGES_BYTES_MAX = 16 * GIB
# How long a stage waits to be published. A query that failed is back within minutes, and stages
# anew; one that is stopped by hand overnight has nothing to gain from what it staged.
STAGE_KEEP_MS = 600_000
STAGE_KEEP_MS_MIN = 1_000
STAGE_KEEP_MS_MAX = 24 * 3_600_000
# What is published at once. Nothing else is written meanwhile: 2 s at 500 MB/s.
SERIES_BYTES_MAX = 1 * GIB
# 1 GiB in batches of 32 KiB. Giving offsets to a batch takes 10 µs of the event loop: 0.3 s for so
# many.
SERIES_BATCHES_MAX = 32_768
# Staged and not yet in its file; beyond it, nothing is read from those who stage: 0.1 s at
# 300 MB/s, so that the disk is kept busy.
STAGING_BYTES_MAX = 32 * MIB
# Staged by a client and not sent yet.
STAGE_WINDOW_BYTES = 8 * MIB
# Saved cursors of one subscription.
SNAPSHOTS_MAX = 1_000

# One write of metadata. These are etcd's defaults (128 changes, 1.5 MiB with keys and wrapping), so
# that what one store takes, another takes as well.
FACTS_PER_WRITE_MAX = 128
FACTS_BYTES_MAX = MIB + 256 * KIB
# The longest key holds a prefix and the name of a topic.
FACT_KEY_BYTES_MAX = KIB
FACTS_PER_PAGE_MAX = 1_000
# Calls that wait for the one thread of the metadata: a second of them at 1 ms for a sync.
METADATA_CALLS_MAX = 1_000

# The registry keeps all schemas in memory. A version with a definition of 1 KiB costs about 2 KiB
# there; the bytes of all definitions together are bounded as well.
SUBJECTS_MAX = 10_000
SCHEMA_VERSIONS_MAX = 1_000
SCHEMAS_BYTES_MAX = 256 * MIB
# As many topics as a broker has by default.
BINDINGS_MAX = 100_000
# Said about one version, beside its definition; together they stay below `FACTS_BYTES_MAX`.
SCHEMA_DESCRIPTION_BYTES_MAX = 4 * KIB
SCHEMA_TAGS_MAX = 64

# What is checked against a schema in the event loop: about 0.3 ms for JSON of 1 KiB a message.
# More goes to a thread, which costs 0.1 ms on the way.
CHECK_COUNT_MAX = 64
CHECK_BYTES_MAX = 64 * KIB
# The same for schemas that are slow to check, as bytes times the weight of the schema: 5 ms and
# less for dense Avro, 15 ms for JSON by a schema of a thousand choices.
CHECK_WORK_MAX = 16 * CHECK_BYTES_MAX

# A message of a timeline, with id and attributes: half of a control frame, so that any one of them
# fits into a delivery, a listing or a transaction.
TIMELINE_MESSAGE_BYTES_MAX = MIB
# Changes of one command, messages of one delivery. Commands are cut at `TIMELINE_BYTES` as well.
# An error has at most two names of 255 B in it: 1,000 of them are 0.6 MiB of an answer.
TIMELINE_CHANGES_MAX = 1_000
TIMELINE_BYTES = MIB
# Messages of one page of a listing: read from the store before anybody knows how large they are,
# so that a page takes 100 MiB of memory at most.
TIMELINE_PAGE_MAX = 100
# What a consumer may be handed and has not finished. Each is a row of the store and a lease in the
# client: 1 KiB for both.
TIMELINE_CREDIT_MAX = 100_000
# Topics of one broker, each with the slots of a near-future window; and consumers of each, which
# are looked at whenever messages are handed out.
TIMELINES_MAX = 10_000
TIMELINE_CONSUMERS_MAX = 1_000
# Rules of one cron topic: each is looked for when the broker starts, and takes 300 B of memory.
# At midnight all of them may fire: 10,000 take the store 5 seconds, and it has 10. What a rule
# sends is stored anew whenever it fires, and is read with that of 50 or 100 others: 6 MiB.
CRON_RULES_MAX = 10_000
CRON_PAYLOAD_BYTES_MAX = 64 * KIB
# A lease has to outlast its way to the consumer; it may last an hour, or a week if a topic says so.
LEASE_MS_MIN = 10
LEASE_MS_MAX = 3_600_000
# Of a consumer that says nothing about it: long enough for what a message usually takes, and no
# longer than one wants to wait for those of a consumer that died.
LEASE_MS = 60_000
LEASE_MS_CEILING = 7 * 24 * 3_600_000
# How long before they are due messages may be sent: each takes memory of a client until then.
PREFETCH_MS_MAX = 5_000
# What the clocks of a client and its broker may differ by before somebody is told: times that an
# application makes from its own clock are wrong by as much. Machines that ask for the time over a
# network (NTP) differ by some milliseconds, tens at the worst.
DRIFT_US_MAX = 100_000
# Not due yet and sent to one consumer: 5,000 messages a second, a second ahead.
PREFETCH_COUNT_MAX = 5_000

# Names of topics a connection has been told about (deliver frames carry the number).
TOPIC_ALIASES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one broker accepts. Every field can be set by flag, environment or file."""

    message_bytes_max: int = 8 * MIB
    batch_bytes_max: int = 16 * MIB
    topics_max: int = 100_000
    namespaces_max: int = 1_000
    subscriptions_max: int = 100_000
    consumers_per_subscription_max: int = 10_000
    connections_max: int = 20_000
    # Connected, but not yet past the handshake: the oldest makes room for the newest.
    handshakes_max: int = 1_024
    producers_per_connection_max: int = 10_000
    consumers_per_connection_max: int = 10_000
    # What waits in the broker for one slow consumer, and for all of them together. Queued
    # batches are shared between consumers, so real memory is usually far below the sum.
    queue_bytes_max: int = 16 * MIB
    queue_count_max: int = 262_144
    queues_bytes_max: int = 512 * MIB
