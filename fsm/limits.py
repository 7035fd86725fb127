"""Every bound on a request, with its reason beside it.

Names go from general to specific: what is bounded, then its unit, then MAX. A bound exceeded is `LimitExceeded`, never
a truncation.
"""

from __future__ import annotations

from typing import Final

from .errors import BrokenLimits

# ---- the raw text ---------------------------------------------------------------------------------------------

# Holds the canonical text of the largest legal envelope (see the relations below), and parses in well under a second.
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
# An envelope nests 5 deep; the rest is room for later planes. Recursion over a value is safe at this depth.
NESTING_DEPTH_MAX: Final = 32
# No object of the schema has more than a dozen fields; what maps ids to numbers is a list.
OBJECT_FIELDS_MAX: Final = 256
# The shortest exact form of a double has at most 25 characters; longer numerals only cost parsing time.
NUMBER_BYTES_MAX: Final = 32
# Beyond this a JSON number is no longer one integer in every program that reads it (RFC 8785, section 3.2.2.3).
SAFE_INTEGER_MAX: Final = 2**53 - 1

# ---- names and texts ------------------------------------------------------------------------------------------

# Names are keys in logs, tables and messages; 200 characters hold every hub and registry name in use.
NAME_CHARACTERS_MAX: Final = 200
# A model's name may be its folder's, and no path that a system takes is longer.
MODEL_NAME_CHARACTERS_MAX: Final = 4096
# A cache ABI spells out its geometry and key rotation, which may scale each of a hundred frequencies on its own.
ABI_CHARACTERS_MAX: Final = 4096
# A prompt or a message never needs more characters than a request has bytes.
TEXT_CHARACTERS_MAX: Final = REQUEST_BYTES_MAX
# Each message costs template time; longer conversations are written as token ids or as one prompt.
MESSAGES_MAX: Final = 4096

# ---- vocabulary, prompt and context ---------------------------------------------------------------------------

# Eight times the largest vocabulary in use (262,144), so that every id has at most 7 digits.
VOCABULARY_SIZE_MAX: Final = 2 * 1024 * 1024
# Two numbers a token (id and mask) are written into every envelope; this keeps one under REQUEST_BYTES_MAX.
PROMPT_TOKENS_MAX: Final = 256 * 1024
# Positions that a request may address. A model that offers more is used up to here.
CONTEXT_TOKENS_MAX: Final = 1024 * 1024
# One more than any context, so that "until the context is full" is an ordinary budget that no run can use up.
NEW_TOKENS_MAX: Final = CONTEXT_TOKENS_MAX + 1
# Tokenizers declare a handful of end tokens.
EOS_IDS_MAX: Final = 64
# Stop ids are tested at every token; families of special tokens fit.
STOP_TOKEN_IDS_MAX: Final = 1024

# ---- stop strings ---------------------------------------------------------------------------------------------

# Ordinary requests have fewer than 5; agents with many markers have some dozens.
STOP_STRINGS_MAX: Final = 64
# The text held back from a stream can be as long as a stop string, and the matcher's table grows with their sum.
STOP_STRING_BYTES_MAX: Final = 1024

# ---- structured output ----------------------------------------------------------------------------------------

# A schema of a large interface has some tens of kilobytes; each byte may take six in an envelope.
GRAMMAR_BYTES_MAX: Final = 64 * 1024
# One for JSON, and one for each form of a tool call that a model may know; each reads every byte.
DETECTORS_MAX: Final = 8
# What a model writes nests as deep as what it was shown; a deeper value is one that does not end.
JSON_DEPTH_MAX: Final = 64
# The keys of every open object are kept with the state, by their digests.
JSON_KEYS_MAX: Final = 512
# A key names something; the bytes of one that is not finished are kept with the state.
JSON_KEY_BYTES_MAX: Final = 1024
# The shortest exact form of a double has at most 25 characters; endless digits are a known failure of models.
NUMERAL_BYTES_MAX: Final = 32
# A line break and the indentation of the deepest nesting by two; endless blanks are another one.
BLANKS_MAX: Final = 2 * JSON_DEPTH_MAX + 2

