"""Models of the household: bases, task vectors, training, distillation and serving.

Everything here runs in a worker process (`hinet_tiers.worker`), never in the agent's own. ML libraries are imported
inside functions of their backend's file only, so importing this package costs nothing.
"""
