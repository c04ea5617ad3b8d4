"""Checkers: what must hold in every run, looked at all the time. DESIGN: simnet; SPEC names the rule each one guards.

A checker never acts. It gets the stage, is asked after every event of interest and every few seconds, and returns
findings. `base` has the interface, each other file one checker, `ALL` in `registry` all of them.
"""
