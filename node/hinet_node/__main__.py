"""`python -m hinet_node` is the command line."""

from hinet_node.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
