"""Merging: several task vectors over one base become one.

`deltas` reads the inputs, `method` is the form that every method has, `registry` the table of methods (one method, one
file), `engine` streams tensors through a method and judges the result, `outputs` writes it. No ML library is needed.
"""
