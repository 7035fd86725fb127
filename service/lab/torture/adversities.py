"""What befalls databases other than the death of those who use them: the catalogue, and bringing it about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from ....fsm.errors import DatabaseFull, DatabaseLocked, DatabaseUnavailable, Problem
from .campaign import Campaign, Rehearsal, Result
from .harm import NotPermitted, disk_full, file_limit, ground_on_small_disk, locked, read_long, server_away
from .siege import LOAD, Disturb, Siege

SEEDS, SEEDS_QUICK = 10, 1
BOTH = ("sqlite", "postgres")


class Adversity(NamedTuple):
    """Something that befalls a database.

    disk    whether the database lies on a small disk of its own
    kinds   the databases that it can befall; `quick` those that it also befalls in a quick campaign
    expected   errors, one of which must have ended some worker
    """

    about: str
    disturb: Disturb
    expected: tuple[type[Problem], ...] = ()
    kinds: tuple[str, ...] = BOTH
    quick: tuple[str, ...] = BOTH
    disk: bool = False


NO_ROOM = (DatabaseFull, DatabaseUnavailable)
ADVERSITIES: Final[dict[str, Adversity]] = {
    "server.away": Adversity("the server is stopped, crashes, or loses a process, and comes back", server_away,
                             (DatabaseUnavailable,), kinds=("postgres",)),
    "disk.full": Adversity("the disk of the database is full for a while", disk_full, NO_ROOM, quick=("sqlite",),
                           disk=True),
    "file.limit": Adversity("a worker may not make its files larger", file_limit, NO_ROOM, kinds=("sqlite",)),
    "database.locked": Adversity("another process holds the database for a while", locked, (DatabaseLocked,)),
    "database.read": Adversity("another process reads in one transaction all the time", read_long, quick=("sqlite",)),
}  # fmt: skip


def possible(adversity: Adversity, database: str, own: bool, quick: bool = False) -> bool:
    """Whether it can befall a database of a kind; a server that is not this command's `own` is left in peace."""
    kinds = set(adversity.kinds) & set(adversity.quick if quick else BOTH)
    return database in kinds and (own or not (adversity.disk or adversity.disturb is server_away))


def befall(campaign: Campaign, rehearsed: Rehearsal, name: str, seed: int) -> Result:
    """Have one adversity befall a load of jobs. Errors: NotPermitted; and the store's.

    rehearsed   what `rehearse_load` has returned
    """
    adversity = ADVERSITIES[name]
    if not adversity.disk:
        return Siege(campaign, rehearsed, seed).run(name, adversity.disturb, adversity.expected)
    with ground_on_small_disk(campaign) as ground:
        besieged = Campaign(campaign.folder, ground)
        return Siege(besieged, rehearsed, seed).run(name, adversity.disturb, adversity.expected)


def rehearse_load(campaign: Campaign) -> Rehearsal:
    """The load that nothing happens to; nobody reads, so it is fast. Errors: as `rehearse`."""
    return campaign.rehearse(replace(LOAD, reading_s=0.0))


def torment(campaign: Campaign, quick: bool, hear: Callable[[Result], None]) -> tuple[list[Result], list[str]]:
    """Every adversity that can befall the campaign's database, and the names of those that this user may not make."""
    results: list[Result] = []
    left_out: list[str] = []
    rehearsed = rehearse_load(campaign)
    for name, adversity in ADVERSITIES.items():
        if possible(adversity, campaign.ground.name, campaign.ground.own, quick):
            try:
                for seed in range(1, 1 + (SEEDS_QUICK if quick else SEEDS)):
                    results.append(befall(campaign, rehearsed, name, seed))
                    hear(results[-1])
            except NotPermitted:
                left_out.append(name)
    return results, left_out
