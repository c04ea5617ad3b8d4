"""The command line: thin commands over the agent's API and the home's files.

`main` is the console script. Nothing is imported here, so that `hinet-node --help` starts in the time of the
interpreter; the command table is in `commands`, the dispatch in `root`, errors in `failures`, printing in `output`.
"""


def main() -> int:
    """Run one command line from `sys.argv`; returns the exit code (SPEC "Exit codes")."""
    from hinet_node.cli.root import main as root_main

    return root_main()
