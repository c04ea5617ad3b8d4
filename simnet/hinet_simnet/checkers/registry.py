"""All checkers, as classes: a run makes each anew (`[make() for make in ALL]`)."""

from __future__ import annotations

from collections.abc import Callable

from hinet_simnet.checkers.base import Checker
from hinet_simnet.checkers.bases import Bases
from hinet_simnet.checkers.chains import Chains
from hinet_simnet.checkers.contributions import Contributions
from hinet_simnet.checkers.durable import Durable
from hinet_simnet.checkers.invitations import Invitations
from hinet_simnet.checkers.keeper import Keeper
from hinet_simnet.checkers.liveness import Liveness
from hinet_simnet.checkers.revoked import Revoked
from hinet_simnet.checkers.sizes import Sizes

ALL: tuple[Callable[[], Checker], ...] = (Chains, Revoked, Durable, Invitations, Bases, Contributions,
                                              Keeper, Sizes, Liveness)


def all_checkers() -> list[Checker]:
    """One of each, new: a checker belongs to one run."""
    return [make() for make in ALL]
