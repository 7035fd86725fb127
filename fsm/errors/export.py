"""Jobs in files, and files that jobs are restored from."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Rejected


@dataclass(eq=False)
class NotAnExport(Rejected):
    code = "not_an_export"
    says = "{path} cannot be read: {reason}; name a file that an export or a snapshot wrote"
    path: str
    reason: str


@dataclass(eq=False)
class BrokenSnapshot(Rejected):
    """A file to be restored is damaged, or contradicts itself about a job."""

    code = "broken_snapshot"
    says = "the snapshot of job {job} is damaged: {reason}; nothing was restored, take another copy of the file"
    job: str
    reason: str


@dataclass(eq=False)
class ContentLeftOut(Rejected):
    """A job of a file to be restored is live, and the file leaves its content out."""

    code = "content_left_out"
    says = (
        "job {job} has not ended, and the file leaves its content out, so the job could not be resumed; "
        "nothing was restored: use an export that is not redacted"
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
class BrokenAnchors(Rejected):
    """A file of heads kept outside the database is not one that this program wrote."""

    code = "broken_anchors"
    says = "{path} is not a usable file of anchors: {reason}; restore your copy of it, or name a new file"
    path: str
    reason: str


@dataclass(eq=False)
class UnusableKey(Rejected):
    """A key that can neither sign nor check a signature."""

    code = "unusable_key"
    says = "the key in {path} cannot be used: {reason}; give an Ed25519 key in PEM, a private one with mode 0600"
    path: str
    reason: str
