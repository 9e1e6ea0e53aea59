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
# Decoding a control frame of a client must not take long. Items of one list or map take 0.5 µs each
# at most: 8 ms. This is above the limits of all lists but the two below, so that a list that is too
# long is usually refused with the error of its own limit.
REQUEST_ITEMS_MAX = 16_384
# A field of a control frame of more than 128 KiB, except definitions, payloads and bounded lists.
FIELD_BYTES_MAX = 64 * KIB

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
# Distinct key filters of all consumers of a key-shared subscription. Each new key is matched
# against all of them once, at 0.2 µs each. A key of 4 KiB takes 13 µs each, or 80 µs with question
# marks between two stars. Such filters count as four: 20 ms for all.
KEY_GLOBS_MAX = 1_024
# All of them together are in every listing of the subscription.
FILTERS_BYTES_MAX = 64 * KIB

# Matching scans the value once for each star. Text with question marks between two stars is
# compared at every position: 8 KiB × 16 characters take 0.5 ms.
GLOB_STARS_MAX = 4
GLOB_LOOSE_MAX = 16

# Milliseconds since 1970 up to the year 9999, the last that Python knows. Below 2**53, so that any
# language can have it.
TIME_MS_MAX = 253_402_300_800_000

# Silence after which a peer is asked for a sign of life.
HEARTBEAT_MS = 10_000
# How long to poll for the next small message: the turn of a client between two messages of a
# conversation, on a busy machine.
BUSY_POLL_US = 300

# A page of a listing ends with the row that passes this. The largest row, a subscription with all
# its filters and `LISTED_CONSUMERS_MAX` consumers of at most 450 B, is another 64 KiB + 440 KiB,
# so that every page fits into a control frame.
LISTING_BYTES = 256 * KIB
LISTED_CONSUMERS_MAX = 1_000

# How long a consumer may keep a message before it is delivered again; the SDK renews by itself.
ACK_TIMEOUT_MS = 30_000
ACK_TIMEOUT_MS_MIN = 1_000
ACK_TIMEOUT_MS_MAX = 12 * 3_600_000
# Topics that become covered by subscriptions with wildcards when a topic is created: its partitions
# times those subscriptions. 0.5 µs each: 16 ms of the event loop.
COVERED_AT_ONCE_MAX = 32_768
# Deliveries of one message before it goes to the dead letters.
MAX_DELIVERIES = 5
MAX_DELIVERIES_MAX = 1_000_000
BACKOFF_STEPS_MAX = 32
# Longest delay of a nack.
NACK_DELAY_MS_MAX = ACK_TIMEOUT_MS_MAX
# The reason given with a nack, which is added to the dead letter. A longer reason is truncated.
# A subscription keeps the newest 1,024 reasons: 1 MiB.
NACK_REASON_BYTES_MAX = KIB
NACK_REASONS_MAX = 1_024
# Delivered and not acknowledged, of one subscription: twice the default credit of a consumer, for
# one that works on a window while the next is under way; bounded again by bytes.
IN_FLIGHT_COUNT_MAX = 262_144
IN_FLIGHT_BYTES_MAX = 256 * MIB
# Ranges in one frame of acknowledgements: 128 KiB of them.
ACKS_PER_FRAME_MAX = 4_096

# How long a stream remembers message ids, and how many of them. Beyond that number the oldest ids
# are dropped early. An id takes about 170 B of memory, whatever its length: 170 MB for one topic.
# For all topics together there is `Limits.message_ids_max`.
DEDUP_WINDOW_MS = 120_000
DEDUP_WINDOW_MS_MAX = 24 * 3_600_000
DEDUP_IDS_MAX = 1_000_000
# Messages of a batch that have ids: as many as the SDK puts into one. Each is looked up when the
# batch comes, and kept when the journal has it, at 0.6 µs: 10 ms of the event loop, twice. A long
# id takes 1.4 µs when the batch comes.
BATCH_IDS_MAX = PRODUCER_BATCH_COUNT
# Messages with keys of a batch or a transaction, to streams with `key_offsets`: as many as the SDK
# puts into a batch. Each is looked at when it comes, at 0.2 µs, and remembered when the journal has
# it, at 0.9 µs: 18 ms of the event loop in all.
BATCH_KEYS_MAX = PRODUCER_BATCH_COUNT
# The ids of a batch together, which the SDK counts in characters of up to 4 bytes. 16,384 ids of
# 255 bytes took 28 ms, and twice that on a machine half as fast.
BATCH_ID_BYTES_MAX = 4 * PRODUCER_BATCH_BYTES
# Requests or replies in one batch: as many as the SDK puts into one. Each is sorted by its asker,
# at 2.5 µs: 41 ms of the event loop at most. 65,536 for a thousand askers took 161 ms.
BATCH_REPLIES_MAX = PRODUCER_BATCH_COUNT
# Producers a stream remembers the last sequence number of; the longest silent makes room.
PRODUCERS_REMEMBERED_MAX = 10_000

