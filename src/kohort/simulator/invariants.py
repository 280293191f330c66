"""What Kohort promises, each promise by its code, and the bugs of others that it was tried with.

The one source: `kohort simulate` prints from here what was broken, comments and tests cite the
codes, and `tools/write_invariants.py` writes `docs/invariants.md`. Pure data.

Rules:
- A code in a comment, a docstring or a check is listed here; a test looks for others.
- One sentence each: what always holds (of a bug: what once happened elsewhere).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Section(NamedTuple):
    """Codes of one kind."""

    title: str
    about: str
    codes: Mapping[str, str]


COORDINATOR: Final = Section(
    "The group coordinator (G)",
    "Hold after every event, in both group protocols. Members, assignments and generations are "
    "those that the coordinator knows.",
    {
        "G1": "a partition has at most one owner: one member that owns it or is still giving it "
        "up, and one client that has not been fenced and reads it",
        "G2": "an assignment gives each subscribed partition to exactly one member, and only to "
        "one that subscribes to its topic",
        "G3": "generations and group epochs rise and none is issued twice, also across failovers; "
        "a member's epoch falls only when it joins, leaves or is fenced",
        "G4": "a partition has an epoch exactly as long as it has an owner, and what has an owner "
        "is not granted again; of a classic group, a rebalance ends",
        "G5": "the group in memory is the group in the log, and a group is Stable only when every "
        "member has exactly what the target gives it",
        "G6": "requests are accepted from current members in the current generation only; a "
        "KIP-848 commit may carry any epoch since its partition was assigned; without a "
        "generation only a group without members takes commits",
        "G7": "all SyncGroup answers of a generation come from one plan",
        "G8": "an instance id belongs to one live member, and the member that it replaced is "
        "fenced, also after a failover",
        "G9": "live state == replay(log) == replay(compacted log), and no legally compacted log "
        "fails to load",
        "G10": "nobody is shown what is not durable yet, and an append that fails leaves no "
        "visible state",
        "G11": "one node accepts requests for an offsets partition in a leader epoch; it loads "
        "and unloads in the order of the epochs",
        "G12": "the members of a group, its pending member ids and their bytes are bounded",
        "G13": "no member is expelled that was heard within its session timeout",
        "G14": "an assignor is a pure function that does not depend on order: equal subscriptions "
        "differ by one partition at most, sticky plans move no more than needed, a cooperative "
        "plan leaves to an owner what it has not given up, and a tie between claims drops both",
    },
)

LIVENESS: Final = Section(
    "Liveness (GL)",
    "Hold after the last fault, within the time-outs of the group.",
    {
        "GL1": "the group settles within its rebalance and session timeouts, with at most two "
        "rebalances for each change of its members",
        "GL2": "every living consumer with a subscription is a member",
        "GL3": "a dead member is gone after its session timeout",
        "GL4": "every rebalance ends: members have the rebalance timeout to join again, "
        "and as long to fetch their assignment",
        "GL5": "every subscribed partition with data is read and handed out; to be assigned is "
        "not enough",
    },
)

CONSUMER: Final = Section(
    "The consumer (C, CL)",
    "What an application observes of its own consumer. CL is about progress.",
    {
        "C1": "records of a partition are handed out only between the return of on_assigned and "
        "the start of on_revoked or on_lost, in the current generation",
        "C2": "while a partition is owned, offsets rise and skip no visible record; the first is "
        "the committed offset, or that of a reset or a seek",
        "C3": "a position is the offset after the last record handed out; it falls only by a seek "
        "or a reset",
        "C4": "a commit covers what was dealt with, no more: an automatic one covers what the "
        "previous poll returned, a manual one ends at the position",
        "C5": "commits of one consumer arrive in the order in which they were made",
        "C6": "listeners hear exact differences, one call at a time and under no lock, and "
        "on_lost only when the generation was lost",
        "C7": "an asynchronous completion carries its generation, assignment version, seek "
        "version and connection, and is dropped when one of them has moved on",
        "C8": "a position is reset only on a broker's confirmed word: no committed offset, or an "
        "offset out of range by the current leader; never after a time-out or an undefined answer",
        "C9": "a wakeup, a cancellation or an exception at any point loses and doubles no record "
        "and stops no heartbeat",
        "C10": "a paused partition hands out nothing and keeps what was fetched; its pause ends "
        "with its ownership and survives a rebalance that retains it",
        "C11": "close() ends in its time, and a static member does not leave the group",
        "C12": "heartbeats continue while the application works, until max.poll.interval.ms ends",
        "C13": "an Arrow batch holds records of one assignment, in the order of C2, and no buffer "
        "is used again while anything refers to it",
        "C14": "a client that is used in a forked process raises",
        "C15": "what a listener commits in on_revoked, without waiting too, is answered before its "
        "partitions are given up, unless the generation or the call's time ends first",
        "CL1": "poll(timeout) ends in its time",
        "CL2": "a commit succeeds within a bounded time after the coordinator has moved",
        "CL3": "a consumer passes batches without visible records: control, aborted and compacted "
        "ones",
    },
)

FETCHER: Final = Section(
    "The fetcher (F)",
    "From a Fetch request to records.",
    {
        "F1": "a Fetch answer holds only partitions of its session, each once, and a session that "
        "was refused begins with a full request",
        "F2": "read_committed returns a record exactly when its transaction is committed and it "
        "is below the last stable offset, in whatever order the broker lists aborted "
        "transactions",
        "F3": "a batch's CRC is checked before the batch is parsed",
        "F4": "fetched bytes that wait to be handed out stay within their limit",
        "F5": "decompressed bytes are bounded",
        "F6": "a malformed batch raises one typed error with topic, partition, offset and the "
        "offset to continue from; it never hangs or raises anything else",
    },
)

OFFSETS: Final = Section(
    "Committed offsets (O)",
    "What the coordinator keeps for a group.",
    {
        "O1": "a client that commits an offset reads it back, and no client reads one that is only "
        "staged in a transaction",
        "O2": "a confirmed commit survives failover, process death and power loss as its "
        "durability promises",
        "O3": "a committed offset falls only when somebody commits a lower one",
        "O4": "no offset expires before its time, while its group has members or rebalances, or "
        "while a transaction holds it",
        "O5": "of a transaction's commit and a plain one, the later record counts, live and in "
        "replay",
        "O6": "a reader that wants stable offsets is refused while a transaction holds them",
        "O7": "a commit is confirmed exactly when it is as durable as promised",
    },
)

LOG: Final = Section(
    "The log (L)",
    "A partition on disk.",
    {
        "L1": "acknowledged records are there after a crash, at the level of durability they were "
        "acknowledged for",
        "L2": "the recovered records are an exact prefix of the appended ones: offsets rise, and "
        "no batch is partial",
        "L3": "a record that was readable below the high watermark keeps its offset and its bytes",
        "L4": "a batch of an idempotent producer is appended at most once, also after a restart "
        "or a truncation",
        "L5": "an append holds its buffer until the operating system has the bytes",
        "L6": "an index lookup finds what a linear scan finds",
        "L7": "recovery may crash and run again with the same result; the recovery point never "
        "passes what was flushed",
        "L8": "high watermark, last stable offset and the latest offset never fall for a client",
        "L9": "a failed fsync takes the partition offline, and nothing is acknowledged after it",
        "L10": "unknown and temporary files are ignored or removed, never parsed",
        "L11": "with several nodes a leader epoch has one leader, new leaders have all that was "
        "committed, logs agree below the high watermark, and stale epochs are refused",
    },
)

RETRIES: Final = Section(
    "Retries (R)",
    "Records that failed.",
    {
        "R1": "a failed record is in exactly one place: uncommitted at its source, in a retry "
        "topic, in the dead-letter topic, or done",
        "R2": "the copy in the next topic is acknowledged before the source's offset is "
        "committed, or both happen in one transaction",
        "R3": "no copy is handed out before it is due, and it is late by a poll and a rebalance "
        "at most",
        "R4": "attempt k+1 follows attempt k; the path through the retry topics has no cycle and "
        "ends in the dead-letter topic",
        "R5": "key, value and headers of a copy are byte for byte those of the record; origin and "
        "first failure are added once",
        "R6": "a retry topic has one delay and LogAppendTime, so due times rise within a "
        "partition and waiting at its head is right",
        "R7": "a record that does not decode is routed as the bytes it came with",
        "R8": "a pause belongs to one assignment of its partition and ends with it",
        "R9": "a redrive has an id, and repeating it does nothing",
        "R10": "waiting for a due time stops neither polls nor heartbeats",
    },
)

EXACTLY_ONCE: Final = Section(
    "Exactly once (X)",
    "Stores, Kafka transactions and Spark batches.",
    {
        "X1": "a batch that is replayed has its effect once: the fence that says so is stored "
        "with its data",
        "X2": "the range of a batch is read from the offset log, never worked out again",
        "X3": "wherever the process dies, the results are those of each input once",
        "X4": "the group's committed offset never passes what the checkpoint or the store has",
        "X5": "of two attempts at one range, one is accepted and the other changes nothing",
        "X6": "of two drivers on one checkpoint, the second is fenced",
        "X7": "copies for retry topics belong to the transaction of their batch and have the same "
        "ids when it is repeated",
        "X8": "offset and effect are stored in one transaction, the start is read from there, and "
        "the group's offset is only information",
    },
)

DESIGN: Final = Section(
    "Retries and exactly once: rules of the design (A, D, E)",
    "What the retry code does to keep R and X.",
    {
        "A2": "retry topics, copies, redrive: names are a function of topic, group and delay; "
        "headers are text, single and untrusted when they come in; copies that are too large "
        "shrink step by step; programming errors are classified by exception class; a record that "
        "kills the process goes to the dead-letter topic; Metrics count each of these",
        "D1": "ListOffsets by time answers the first offset whose timestamp is not below it, also "
        "with timestamps out of order; -1 is believed only when it is proven",
        "D2": "the gate reads the end of a retry topic first and the first record that is not due "
        "second, so that it is never early; it looks again when that one is due, after 30 s at "
        "the latest",
        "D3": "a consumer fetches a retry topic only up to the gate and never holds what is not "
        "due",
        "D4": "a Spark query waits without a running task: the planner answers its start again "
        "until a record is due",
        "E2": "position and effects move in one transaction: a fence for each source partition, a "
        "ledger row for each copy, and a kill at any step leaves the work to the next attempt",
        "E3": "without Spark the tracker's snapshot moves in the same transaction: with the fence "
        "row in a database, with the group's offset in a Kafka transaction",
    },
)

WORKERS: Final = Section(
    "Workers (W)",
    "The App's engine between poll and commit.",
    {
        "W1": "a commit never passes an unfinished record; the snapshot of records done beyond it "
        "is beside the commit, bound to its offset, and always fits; an unreadable one means that "
        "nothing is done",
        "W2": "workers get bounded lists and never touch trackers; a process that dies is "
        "replaced, and its records are tried one at a time",
        "W3": "with hold_key the later records of a key wait for the failed one, across restarts "
        "and within bounds",
        "W4": "pauses are computed each time from the present state; no flag outlives a rebalance",
        "W5": "what a handler sends counts only when the handler succeeds",
        "W6": "a dependency that is down opens the circuit breaker and does not send its topic to "
        "the dead-letter topic; one record at a time finds out whether it is back",
        "W7": "one bad record never fails its neighbours in a batch",
        "W8": "a dead-letter topic is no input of the program that wrote it",
    },
)

SECURITY: Final = Section(
    "Strangers (S)",
    "The promises of a broker to every client that can reach its port.",
    {
        "S1": "before a login only ApiVersions, SaslHandshake and SaslAuthenticate are answered, "
        "within a size of their own",
        "S2": "a connection's frames, its requests in flight and its unread answers are bounded",
    },
)

SYSTEM: Final = Section(
    "The whole system (SY)",
    "Checked at the end of each run of `kohort simulate system`, when all faults have ended.",
    {
        "SY1": "an acknowledged record is in its log once, at the offset that its producer was "
        "answered",
        "SY2": "a record of unknown fate is in its log at most once",
        "SY3": "the records of one producer are in each partition in the order in which they were "
        "sent",
        "SY4": "read_committed shows a committed transaction whole and an aborted one not at all; "
        "one of unknown fate whole or not at all",
        "SY5": "no transaction stays open: read_committed readers reach the end of every log",
        "SY6": "exactly-once copies: each input is in the output once, and nothing else is",
        "SY7": "a consumer reads what the log holds at that offset, and with read_committed no "
        "aborted record",
        "SY8": "a committed offset never moves back, a member of the group has read all below it, "
        "and who gets the partition later reads from there",
        "SY9": "compaction keeps the latest acknowledged value of every key",
        "SY10": "when faults have ended, every program comes to its end; only an error of the disk "
        "takes a partition offline, a full one does not",
        "SY11": "an app handles each input until it succeeds, or dead-letters it; it dead-letters "
        "nothing that would succeed",
        "SY12": "no retry of an app begins before its delay has passed",
        "SY13": "an app with a store has each input in it exactly once, or in its ledger as failed",
        "SY14": "retention and DeleteRecords take only the beginning of a log, retention no more "
        "than the topic's limit allows; what DeleteRecords has answered does not come back",
        "SY15": "a reader misses only records that were deleted before it came to them",
        "SY16": "a redrive sends each dead letter that was there when it began once, and no other",
        "SY17": "a topic that is created again begins empty: no record and no committed offset of "
        "the one before it is there",
        "SY18": "committed offsets are linearizable: a commit takes effect whole, at one moment "
        "between its request and its answer (a transaction's between EndTxn and its answer; one "
        "without an answer at any later moment, or never), and a fetch shows what counts at such a "
        "moment; a commit that was refused, or that a newer generation has fenced, never takes "
        "effect",
    },
)

SIMULATOR: Final = Section(
    "The simulator itself",
    "",
    {
        "STORY": "the scenario goes as it was written",
        "CRASH": "nothing raises what nobody expects",
    },
)

BUGS: Final = Section(
    "Bugs of others, replayed (B)",
    "Each happened in another coordinator, client or connector. The table of [the simulator]"
    "(simulator.md#the-corpus) names the scenario or test that replays it, the mutant that plants "
    "it here, and the promise that it breaks.",
    {
        "B1": "a partition that a member was giving up was assigned back to it, its old owner was "
        "forgotten, and another member got it too",
        "B2": "a keep-alive, or a heartbeat with stale contents, was taken for having given a "
        "partition up",
        "B3": "a second heartbeat during a revocation was compared with the stale assignment, and "
        "a partition was kept for ever",
        "B4": "an empty assignment was taken for no change",
        "B5": "the answer that carried an assignment was lost and never sent again",
        "B6": "a fenced member that joined again under its id was refused for its old epoch",
        "B7": "a member acknowledged a topic that its metadata did not know yet and never fetched "
        "it",
        "B8": "a member acknowledged a partition whose committed offset it could not read, and "
        "never fetched it",
        "B9": "a good answer with an impossible epoch or interval made a member leave, rewind or "
        "spin",
        "B10": "a member that polled too seldom did not leave, or a late heartbeat brought it back",
        "B11": "a commit crossed a heartbeat that raised the epoch, and was refused as stale",
        "B12": "new partitions were noticed with old metadata and never assigned",
        "B13": "a join without a member id was repeated, and the first one left a member that "
        "never expired",
        "B14": "a member that sent heartbeats and never SyncGroup held its group up for ever",
        "B15": "joins that timed out and were repeated left one ghost member each",
        "B16": "a pending member that died kept the rebalance from ending",
        "B17": "concurrent joins went beyond the group's maximum size",
        "B18": "a static member that came back while the plan was awaited got nothing, because "
        "the plan named its old id",
        "B19": "a static member's new id was only in memory: after a failover the zombie was "
        "accepted and the live one fenced",
        "B20": "after a load, static members got ids that were not unique, and a member that came "
        "back kept its old rebalance timeout",
        "B21": "a consumer with assign() and an instance id could not commit",
        "B22": "a failed append of a generation was answered with an error that clients do not "
        "expect",
        "B23": "a node heard that it had resigned after it heard that it was elected, and unloaded",
        "B24": "a compacted log, with tombstones first or records missing, did not load",
        "B25": "offsets expired during a rebalance, or because their record named no expiry",
        "B26": "what a transaction had staged was swept away with expired offsets",
        "B27": "live state and replay chose different winners between a plain and a transactional "
        "commit",
        "B28": "a transactional commit was checked before a verification during which the group "
        "changed",
        "B29": "a commit was acknowledged and not written",
        "B30": "the error of an old heartbeat reset the new generation, again and again",
        "B31": "a connection that was lost during a join took the member id with it",
        "B32": "two members claimed one partition in two generations, and the older claim won or "
        "both lost everything",
        "B33": "two members claimed one partition in one generation, and one of them was believed",
        "B34": "a member id that was lost during a join left stale claims",
        "B35": "a sticky assignor never came to rest",
        "B36": "a member forgot, or falsely claimed, what it had owned",
        "B37": "members without partitions were left out of the leader's plan",
        "B38": "the assignment of an older subscription was taken for that of the new one",
        "B39": "each short poll sent a new commit, and the member never joined",
        "B40": "a member continued after a commit had been refused because it was expelled",
        "B41": "a failed lookup of the coordinator was the last one",
        "B42": "thousands of commits waited for a coordinator that was gone, without a bound",
        "B43": "heartbeats starved while the application worked",
        "B44": "a wakeup left a rebalance half done",
        "B45": "a pause was lost, or kept, over a rebalance",
        "B46": "a rebalance took place behind the back of an application that was at work",
        "B47": "records were handed out after the last commit before a revocation",
        "B48": "an automatic commit covered records that the application had not seen",
        "B49": "an earlier commit overtook a later one",
        "B50": "a position without a leader epoch was taken for an old one and never committed",
        "B51": "a late fetch, or a resume, moved a position",
        "B52": "the end of an epoch validation undid a seek",
        "B53": "a missing leader, or an undefined end, was taken for a truncation",
        "B54": "the answer for one partition reset another one",
        "B55": "a consumer stopped behind batches without records",
        "B56": "aborted transactions came in another order than expected, and aborted records "
        "were returned",
        "B57": "an unknown error was taken for the end of a transaction, or an end applied to the "
        "next one",
        "B58": "the latest offset fell when the leader changed",
        "B59": "a shutdown saved the producers' sequences and then took one more batch",
        "B60": "a pause outlived the ownership of its partition",
        "B61": "a poll that only kept a consumer alive discarded records",
        "B62": "a batch was written, the checkpoint was not, and the replay wrote it again",
        "B63": "an empty commit left its in-flight mark, and no commit followed",
        "B64": "a pooled buffer was reused while its request was under way",
    },
)

SECTIONS: Final = (
    COORDINATOR,
    LIVENESS,
    CONSUMER,
    FETCHER,
    OFFSETS,
    LOG,
    RETRIES,
    EXACTLY_ONCE,
    DESIGN,
    WORKERS,
    SECURITY,
    SYSTEM,
    SIMULATOR,
    BUGS,
)

PROMISES: Final[Mapping[str, str]] = MappingProxyType(
    {code: sentence for section in SECTIONS for code, sentence in section.codes.items()}
)
"""Every code with its sentence."""
