"""Disruptions of databases, other than the death of processes that use them: the catalogue, and running one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from ....fsm.errors import DatabaseFull, DatabaseLocked, DatabaseUnavailable, Problem
from .campaign import Campaign, Rehearsal, Result
from .outages import NotPermitted, disk_full, file_limit, ground_on_small_disk, locked, read_long, server_away
from .siege import LOAD, Disturb, Siege

SEEDS, SEEDS_QUICK = 10, 1
BOTH = ("sqlite", "postgres")


class Disruption(NamedTuple):
    """Something that goes wrong with a database.

    disk    whether the database lies on a small disk of its own
    kinds   the kinds of databases that can have it; `quick` those that a quick campaign disrupts
    expected   errors, one of which must have ended some worker
    """

    about: str
    disturb: Disturb
    expected: tuple[type[Problem], ...] = ()
    kinds: tuple[str, ...] = BOTH
    quick: tuple[str, ...] = BOTH
    disk: bool = False


NO_ROOM = (DatabaseFull, DatabaseUnavailable)
DISRUPTIONS: Final[dict[str, Disruption]] = {
    "server.away": Disruption("the server is stopped, crashes, or loses a process, and comes back", server_away,
                             (DatabaseUnavailable,), kinds=("postgres",)),
    "disk.full": Disruption("the disk of the database is full for a while", disk_full, NO_ROOM, quick=("sqlite",),
                           disk=True),
    "file.limit": Disruption("a worker may not make its files larger", file_limit, NO_ROOM, kinds=("sqlite",)),
    "database.locked": Disruption("another process holds the database for a while", locked, (DatabaseLocked,)),
    "database.read": Disruption("another process reads in one transaction all the time", read_long, quick=("sqlite",)),
}  # fmt: skip


def possible(disruption: Disruption, database: str, own: bool, quick: bool = False) -> bool:
    """Whether a database of this kind can have it; a server that is not this command's `own` is left alone."""
    kinds = set(disruption.kinds) & set(disruption.quick if quick else BOTH)
    return database in kinds and (own or not (disruption.disk or disruption.disturb is server_away))


def disrupt(campaign: Campaign, rehearsed: Rehearsal, name: str, seed: int) -> Result:
    """Disrupt the database under a load of jobs. Errors: NotPermitted; and the store's.

    rehearsed   what `rehearse_load` has returned
    """
    disruption = DISRUPTIONS[name]
    if not disruption.disk:
        return Siege(campaign, rehearsed, seed).run(name, disruption.disturb, disruption.expected)
    with ground_on_small_disk(campaign) as ground:
        besieged = Campaign(campaign.folder, ground)
        return Siege(besieged, rehearsed, seed).run(name, disruption.disturb, disruption.expected)


def rehearse_load(campaign: Campaign) -> Rehearsal:
    """Run the load undisturbed, for comparison; nobody reads, so it is fast. Errors: as `rehearse`."""
    return campaign.rehearse(replace(LOAD, reading_s=0.0))


def disrupt_all(campaign: Campaign, quick: bool, hear: Callable[[Result], None]) -> tuple[list[Result], list[str]]:
    """Every disruption that the campaign's database can have, and the names of those that this user may not cause."""
    results: list[Result] = []
    left_out: list[str] = []
    rehearsed = rehearse_load(campaign)
    for name, disruption in DISRUPTIONS.items():
        if possible(disruption, campaign.ground.name, campaign.ground.own, quick):
            try:
                for seed in range(1, 1 + (SEEDS_QUICK if quick else SEEDS)):
                    results.append(disrupt(campaign, rehearsed, name, seed))
                    hear(results[-1])
            except NotPermitted:
                left_out.append(name)
    return results, left_out
