"""Every error decodelog raises, sorted by who must act.

    Problem
    |-- Rejected    the caller must change something; recorded, never retried
    |-- Transient   the shell may try again, a bounded number of times
    `-- Defect      something happened that cannot happen; stop and look

Each error has a stable `code`, typed attributes, survives pickling, and its message ends with what to do.
Errors of other libraries are translated where they arise, with `raise ... from`.
"""

# The order of these imports is the order of docs/reference/errors.md.
# isort: off
from .problem import Problem as Problem, Rejected as Rejected, Transient as Transient, Defect as Defect
from .request import (
    LimitExceeded as LimitExceeded,
    MalformedJson as MalformedJson,
    SchemaViolation as SchemaViolation,
    UnknownVersion as UnknownVersion,
    NotAdmissible as NotAdmissible,
    GrammarRefused as GrammarRefused,
    BrokenLimits as BrokenLimits,
)
from .machine import (
    IllegalTransition as IllegalTransition,
    Terminal as Terminal,
    ReceiptConflict as ReceiptConflict,
    BrokenInvariant as BrokenInvariant,
    BrokenTable as BrokenTable,
)
from .artifact import (
    UnknownModel as UnknownModel,
    ModelNotConforming as ModelNotConforming,
    ModelNotFetched as ModelNotFetched,
    ModelNotHere as ModelNotHere,
    AmbiguousModel as AmbiguousModel,
    CorruptModel as CorruptModel,
    FetchFailed as FetchFailed,
    UnwritableModels as UnwritableModels,
    BrokenArtifact as BrokenArtifact,
    NotRunnableHere as NotRunnableHere,
    UnsupportedModel as UnsupportedModel,
    ContradictoryModel as ContradictoryModel,
    NoChatTemplate as NoChatTemplate,
    TemplateFailed as TemplateFailed,
    TextNotEncodable as TextNotEncodable,
)
from .call import (
    EmptyPrompt as EmptyPrompt,
    PromptTooLong as PromptTooLong,
    TokenOutOfRange as TokenOutOfRange,
    PrefillNeedsEmptyLane as PrefillNeedsEmptyLane,
    DecodeNeedsPrefill as DecodeNeedsPrefill,
    LaneFull as LaneFull,
    LaneTooLarge as LaneTooLarge,
    NoFreeSlot as NoFreeSlot,
    ForeignLane as ForeignLane,
    SessionMismatch as SessionMismatch,
    SessionClosed as SessionClosed,
    SessionOfAnotherThread as SessionOfAnotherThread,
    UnequalRows as UnequalRows,
    OptimizerStepRefused as OptimizerStepRefused,
    CallFailed as CallFailed,
    PreparedCacheChanged as PreparedCacheChanged,
    RosterIncomplete as RosterIncomplete,
    ScoreNotConsumable as ScoreNotConsumable,
)
from .policy import (
    WrongScores as WrongScores,
    WrongDraw as WrongDraw,
    NonFiniteScores as NonFiniteScores,
    NoTokenLeft as NoTokenLeft,
    GrammarTooCostly as GrammarTooCostly,
    OwnTransformMissing as OwnTransformMissing,
    OwnTransformFault as OwnTransformFault,
)
from .job import (
    LostTenure as LostTenure,
    JobBusy as JobBusy,
    PoisonJob as PoisonJob,
    JobFault as JobFault,
    UnknownJob as UnknownJob,
    NoSuchStep as NoSuchStep,
    IdempotencyConflict as IdempotencyConflict,
    JobNameTaken as JobNameTaken,
)
from .database import (
    SchemaMissing as SchemaMissing,
    SchemaOutdated as SchemaOutdated,
    SchemaNewer as SchemaNewer,
    UnsupportedDatabase as UnsupportedDatabase,
    FolderMissing as FolderMissing,
    LogLeftBehind as LogLeftBehind,
)
from .database import (
    FileReadOnly as FileReadOnly,
    DatabaseDenied as DatabaseDenied,
    DatabaseMissing as DatabaseMissing,
    DatabasePooled as DatabasePooled,
    DatabaseNotDurable as DatabaseNotDurable,
    DatabaseUnavailable as DatabaseUnavailable,
    DatabaseReadOnly as DatabaseReadOnly,
    DatabaseFull as DatabaseFull,
    DatabaseExhausted as DatabaseExhausted,
    DatabaseTimeout as DatabaseTimeout,
    DatabaseLocked as DatabaseLocked,
    DatabaseMoved as DatabaseMoved,
    DatabaseFault as DatabaseFault,
)
from .log import (
    MisformedAppend as MisformedAppend,
    CorruptRecord as CorruptRecord,
    UnknownWireTag as UnknownWireTag,
    UnknownSeal as UnknownSeal,
)
from .lifetime import (
    JobNotEnded as JobNotEnded,
    ContentErased as ContentErased,
    CacheInUse as CacheInUse,
    EvidenceSealed as EvidenceSealed,
    SealRefused as SealRefused,
)
from .export import (
    NotAnExport as NotAnExport,
    BrokenSnapshot as BrokenSnapshot,
    ContentLeftOut as ContentLeftOut,
    RestoreConflict as RestoreConflict,
    BrokenAnchors as BrokenAnchors,
    UnusableKey as UnusableKey,
)
from .command import (
    AmbiguousJob as AmbiguousJob,
    FamilyMeant as FamilyMeant,
    OutputFailed as OutputFailed,
    UnreadableInput as UnreadableInput,
    UnwritableOutput as UnwritableOutput,
    WholeNameNeeded as WholeNameNeeded,
    PromptMissing as PromptMissing,
    ConflictingFlags as ConflictingFlags,
    ExtraMissing as ExtraMissing,
    ChildFailed as ChildFailed,
)
