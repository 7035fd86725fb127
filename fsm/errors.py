"""Every error decodelog raises, sorted by who must act.

    Problem
    |-- Rejected    the caller must change something; recorded, never retried
    |-- Transient   the shell may try again, a bounded number of times
    `-- Defect      something that cannot happen did; stop and look

Each error has a stable `code`, typed attributes, survives pickling, and its message ends with what to do.
Errors of other libraries are translated where they arise, with `raise ... from`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


def _revive(kind: type[Problem], facts: dict[str, Any]) -> Problem:
    problem = kind.__new__(kind)
    vars(problem).update(facts)
    return problem


class Problem(Exception):
    """The root: `code` is stable across releases, `says` is the message's template over the attributes."""

    code: ClassVar[str] = "problem"
    says: ClassVar[str] = "something went wrong"

    def __str__(self) -> str:
        return self.says.format(**vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), dict(vars(self)))

    def facts(self) -> dict[str, Any]:
        """The code, the message and the typed attributes, ready for JSON."""
        return {"code": self.code, "message": str(self), **vars(self)}


class Rejected(Problem):
    """The caller must change the request; trying again unchanged cannot help."""


class Transient(Problem):
    """The same call may succeed later; the shell retries it a bounded number of times."""


class Defect(Problem):
    """An invariant is broken: stop, keep the evidence, and look."""


# ---- the request: raw bytes, schema, admission ----------------------------------------------------------------


@dataclass(eq=False)
class LimitExceeded(Rejected):
    code = "limit_exceeded"
    says = "{limit} is {value}, and the maximum is {maximum}; make it smaller"
    limit: str
    value: int | float
    maximum: int | float


@dataclass(eq=False)
class MalformedJson(Rejected):
    code = "malformed_json"
    says = "the request is not strict JSON at byte {offset}: {reason}; correct the text"
    offset: int
    reason: str


@dataclass(eq=False)
class SchemaViolation(Rejected):
    code = "schema_violation"
    says = "{path}: {reason}; correct that field"
    path: str
    reason: str


@dataclass(eq=False)
class UnknownVersion(Rejected):
    code = "unknown_version"
    says = "{found!r} is no version that this program knows; use one of {known}"
    found: str
    known: list[str]


@dataclass(eq=False)
class NotAdmissible(Rejected):
    """The envelope is well formed and cannot be run as it stands (ENV-6, ENV-9)."""

    code = "not_admissible"
    says = "{check}: {reason}; change the request, or run it where that holds"
    check: str
    reason: str


@dataclass(eq=False)
class GrammarRefused(Rejected):
    """What an output was to be does not compile, or nothing can be it; `language` names the kind of grammar."""

    code = "grammar_refused"
    says = "the {language} cannot be followed: {reason}; correct it"
    language: str
    reason: str


@dataclass(eq=False)
class BrokenLimits(Defect):
    code = "broken_limits"
    says = "the limits contradict each other: {reason}; correct fsm/limits.py"
    reason: str


# ---- the machine: triggers, receipts, frontiers ---------------------------------------------------------------


@dataclass(eq=False)
class IllegalTransition(Rejected):
    code = "illegal_transition"
    says = "a job in state {state} does not take {trigger}; nothing was changed: read its state again"
    state: str
    trigger: str


@dataclass(eq=False)
class Terminal(Rejected):
    code = "terminal"
    says = "the job is {state} ({reason}) and takes nothing more; submit a new job"
    state: str
    reason: str


@dataclass(eq=False)
class ReceiptConflict(Rejected):
    code = "receipt_conflict"
    says = "step {step} already has receipt {held}, so {offered} is refused; fold the log again and use its receipt"
    step: int
    held: str
    offered: str


@dataclass(eq=False)
class BrokenInvariant(Defect):
    code = "broken_invariant"
    says = "{clause}: {reason}; stop this job and audit its log"
    clause: str
    reason: str


@dataclass(eq=False)
class BrokenTable(Defect):
    code = "broken_table"
    says = "the transition table is wrong: {reason}; correct fsm/table.py"
    reason: str


# ---- the runtime: artifacts, tokenizers, sessions, model calls -------------------------------------------------


