"""Composing: how several specialists over one base are put together, and how to tell which way.

`conflict` measures in weight space and `function_space` by the specialists' answers; `choice` decides by the figures;
`route`, `committee`, `retrieve` and `cluster` are the ways besides merging. Leaves merging itself to `merging`.
"""
