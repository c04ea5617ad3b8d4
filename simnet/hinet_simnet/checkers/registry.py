"""All checkers, as classes: a run makes each anew (`[make() for make in ALL]`)."""

from __future__ import annotations

from collections.abc import Callable

from hinet_simnet.checkers.base import Checker
from hinet_simnet.checkers.chains import Chains
from hinet_simnet.checkers.contributions import Contributions
from hinet_simnet.checkers.invitations import Invitations
from hinet_simnet.checkers.liveness import Liveness
from hinet_simnet.checkers.revoked import Revoked

ALL: tuple[Callable[[], Checker], ...] = (Chains, Revoked, Invitations, Contributions, Liveness)