@dataclass(eq=False)
class UnknownModel(Rejected):
    code = "unknown_model"
    says = (
        "{name!r} is neither a directory with a config.json nor one of {known}; "
        "name a directory, or run `decodelog model fetch NAME` with one of those names"
    )
    name: str
    known: list[str]


@dataclass(eq=False)
class ModelNotFetched(Rejected):
    code = "model_not_fetched"
    says = "the model {name} is not on this machine; run `decodelog model fetch {name}`"
    name: str


@dataclass(eq=False)
class FetchFailed(Transient):
    code = "fetch_failed"
    says = "fetching {name} failed: {reason}; run `decodelog model fetch {name}` again"
    name: str
    reason: str


@dataclass(eq=False)
class UnwritableModels(Rejected):
    code = "unwritable_models"
    says = "{path} cannot be written: {reason}; set DECODELOG_HOME to a folder that you may write to, with space in it"
    path: str
    reason: str


@dataclass(eq=False)
class BrokenArtifact(Rejected):
    code = "broken_artifact"
    says = "{path}: {reason}; replace the file, or fetch the model again"
    path: str
    reason: str


@dataclass(eq=False)
class UnsupportedModel(Rejected):
    code = "unsupported_model"
    says = "the checkpoint has {key} = {value}, and this decoder takes {supported}; use another checkpoint"
    key: str
    value: str
    supported: str


@dataclass(eq=False)
class NoChatTemplate(Rejected):
    code = "no_chat_template"
    says = "the model {model} has no chat template; give a plain prompt instead of chat messages"
    model: str


@dataclass(eq=False)
class TemplateFailed(Rejected):
    code = "template_failed"
    says = "the model's chat template refuses these messages: {reason}; change the messages"
    reason: str


@dataclass(eq=False)
class TextNotEncodable(Rejected):
    """The tokenizer would silently drop a character of the text."""

    code = "text_not_encodable"
    says = "the tokenizer has no token for {character} at character {offset} of the text; leave it out"
    character: str
    offset: int


@dataclass(eq=False)
class EmptyPrompt(Rejected):
    code = "empty_prompt"
    says = "request {request} has no prompt token; give it at least one"
    request: str


@dataclass(eq=False)
class PromptTooLong(Rejected):
    code = "prompt_too_long"
    says = "request {request} has {tokens} prompt tokens and room for {capacity}; shorten the prompt or reserve more"
    request: str
    tokens: int
    capacity: int


@dataclass(eq=False)
class TokenOutOfRange(Rejected):
    code = "token_out_of_range"
    says = "request {request}: token {token} at position {position} is not in [0, {vocabulary_size}); correct it"
    request: str
    position: int
    token: int
    vocabulary_size: int


@dataclass(eq=False)
class PrefillNeedsEmptyLane(Rejected):
    code = "prefill_needs_empty_lane"
    says = "request {request} already holds {length} positions; reset its lane before another prefill"
    request: str
    length: int


@dataclass(eq=False)
class DecodeNeedsPrefill(Rejected):
    code = "decode_needs_prefill"
    says = "request {request} has an empty lane; prefill its prompt before decoding"
    request: str


@dataclass(eq=False)
class LaneFull(Rejected):
    code = "lane_full"
    says = "request {request} has used all {capacity} positions of its lane; finish it, or reserve a larger lane"
    request: str
    capacity: int


@dataclass(eq=False)
class LaneTooLarge(Rejected):
    code = "lane_too_large"
    says = "request {request} asks for {positions} positions of {maximum}; ask for fewer"
    request: str
    positions: int
    maximum: int


@dataclass(eq=False)
class NoFreeSlot(Transient):
    code = "no_free_slot"
    says = "all {slots} slots of the cache are taken; release a lane, or wait for one"
    slots: int


@dataclass(eq=False)
class ForeignLane(Rejected):
    """The lane is closed, or another cache's, or named twice in one call."""

    code = "foreign_lane"
    says = "the lane of request {request} {reason}; reserve a lane for it in this session"
    request: str
    reason: str


