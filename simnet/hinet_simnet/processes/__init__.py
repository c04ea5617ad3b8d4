"""Real `hinet-node` processes as the nodes of a scenario: what `levels.processes` is made of.

`isolation` asks the kernel for namespaces, `links` says what a link does, `switch` carries frames between namespaces,
`relay` carries streams on loopback where namespaces are refused, `launch` runs inside a node's process, `device` is one
node, and `stage` is all of them. Leaves scenarios to `scenario` and what must hold to `checkers`.
"""