# The parser's items of one mask: 20,000 take a millisecond where a grammar is unambiguous; where it is ambiguous, each
# item costs as much as there are others. A schema of 200 fields needs under 5,000.
MASK_ITEMS_MAX: Final = 10_000
# The same at one place of the text, where that schema has 807; a few bytes each are kept for every token.
MASK_ROW_ITEMS_MAX: Final = 2000
# A state of a grammar's lexer takes a kilobyte, and several where the grammar is ambiguous. A text of bounded
# length, such as a string with maxLength, makes four or five a character: these are ten thousand characters, and 50 MB.
LEXER_STATES_MAX: Final = 50_000
# The processor's time for one step's mask, which all jobs beside it wait for; ordinary ones take a tenth of it.
MASK_MS_MAX: Final = 5
# What the masks of one parser may take beyond that in all: the first of a large grammar are longer.
MASKS_OVER_MS_MAX: Final = 1000

# ---- retention ------------------------------------------------------------------------------------------------

# A thousand years: longer than anybody asks for, and still a number of ms that a database can add to a time.
RETAIN_MS_MAX: Final = 365_000 * 86_400_000

# The largest size that a sealed log may state for itself before it is decompressed: a kilobyte for each token of the
# largest context. A log that would be larger stays unsealed.
SEALED_BYTES_MAX: Final = 1024 * CONTEXT_TOKENS_MAX
# One append's payload where it is unpacked. The largest one is the record of a whole prompt with its alternatives: see
# PROMPT_ENTRIES_MAX, at a hundred bytes each.
PAYLOAD_BYTES_MAX: Final = 128 * 1024 * 1024
# The largest size that a frame of an exported file may state before it is read: an append is at most a sealed log, and
# a part of a cache at most some hundred rows of a large model.
FRAME_BYTES_MAX: Final = SEALED_BYTES_MAX + 64 * 1024
# The same, for frames with the facts of one job.
FACTS_BYTES_MAX: Final = 16 * 1024 * 1024
# The same, for the list of all jobs at an export's end, some dozens of bytes each.
MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024

# ---- policy and noise -----------------------------------------------------------------------------------------

# Each transform is one pass over the vocabulary at every token.
TRANSFORMS_MAX: Final = 32
# Above this the scores of any model are flat; a float32 quotient stays far from both ends of its range.
TEMPERATURE_MAX: Final = 1000.0
# Ordinary penalties are below 2; beyond this the penalty alone decides.
REPETITION_PENALTY_MAX: Final = 1000.0
# A score shifted by this much is chosen always or never; times every token of a context it is still a float32.
SCORE_SHIFT_MAX: Final = 10_000.0
# Every token costs as many comparisons as its sequence is long; repetition shows at a few tokens.
NGRAM_SIZE_MAX: Final = 32
# From here on the shortest repetition costs as much as any.
DRY_BASE_MAX: Final = 100.0
# Every token costs one pass over so many, some ten microseconds; a text that comes again from further back is no loop.
DRY_RANGE_MAX: Final = 8 * 1024
# Line breaks, marks and the words that a template begins a turn with.
DRY_BREAKERS_MAX: Final = 64
# A breaker is the last token of its text, and no token in use is longer.
DRY_BREAKER_CHARACTERS_MAX: Final = 256
# Each is a call of somebody's Python over the whole row at every token.
OWN_TRANSFORMS_MAX: Final = 8
# Ids that a policy allows or bans; anything larger is better written as a grammar.
POLICY_TOKEN_IDS_MAX: Final = 16 * 1024
# Biases are written one by one; interfaces in use take 300.
LOGIT_BIASES_MAX: Final = 1024
# A longer forced text belongs in the prompt.
FORCED_TOKENS_MAX: Final = 1024
# Alternatives are stored with every token of the log.
LOGPROBS_TOP_MAX: Final = 20
# Tokens of a prompt's record, alternatives included: they are one event, and each takes some 200 bytes of memory.
PROMPT_ENTRIES_MAX: Final = 1024 * 1024
# A seed is a JSON integer, so that every program that reads the envelope reads the same seed.
SEED_MAX: Final = SAFE_INTEGER_MAX
# Choice, branch and step are one 32-bit counter word each of philox4x32-10.
COUNTER_WORD_MAX: Final = 2**32 - 1
# Choices of one request are jobs of their own; more than this is a data set, not a request.
CHOICE_MAX: Final = 1023
# Choices asked for at once are so many jobs, each with a copy of the sealed prompt; interfaces in use take 128.
CHOICES_MAX: Final = 128

# ---- the files of a model --------------------------------------------------------------------------------------

