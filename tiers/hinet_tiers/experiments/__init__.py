"""Experiments that ship and can be rerun: what composing rests on, small and real, on the embedded model.

`registries` makes facts nobody knows and questions about them, `lessons` what is trained, `train` and `grade` use the
model, `compose` judges answers, `conflict_cases` measures pairs, `report` holds what was registered beforehand and what
came of it, `e1` runs it all. Leaves to others: merging, routing, files of task vectors.
"""