# A transaction is one entry of the journal, held in memory until it is committed.
TRANSACTION_BYTES_MAX = 64 * MIB
# Giving a batch its offset, and showing it when it is stored, takes 8 µs each: 16 ms of the event
# loop. A commit of 10,000 batches took 123 ms.
TRANSACTION_BATCHES_MAX = 2_048
# Messages with ids in one transaction. A commit looks them up and keeps them as a batch does, and
# its batches are decoded in the same turn: 4 µs for an id of 255 bytes, so 16 ms of the event loop.
# 16,384 ids took 85 ms, and without a limit, 64 MiB of ids took 11 s.
TRANSACTION_IDS_MAX = 4_096
# Topics in one commit: two topics with 1,024 partitions each. Each topic is looked up twice, in a
# turn each, at up to 8 µs: 16 ms of the event loop. 100,000 topics took 742 ms.
TRANSACTION_TOPICS_MAX = 2_048
# Ranges of offsets acknowledged by one commit: as many as in one frame of acknowledgements.
TRANSACTION_ACKS_MAX = ACKS_PER_FRAME_MAX
TRANSACTION_TIMEOUT_MS = 60_000
# The id of a transaction. The SDK's ids have 24 characters, a UUID has 36.
TRANSACTION_WORD_BYTES_MAX = 128
# How long a retried commit is recognised, and how long the SDK retries one at most, whatever its
# timeout. A retry may take half of the time to arrive.
COMMIT_REMEMBERED_MS = 600_000
COMMIT_RETRIED_MS_MAX = COMMIT_REMEMBERED_MS // 2
# Memory for the results of commits, for one client and for all. A commit of one batch takes 200 B.
# So a client with 5,000 commits/s is remembered for 65 s, which is longer than its timeout, and
# 2,200 commits/s of all clients are remembered for the full 10 minutes.
COMMITS_CLIENT_BYTES_MAX = 64 * MIB
COMMITS_BYTES_MAX = 256 * MIB
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
# 1 GiB in batches of 64 KiB. Giving offsets to a batch takes 2 to 10 µs of the event loop. 32,768
# batches took 72 ms.
SERIES_BATCHES_MAX = 16_384
# Topics of one stage. Each topic is looked up when the stage is closed, at 2.7 µs: 11 ms of the
# event loop. 100,000 topics took 272 ms. 4,096 names of 255 B fill half of a control frame. The
# topics of one publish are bounded by `SERIES_BATCHES_MAX`.
STAGE_TOPICS_MAX = 4_096
# Staged and not yet in its file; beyond it, nothing is read from those who stage: 0.1 s at
# 300 MB/s, so that the disk is kept busy.
STAGING_BYTES_MAX = 32 * MIB
# Staged by a client and not sent yet.
STAGE_WINDOW_BYTES = 8 * MIB
# Saved cursors of one subscription.
SNAPSHOTS_MAX = 1_000
# Memory for the saved cursors of one subscription, and of all subscriptions of one journal. A saved
# cursor takes about 45 B for each topic, and up to 8 KiB more for each 65,536 messages between the
# first and the last acknowledged one: 18 saved cursors over 20,000 topics fit.
SAVED_CURSORS_BYTES_MAX = 16 * MIB
ALL_SAVED_CURSORS_BYTES_MAX = 64 * MIB

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
# What counts as a short check in a thread, which waits for other short ones only: some 10 ms for
# simple schemas, 0.4 s at worst.
CHECK_SHORT_WORK_MAX = 8 * MIB

# A message of a timeline, with id and attributes: half of a control frame, so that any one of them
# fits into a delivery, a listing or a transaction.
TIMELINE_MESSAGE_BYTES_MAX = MIB
# Levels of a priority topic; any other has one.
PRIORITY_LEVELS = 32
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
# Messages that a consumer keeps when it is closed: as many as it has credit for. 5 ms to decode.
KEPT_COUNT_MAX = TIMELINE_CREDIT_MAX
# Topics of one broker, each with the slots of a near-future window; and consumers of each, which
# are looked at whenever messages are handed out.
TIMELINES_MAX = 10_000
TIMELINE_CONSUMERS_MAX = 1_000
# Kept of the disk for timelines while it is full, or a tenth of a small disk, in four parts. Two
# are for what the write-ahead log has when the disk becomes full, and the file has no room for: up
# to 4 MiB before it is copied, and a group of 4 MiB. One is for the log, one for ends of leases.
TIMELINE_RESERVE_BYTES = 16 * MIB
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
    # Wildcard subscriptions; live and durable ones are counted separately. Each is matched against
    # the name of a new topic: 1 ms for 1,000.
    wildcards_max: int = 1_000
    # Topics that match a durable wildcard subscription when it is created. A seek or a report takes
    # up to 8 µs for each topic: 40 ms. Topics that are created later do not count.
    topics_per_subscription_max: int = 5_000
    # Topics of all durable wildcard subscriptions. A topic counts once for each subscription that
    # covers it. Each takes about 2.3 KB of memory: 460 MB in all.
    covered_topics_max: int = 200_000
    # Message ids that all streams together remember, at about 170 B: 510 MB. Beyond that, the
    # topics with the most forget their oldest.
    message_ids_max: int = 3_000_000
    # Memory for the producers that all streams together remember: 300 B and the name for each, and
    # 140 B for each run of messages: 250,000 producers with names of 40 B and one run. Beyond that,
    # the topics with the most forget the producers that were silent longest.
    producers_bytes_max: int = 128 * MIB
    # Keys whose newest offset all streams with `key_offsets` together remember, at about 200 B:
    # 200 MB. Beyond that, the topics with the most forget the keys that were silent longest, and
    # refuse `expected_key_offset` for keys that they do not know.
    key_offsets_max: int = 1_000_000
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