# A configuration, an index of weights or a chat template: the largest in use has some hundreds of kilobytes.
MODEL_JSON_BYTES_MAX: Final = 16 * 1024 * 1024
# The largest tokenizer in use, of 262,144 tokens, has 33 megabytes.
TOKENIZER_BYTES_MAX: Final = 128 * 1024 * 1024
# The longest chat template in use has some thirty thousand characters.
TEMPLATE_CHARACTERS_MAX: Final = 256 * 1024
# What a chat of a million characters costs several times over (see `runtime.text.sandbox`); done in a second or two.
TEMPLATE_WORK_MAX: Final = 16 * TEXT_CHARACTERS_MAX
# Eight times the deepest decoder in use; each layer has a name and a place in every call's roster.
LAYERS_MAX: Final = 1024
# Any other size of a decoder (a width, heads, positions) is a 32-bit number in every framework.
MODEL_COUNT_MAX: Final = 2**31 - 1

# ---- running --------------------------------------------------------------------------------------------------

# Every slot of a batch holds a full context of keys and values.
BATCH_WIDTH_MAX: Final = 1024
# A fault that comes back this often does not go away by trying again.
RETRY_BUDGET_MAX: Final = 100
# Thirty days: the end of what a job is kept for.
DEADLINE_MS_MAX: Final = 30 * 24 * 60 * 60 * 1000
# A process may die for many reasons during a tenure, and so may the next; not by chance each time before a token.
TENURES_STALLED_MAX: Final = 5
# A list of kinds that may be written once each has no use for more entries.
KINDS_MAX: Final = 32

# ---- relations between them -----------------------------------------------------------------------------------

_ID_DIGITS_MAX: Final = len(str(VOCABULARY_SIZE_MAX))
# Long enough for any digest or name that a caller makes keys of; the key is indexed, so it stays short.
IDEMPOTENCY_KEY_BYTES_MAX: Final = 255

# Two bytes for a mask entry and its comma, one comma an id; a control character of a stop string takes six bytes.
_ENVELOPE_BYTES_MAX: Final = (
    PROMPT_TOKENS_MAX * (_ID_DIGITS_MAX + 1 + 2)
    + (STOP_TOKEN_IDS_MAX + 2 * EOS_IDS_MAX) * (_ID_DIGITS_MAX + 1)
    + (STOP_STRINGS_MAX + 2 * DETECTORS_MAX) * (6 * STOP_STRING_BYTES_MAX + 3)
    + 6 * GRAMMAR_BYTES_MAX
    + 2 * POLICY_TOKEN_IDS_MAX * (_ID_DIGITS_MAX + 1)
    + (LOGIT_BIASES_MAX + FORCED_TOKENS_MAX) * (NUMBER_BYTES_MAX + _ID_DIGITS_MAX + 24)
    + 64 * 1024  # names, digests, transforms and the words of the schema
)

RELATIONS: Final = (
    (_ENVELOPE_BYTES_MAX <= REQUEST_BYTES_MAX, "the largest envelope must fit into one request"),
    (PROMPT_TOKENS_MAX <= CONTEXT_TOKENS_MAX, "a prompt must fit into the largest context"),
    (NEW_TOKENS_MAX > CONTEXT_TOKENS_MAX, "a budget that the context always ends first must be legal"),
    (NEW_TOKENS_MAX <= COUNTER_WORD_MAX, "every step must have its own counter word"),
    (CHOICE_MAX <= COUNTER_WORD_MAX, "every choice must have its own counter word"),
    (CHOICES_MAX <= CHOICE_MAX + 1, "every choice that is asked for must be one that may be named"),
    (SEED_MAX < 2**64, "a seed must fit into the two 32-bit key words"),
    (STOP_STRING_BYTES_MAX <= TEXT_CHARACTERS_MAX, "a stop string is a text"),
    (len(str(SAFE_INTEGER_MAX)) + 1 <= NUMBER_BYTES_MAX, "every legal integer must be short enough to be read"),
    (TEMPERATURE_MAX <= SAFE_INTEGER_MAX, "a float may be written without a point, so it must be a legal integer"),
    (SCORE_SHIFT_MAX <= SAFE_INTEGER_MAX, "a bias may be written without a point, so it must be a legal integer"),
    (SCORE_SHIFT_MAX * NEW_TOKENS_MAX < 2.0**127, "a penalty times every token of a context must be a float32"),
    (DEADLINE_MS_MAX <= SAFE_INTEGER_MAX, "a deadline must be a legal integer"),
)


def check_relations(relations: tuple[tuple[bool, str], ...] = RELATIONS) -> None:
    """Raise BrokenLimits for the first relation that does not hold."""
    for holds, reason in relations:
        if not holds:
            raise BrokenLimits(reason=reason)


check_relations()
