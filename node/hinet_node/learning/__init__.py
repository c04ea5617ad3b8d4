"""What the household learns: jobs, revisions, adapters, bases, answers. SPEC section 8.

Models are loaded by `hinet_tiers` in worker processes, never here.
"""