@dataclass(eq=False)
class SessionMismatch(Rejected):
    """A cache and a model that do not belong together: `field` names what differs (CALL-3)."""

    code = "session_mismatch"
    says = "{field} differs: the cache has {cache}, the model has {model}; make a new cache for this model"
    field: str
    cache: str
    model: str


@dataclass(eq=False)
class SessionClosed(Rejected):
    code = "session_closed"
    says = "this session is closed; bind the model and the cache again"


@dataclass(eq=False)
class OptimizerStepRefused(Rejected):
    code = "optimizer_step_refused"
    says = "a session is reading these parameters, so nothing was updated; close the session before the optimizer steps"


@dataclass(eq=False)
class CallFailed(Transient):
    """ALL_OLD: the computation itself failed."""

    code = "call_failed"
    says = "the model call failed ({reason}) and nothing advanced; call again, within the request's retry budget"
    reason: str


@dataclass(eq=False)
class PreparedCacheChanged(Transient):
    """ALL_OLD: between prepare and select a lane's storage, length or model changed (CALL-2)."""

    code = "prepared_cache_changed"
    says = "the {what} of request {request} changed after the call was prepared; nothing advanced: prepare it again"
    request: str
    what: str


@dataclass(eq=False)
class RosterIncomplete(Transient):
    """ALL_OLD: a declared compute stage or state lane did not complete (CALL-1)."""

    code = "roster_incomplete"
    says = "the call ended without {missing}; nothing advanced: prepare the call again"
    missing: list[str]


@dataclass(eq=False)
class ScoreNotConsumable(Rejected):
    code = "score_not_consumable"
    says = "this call's scores are not consumable: the call is {state}; select the call first, and once"
    state: str


@dataclass(eq=False)
class WrongScores(Defect):
    """A transform or a draw was given another score kind, axis or vocabulary map than its own (POL-1)."""

    code = "wrong_scores"
    says = "{operation} takes {wanted} and was given {found}; convert the scores, or use those of this model"
    operation: str
    wanted: str
    found: str


@dataclass(eq=False)
class WrongDraw(Defect):
    """Only a stochastic decision consumes a draw, and each consumes exactly one (POL-5)."""

    code = "wrong_draw"
    says = "row {row} has a {family} plan and was given the draw {draw}; give a number in [0, 1) to sampled rows only"
    row: int
    family: str
    draw: str


@dataclass(eq=False)
class NonFiniteScores(Rejected):
    """A numeric fault of one row (FSM-10): nothing was decided for it, and its lanes must not be used again."""

    code = "non_finite_scores"
    says = "the score row has a NaN or an infinity, so no token was chosen; check the checkpoint's weights and dtype"


@dataclass(eq=False)
class NoTokenLeft(Rejected):
    """A numeric fault of one row: its transforms removed every token, so nothing was decided for it."""

    code = "no_token_left"
    says = "the transforms removed every token of the score row, so none was chosen; allow more tokens, or ban fewer"


@dataclass(eq=False)
class LostTenure(Rejected):
    """The log refused this worker's append: another tenure owns the job, or the job has ended."""

    code = "lost_tenure"
    says = "job {job} is no longer this worker's ({outcome}: {detail}); let it go, its log is whole"
    job: str
    outcome: str
    detail: str


@dataclass(eq=False)
class PoisonJob(Rejected):
    """Whoever works on the job dies of it, as far as anybody can tell."""

    code = "poison_job"
    says = (
        "job {job} was given up: {tenures} workers in turn had it and ended, without giving it back and before another "
        "token; see what ended them (a crash, or too little memory), and submit it again"
    )
    job: str
    tenures: int


# ---- the store: databases, schema, the log ---------------------------------------------------------------------


@dataclass(eq=False)
class UnknownJob(Rejected):
    """`candidates` are the nearest names, where somebody looked for them."""

    code = "unknown_job"
    says = "there is no job {job}; `decodelog jobs` lists all"
    job: str
    candidates: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        nearest = f"the nearest are {', '.join(self.candidates)}, and " if self.candidates else ""
        return f"there is no job {self.job}; {nearest}`decodelog jobs` lists all"


