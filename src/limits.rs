//! Every limit in one place, with its unit and its reason.

use std::time::Duration;

/// How long a node may be silent before it is out of touch.
pub const OUT_OF_TOUCH: Duration = Duration::from_secs(30);
/// Between two registers of a node; jittered by a tenth.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// The longest pause between two attempts at a silent appliance: short enough that a minute's outage is over in seconds.
pub const RETRY_MAX: Duration = Duration::from_secs(5);
/// A node heard more recently is not removed without force.
pub const NODE_LIVE: Duration = Duration::from_secs(120);
/// How far a signed request's timestamp may lie from the appliance's clock.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);
/// The life of an enrolment token where none is given.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// The longest life of an enrolment token: a month on a shelf.
pub const TOKEN_LIFE_MAX: Duration = Duration::from_secs(31 * 24 * 3600);
/// A receipt's life, except at enrolment: long enough for any retry of ours.
pub const RECEIPT_LIFE: Duration = Duration::from_secs(3600);
/// Receipts kept per caller and route.
pub const RECEIPTS_PER_CALLER: usize = 4;
/// A client certificate's life where none is configured.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The shortest that may be configured, for rehearsals: the third that is left for renewing it takes a lost answer or two.
pub const CERTIFICATE_LIFE_MIN: Duration = Duration::from_secs(10);
/// The longest: a stolen key that nobody missed is of use for a quarter of a year at most.
pub const CERTIFICATE_LIFE_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// How far before now a client certificate begins, or an eighth of its life if that is less: machines' clocks differ.
pub const CERTIFICATE_BACKDATED: Duration = Duration::from_secs(3600);

/// A lease on a job, from its grant and from each heartbeat: three heartbeats of an agent may be lost.
pub const LEASE: Duration = Duration::from_secs(45);
/// One attempt at a job, however often its lease is extended.
pub const ATTEMPT: Duration = Duration::from_secs(4 * 3600);

/// Body of a request, bytes: a register with 256 services fits twice, and 1,024 strangers hold 64 MiB at most.
pub const BODY: usize = 64 * 1024;
/// A job's result, bytes of its canonical JSON: a few thousand findings.
pub const RESULT: usize = 64 * 1024;
/// Body of a request on the gateway, bytes: a result with what goes around it.
pub const GATEWAY_BODY: usize = RESULT + 4 * 1024;
/// How long a result is kept: longer than anybody asks what a check found.
pub const RESULT_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// New reports of what a node's machine can do: size of its bucket, and how many come back each second. A machine changes a
/// few times a day, and each report is kept in the journal for good.
pub const REPORTS: (f64, f64) = (16.0, 0.1);
/// Nodes whose reports are counted: as many as may make one within ten seconds, where each is new.
pub const REPORTERS: usize = 16_384;
/// Lines of a job's log that are kept, the last ones.
pub const LOG_LINES: usize = 512;
/// Bytes of a line of a log; longer ones are cut.
pub const LOG_LINE: usize = 2 * 1024;
/// Bytes of a job's log that are kept.
pub const LOG_BYTES: usize = 64 * 1024;
/// Lines that one request may add to a log.
pub const LOG_LINES_AT_ONCE: usize = 256;
/// Jobs whose logs are kept: with the limit above, 64 MiB at most.
pub const LOGS: usize = 1024;
/// Jobs in one answer to an operator, the newest.
pub const JOBS_SHOWN: usize = 1000;
/// Stuck jobs that `status` tells one by one: as many as a person looks at.
pub const STUCK_SHOWN: usize = 8;
/// A source snapshot, bytes of its archive.
pub const SOURCE: usize = 64 << 20;
/// What a source snapshot holds, bytes before it is compressed: source shrinks to a fifth, and a bomb to a thousandth.
pub const SOURCE_CONTENT: usize = 512 << 20;
/// Source snapshots that are read and sent at a time where nothing else was said: each takes [`SOURCE`] of memory.
pub const SOURCE_SLOTS: u8 = 2;
/// The most: with the limit above, 4 GiB.
pub const SOURCE_SLOTS_MAX: u8 = 64;
/// A node's taking of a source snapshot, so that its slot comes free: the largest in it is 1.8 Mbit/s.
pub const SOURCE_SEND: Duration = Duration::from_secs(300);
/// How long a source snapshot is kept after its last build has ended: somebody may want that tried again.
pub const SOURCE_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Between two looks for source snapshots that are not held any more.
pub const SOURCE_CARE: Duration = Duration::from_secs(60);
/// A TLS handshake, from accept.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// The next request's header lines, all of them, from the handshake or the last answer: three heartbeats, so that an
/// agent keeps its connection and an idle or dribbling stranger does not.
pub const IDLE: Duration = Duration::from_secs(15);
/// All header lines of a request, bytes: ours take a tenth of it.
pub const HEADER_BYTES: usize = 16 * 1024;
/// A peer that takes no byte of what is sent to it (`TCP_USER_TIMEOUT`): two keep-alive lines of a watch.
pub const STALL: Duration = Duration::from_secs(30);
/// Between two empty lines of a watch that has nothing to say.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A whole request other than a watch.
pub const REQUEST: Duration = Duration::from_secs(10);
/// Entering the writer's queue.
pub const QUEUE_ENTRY: Duration = Duration::from_secs(1);
/// The writer's answer after that.
pub const WRITER: Duration = Duration::from_secs(3);
/// Calls that wait for the writer: what 3 s of a slow disk hold.
pub const QUEUE: usize = 1024;
/// Calls decided as one batch: more only makes its first callers wait.
pub const BATCH: usize = 256;
/// Changes since the last checkpoint before there is a new one, if they also outweigh the state by far.
pub const CHECKPOINT: u64 = 1000;
/// How often its own size the state must have been journaled before it is written whole again: while it is, no batch is
/// committed, and a fleet with tens of thousands of jobs would see it in the answers' tail. A start replays that much.
pub const CHECKPOINT_STATES: usize = 4;
/// Between two looks after the store: head file, checkpoint, room, reserve. The head file lags by no more.
pub const STORE_CARE: Duration = Duration::from_secs(1);
/// Between two looks for expired rows and for the reserve, in looks after the store: once a minute.
pub const RARE_CARE: u32 = 60;
/// Between two scrubs of the whole store: a damage is known while yesterday's copy is still there.
pub const SCRUB: Duration = Duration::from_secs(24 * 3600);
/// From a scrub that could not read the store to the next: longer than its reopening takes.
pub const SCRUB_AGAIN: Duration = Duration::from_secs(60);
/// Expired rows looked for each time: 500 a second go, which is more than come to stay.
pub const EXPIRED: usize = 32 * 1024;
/// Expired rows deleted at a time: more would make callers wait.
pub const EXPIRED_AT_ONCE: usize = 512;
/// Between two attempts at opening a store whose disk failed: service is back 5 s after the fault's end.
pub const STORE_RETRY: Duration = Duration::from_millis(250);
/// How long the engine may take to lead and to apply its journal.
pub const ENGINE_START: Duration = Duration::from_secs(30);
/// Length of a new store's file, bytes: a commit that need not grow the file is two to three times as fast.
pub const STORE_FLOOR: u64 = 16 << 20;
/// Kept free for the day the disk is full, bytes: room to open the store and to delete.
pub const RESERVE: u64 = 16 << 20;

