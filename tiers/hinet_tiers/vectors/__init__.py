"""What is done with task vectors as files: made from two models, applied, described, compared, verified.

Each module answers one worker verb. All of it is numpy, streams tensor by tensor and needs no engine. The format is
`hinet_protocol.taskvectors`, the choice of entries `hinet_tiers.sparsify`, models are read by `hinet_tiers.weights`,
and combining several is `hinet_tiers.merging`.
"""
