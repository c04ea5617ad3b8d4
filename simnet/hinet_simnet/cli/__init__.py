"""`hinet-node simnet …`: scenarios played, replayed, shrunk, soaked, swept and reported.

Exit codes (SPEC "Exit codes"): 0 nothing was found; 1 a checker fired; 2 the command, the scenario or the trace can't
be used; 3 the trace that was asked for is not whole; 7 a replay was not the same; 130 Ctrl-C. Each command imports what
it needs when it runs, so help is quick.
"""

from __future__ import annotations

from hinet_node.cli.root import group
from hinet_simnet.cli.play_cmds import list_scenarios, replay, run
from hinet_simnet.cli.report_cmd import report
from hinet_simnet.cli.search_cmds import shrink, soak
from hinet_simnet.cli.sweep_cmd import sweep

app = group("Run many nodes on one machine, in virtual time; one seed replays everything.")
app.command("list")(list_scenarios)
app.command("run")(run)
app.command("replay")(replay)
app.command("shrink")(shrink)
app.command("soak")(soak)
app.command("sweep")(sweep)
app.command("report")(report)
