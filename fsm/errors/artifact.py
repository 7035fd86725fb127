"""Models on this machine, their files, and what their tokenizers cannot encode."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected, Transient


@dataclass(eq=False)
class UnknownModel(Rejected):
    code = "unknown_model"
    says = (
        "{name!r} is neither a directory with a config.json nor one of {known}; "
        "name a directory, register it in the database, or fetch one of those names"
    )
    name: str
    known: list[str]


@dataclass(eq=False)
class ModelNotHere(Rejected):
    """A job's model, by its digest; `reason` says what there is under the name that the job has it by."""

    code = "model_not_here"
    says = (
        "no model here has the digest {artifact}, which its jobs call {name}: {reason}; name a folder that it lies in, "
        "or leave the jobs to a worker that has it"
    )
    name: str
    artifact: str
    reason: str


@dataclass(eq=False)
class AmbiguousModel(Rejected):
    code = "ambiguous_model"
    says = "the digests of several registered models begin with {prefix}: {found}; give more of the one that is meant"
    prefix: str
    found: list[str]


@dataclass(eq=False)
class CorruptModel(Defect):
    """What is stored of a registered model is not what was registered."""

    code = "corrupt_model"
    says = (
        "the registered model {artifact} is damaged: {reason}; register it anew from its files, and audit the database"
    )
    artifact: str
    reason: str


@dataclass(eq=False)
class ModelNotFetched(Rejected):
    code = "model_not_fetched"
    says = "the model {name} is not on this machine; fetch it, or register it in the database where it is"
    name: str


@dataclass(eq=False)
class FetchFailed(Transient):
    code = "fetch_failed"
    says = "fetching {name} failed: {reason}; fetch it again"
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
class ModelNotConforming(Rejected):
    code = "model_not_conforming"
    says = "the model does not do what every job relies on: {wanted}; it gave {found}. Correct it before jobs use it"
    wanted: str
    found: str


@dataclass(eq=False)
class NotRunnableHere(Rejected):
    """A library failed or did not finish while it prepared what a job needs."""

    code = "not_runnable_here"
    says = (
        "{what} cannot be prepared here: {reason}; its jobs are left to other workers: check its files and this "
        "machine's memory, and start the worker again"
    )
    what: str
    reason: str


@dataclass(eq=False)
class UnsupportedModel(Rejected):
    code = "unsupported_model"
    says = "the checkpoint has {key} = {value}, and this decoder takes {supported}; use another checkpoint"
    key: str
    value: str
    supported: str


@dataclass(eq=False)
class ContradictoryModel(Rejected):
    """Two files of a checkpoint contradict each other about the model, and nothing says which one is right."""

    code = "contradictory_model"
    says = "{one} and {other} contradict each other: {reason}; correct one of them, or fetch the model again"
    one: str
    other: str
    reason: str


@dataclass(eq=False)
class NoChatTemplate(Rejected):
    code = "no_chat_template"
    says = "the model {model} has no chat template; give a plain prompt instead of chat messages"
    model: str


@dataclass(eq=False)
class TemplateFailed(Rejected):
    code = "template_failed"
    says = "the model's chat template refuses these messages: {reason}; change them, or give a plain prompt"
    reason: str


@dataclass(eq=False)
class TextNotEncodable(Rejected):
    """The tokenizer would silently drop a character of the text."""

    code = "text_not_encodable"
    says = "the tokenizer has no token for {character} at character {offset} of the text; leave it out"
    character: str
    offset: int