/// Unauthenticated connections per source address.
pub const CONNECTIONS_PER_SOURCE: usize = 256;
/// Unauthenticated connections in all.
pub const CONNECTIONS_UNPROVEN: usize = 1024;
/// Connections of one node, once proven.
pub const CONNECTIONS_PER_NODE: usize = 8;
/// Enrolment attempts: the bucket of one source address, and how many come back each second.
pub const ENROL_BUCKET: (u32, u32) = (128, 16);
/// Enrolment attempts in all, each second.
pub const ENROL_TOTAL: u32 = 64;
/// Machines remembered that asked to be admitted; the oldest is dropped.
pub const PENDING: usize = 256;
/// Services a node may publish.
pub const SERVICES: usize = 256;
/// Endpoints of each kind in a record.
pub const ENDPOINTS: usize = 16;

/// Lists kept by an appliance between two changes, one for each revision that nodes go on from: a node may name any.
pub const LISTS: usize = 64;
/// A peer list as a node accepts it, bytes: 10,000 records with their signatures fit several times.
pub const LIST: usize = 64 * 1024 * 1024;
/// A refusal's body as a node accepts it, bytes.
pub const PROBLEM: usize = 64 * 1024;

/// A list of names that no appliance has confirmed for so long is old: answers say so to whoever can hear it.
pub const NAMES_OLD: Duration = Duration::from_secs(180);
/// Questions of a source outside loopback and the mesh: size of its bucket, and how many come back each second.
pub const DNS_BUCKET: (f64, f64) = (100.0, 50.0);
/// Sources whose buckets are remembered.
pub const DNS_SOURCES: usize = 4096;
/// Answers kept per published list: about 300 KiB at most with the limit below and usual answers.
pub const DNS_CACHE: usize = 1024;
/// Questions longer than this are not kept, bytes: one name of the longest kind and an OPT record fit.
pub const DNS_CACHED_QUERY: usize = 320;
/// TCP streams of one resolver address at a time.
pub const DNS_STREAMS: usize = 256;
/// How long a DNS client may take over TCP for a question, or to take its answer.
pub const DNS_STREAM_IDLE: Duration = Duration::from_secs(5);
/// Streams of one proxied service at a time.
pub const PROXY_STREAMS: usize = 4096;
/// A connection to a proxied service's target, which is on the same machine.
pub const PROXY_DIAL: Duration = Duration::from_secs(5);
/// The head of a proxied request or answer, bytes.
pub const PROXY_HEAD: usize = 64 * 1024;