@dataclass(eq=False)
class NoSuchStep(Rejected):
    """`step` is the decision that was asked for, None for the newest; `count` how many the job has."""

    code = "no_such_step"
    says = "job {job} has no decision {step}; name one of its {count}"
    job: str
    step: int | None
    count: int

    def __str__(self) -> str:
        if not self.count:
            return f"job {self.job} has no decision yet; wait for its first token"
        return f"job {self.job} has no decision {self.step}; name one from 0 to {self.count - 1}"


@dataclass(eq=False)
class IdempotencyConflict(Rejected):
    """The key is taken by another request; `held` and `offered` are identities, `field` where they differ (ENV-8)."""

    code = "idempotency_conflict"
    says = (
        "idempotency key {key} belongs to job {job}, whose request differs at {field}; "
        "send that request again, or use another key"
    )
    key: str
    job: str
    held: str
    offered: str
    field: str = "identity"


@dataclass(eq=False)
class JobNameTaken(Rejected):
    """A job of that name exists and runs another request; `held` and `offered` are identities."""

    code = "job_name_taken"
    says = "job {job} exists with request {held}, not {offered}; choose another name"
    job: str
    held: str
    offered: str


@dataclass(eq=False)
class SchemaMissing(Rejected):
    code = "schema_missing"
    says = "{database} holds no decodelog schema; run `decodelog db upgrade`"
    database: str


@dataclass(eq=False)
class SchemaOutdated(Rejected):
    code = "schema_outdated"
    says = "{database} has schema {found}, and this program needs {needed}; run `decodelog db upgrade`"
    database: str
    found: str
    needed: str


@dataclass(eq=False)
class SchemaNewer(Rejected):
    """The database was upgraded by a later release: this one must not touch it."""

    code = "schema_newer"
    says = (
        "{database} has schema {found}, which is newer than {needed}, the last one this program knows; "
        "install the decodelog that ran `decodelog db upgrade` on it"
    )
    database: str
    found: str
    needed: str


@dataclass(eq=False)
class UnsupportedDatabase(Rejected):
    code = "unsupported_database"
    says = "{database} cannot be used: {reason}; name a database as sqlite:///file.db or postgresql://host/name"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseUnavailable(Transient):
    code = "database_unavailable"
    says = "{database} does not answer: {reason}; see to it and try again: what it already took is not taken twice"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFull(Transient):
    """The disk that the database is on has no room left, or the database has a limit of its own."""

    code = "database_full"
    says = "{database} has no room: {reason}; make room and try again: nothing was written by half"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseLocked(Transient):
    code = "database_locked"
    says = "another process holds {database} ({reason}); nothing was changed: try again, or end that process"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFault(Defect):
    """The database refused a statement that this program makes: its tables are not what the schema says."""

    code = "database_fault"
    says = "{database} refused a statement: {reason}; run `decodelog db check`, and restore a backup if it fails"
    database: str
    reason: str


@dataclass(eq=False)
class JobNotEnded(Rejected):
    """What is for ended jobs only was asked of one that is live."""

    code = "job_not_ended"
    says = "job {job} is {state} and has not ended; `decodelog cancel {job}` first, or wait for its end"
    job: str
    state: str


@dataclass(eq=False)
class ContentErased(Rejected):
    """Prompt, output and request of a job are gone; its listing, its tenures and its chain are left."""

    code = "content_erased"
    says = (
        "the content of job {job} is erased, and nothing of it can be read, run or given again; "
        "`decodelog jobs` still lists it, and `decodelog audit {job}` proves its chain"
    )
    job: str


@dataclass(eq=False)
class EvidenceSealed(Rejected):
    """A sealed log has no score digest, receipt, state digest, margin and draw of step `step` (from 0) any more."""

    code = "evidence_sealed"
    says = (
        "the log of job {job} is sealed, and of its step {step} the score digest, receipt, state digest, margin and "
        "draw are not kept; fork it, or run its request again, to have them again"
    )
    job: str
    step: int


@dataclass(eq=False)
class SealRefused(Rejected):
    """The log is not sealed, and as it was; `reason` is the first thing that speaks against it."""

    code = "seal_refused"
    says = "the log of job {job} is not sealed, and as it was: {reason}; see what `decodelog audit {job}` says"
    job: str
    reason: str


