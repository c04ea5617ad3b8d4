"""`hinet-node doctor`: what could be wrong on this machine, found, said with its remedy, and partly mended.

`facts` are gathered from home, agent and network (`gather`); `checks` judges them and is pure; `mend` puts right what
can be put right without any risk; `bundle` packs it all up for a bug report, without secrets. Works with and without a
running agent, and before `init`.
"""