/// One order to the data plane, or its answer, bytes: the records of 10,000 nodes several times over.
pub const TOLD: u64 = 64 * 1024 * 1024;
/// The data plane's answer to an order.
pub const ORDER: Duration = Duration::from_secs(30);
/// From starting a data plane to its first answer.
pub const START: Duration = Duration::from_secs(10);
/// The data plane's log file is begun anew at its start when larger than this, bytes.
pub const LOG: u64 = 1024 * 1024;
/// How often a new WireGuard peer that does not answer is called again, once a second.
pub const CALLS: u32 = 5;
/// How long a WireGuard session lives without a new handshake (REJECT_AFTER_TIME).
pub const SESSION: Duration = Duration::from_secs(180);
/// Between two looks at where peers were heard. What roams in between is forgotten by a kill.
pub const HEARD_LOOK: Duration = Duration::from_secs(10);
/// Where peers were heard is written down again after so long even if it has not changed: shorter than [`SESSION`].
pub const HEARD_KEPT: Duration = Duration::from_secs(120);
/// Open descriptors of a data plane, if the machine allows as many: a carried stream takes six.
pub const DESCRIPTORS: u64 = 65_536;
/// A confirmation of an unchanged list is written down when it is so much later than the one written.
pub const CONFIRMED_KEPT: Duration = Duration::from_secs(60);
/// Between two looks at whether a stopping engine has let go of its store.
pub const CLOSE_POLL: Duration = Duration::from_millis(5);
/// How many such looks: three seconds.
pub const CLOSE_POLLS: u32 = 600;

/// Between two questions of a lane that has no work; jittered by a tenth. Two lanes of 1,000 nodes ask 1,000 times a second.
pub const LEASE_POLL: Duration = Duration::from_secs(2);
/// A lease is renewed so long after the last renewal was sent: twice within its 45 s, and once more for a lost answer.
pub const LEASE_RENEW: Duration = Duration::from_secs(15);
/// Between two attempts at a renewal that has no answer.
pub const LEASE_RENEW_AGAIN: Duration = Duration::from_secs(2);
/// Lanes start so long after their agent even if nothing has come of the mesh yet: its data plane has [`START`], and a job
/// may be what repairs it.
pub const LANES_WAIT: Duration = Duration::from_secs(15);
/// Work is ended so long before its lease does: killing all of it takes [`GROUP_END`] at most.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// A question for work that has no answer is asked again for so long; a lease given to it has run since, so later is too late.
pub const LEASE_ASK_AGAIN: Duration = Duration::from_secs(25);
/// The first pause of a lane after a failed question; doubled up to [`RETRY_MAX`].
pub const LEASE_RETRY_MIN: Duration = Duration::from_millis(250);
/// From killing the processes of an attempt to seeing none of them.
pub const GROUP_END: Duration = Duration::from_secs(3);
/// How long a lane that ends waits for the answer to its last completion: its gateway may be gone, and the lease ends by itself.
pub const HAND_BACK: Duration = Duration::from_secs(1);
/// One run of a tool of the machine's, such as `nft`: ten thousand elements take it a second, and another may hold its lock.
pub const TOOL: Duration = Duration::from_secs(10);
/// The longest pause of a lane that an appliance may ask for (`Retry-After`): a renewal that is put off by it, due at
/// [`LEASE_RENEW`], has two more attempts before work is ended.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// Both lanes, from the order to end: [`GROUP_END`] and [`HAND_BACK`], within the 5 s that the agent has in all.
pub const LANES_END: Duration = Duration::from_secs(4);
/// What is kept of the processes of one attempt, bytes.
pub const WORK_RECORD: u64 = 16 * 1024;
/// Jobs whose highest attempt a node remembers: far more than can be open at a time.
pub const FENCED_JOBS: usize = 1024;
/// The file of them, bytes: each takes about fifty.
pub const FENCE_FILE: u64 = 1024 * 1024;
/// The longest pause between two attempts at renewing a client certificate, which has a third of its life for them.
pub const CERTIFICATE_RETRY: Duration = Duration::from_secs(300);
/// The same of a node that has no certificate that is good, and so takes no jobs until it gets one.
pub const CERTIFICATE_ASK_RETRY: Duration = Duration::from_secs(30);