@dataclass(eq=False)
class MisformedAppend(Defect):
    code = "misformed_append"
    says = "an append to job {job} is refused before it reaches the log: {reason}; correct the caller"
    job: str
    reason: str


@dataclass(eq=False)
class CorruptRecord(Defect):
    """What is stored is not what was appended; `sequence` is the first event that cannot be trusted."""

    code = "corrupt_record"
    says = "the log of job {job} is damaged at event {sequence}: {reason}; restore a backup, and audit it"
    job: str
    sequence: int
    reason: str


@dataclass(eq=False)
class UnknownWireTag(Rejected):
    """A sound record of an event that this release does not know."""

    code = "unknown_wire_tag"
    says = "event {sequence} of job {job} has wire tag {tag}, unknown to this program; install a newer decodelog"
    job: str
    sequence: int
    tag: int


@dataclass(eq=False)
class UnknownSeal(Rejected):
    """A sound sealed log of a form that this release does not know."""

    code = "unknown_seal"
    says = "the log of job {job} is sealed in form {version}, unknown to this program; install a newer decodelog"
    job: str
    version: int


# ---- the service: what people type -----------------------------------------------------------------------------


@dataclass(eq=False)
class AmbiguousJob(Rejected):
    code = "ambiguous_job"
    says = "{prefix} begins the names of {count} jobs, among them {candidates}; write more of the name"
    prefix: str
    count: int
    candidates: list[str]


@dataclass(eq=False)
class FamilyMeant(Rejected):
    """A name of several jobs, where one is asked for; `jobs` are in the order of their choices."""

    code = "family_meant"
    says = "{family} is a family of the jobs {jobs}; name one of them"
    family: str
    jobs: list[str]

    def __str__(self) -> str:
        count, first, last = len(self.jobs), self.jobs[0], self.jobs[-1]
        return f"{self.family} is a family of {count} jobs; name one of them, from {first} to {last}"


@dataclass(eq=False)
class UnreadableInput(Rejected):
    code = "unreadable_input"
    says = "{path} cannot be read: {reason}; name a readable UTF-8 file, or - for standard input"
    path: str
    reason: str


@dataclass(eq=False)
class NotAnExport(Rejected):
    code = "not_an_export"
    says = "{path} cannot be read: {reason}; name a file that `decodelog export` or `decodelog snapshot` wrote"
    path: str
    reason: str


@dataclass(eq=False)
class BrokenSnapshot(Rejected):
    """A file that is to be restored is not what was written, or what it says of a job does not hold together."""

    code = "broken_snapshot"
    says = "the snapshot of job {job} is damaged: {reason}; nothing was restored, take another copy of the file"
    job: str
    reason: str


@dataclass(eq=False)
class ContentLeftOut(Rejected):
    """A job of a file that is to be restored is live, and the file has it without its content."""

    code = "content_left_out"
    says = (
        "job {job} has not ended, and the file has it without its content, so nobody could go on with it; "
        "nothing was restored, restore an export that is not redacted"
    )
    job: str


@dataclass(eq=False)
class RestoreConflict(Rejected):
    """The database has the job already, and its log is not the one that is to be restored."""

    code = "restore_conflict"
    says = "job {job} is there already and is not the one in the file: {reason}; restore it into another database"
    job: str
    reason: str


@dataclass(eq=False)
class JobBusy(Transient):
    """A worker holds the job, and what was asked for needs it for itself."""

    code = "job_busy"
    says = "job {job} is being worked on by {owner}; try again when it has ended, or stop that worker first"
    job: str
    owner: str


@dataclass(eq=False)
class UnwritableOutput(Rejected):
    code = "unwritable_output"
    says = "{path} cannot be written: {reason}; name another file"
    path: str
    reason: str


@dataclass(eq=False)
class ConflictingFlags(Rejected):
    code = "conflicting_flags"
    says = "{flags} cannot be used together; {advice}"
    flags: str
    advice: str


@dataclass(eq=False)
class ChildFailed(Transient):
    """A process that this one started ended by itself, and not well."""

    code = "child_failed"
    says = "process {pid} ended before its work did ({reason}); run `decodelog doctor`, and try again"
    pid: int
    reason: str
