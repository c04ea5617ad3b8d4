"""One HTML page of a run. `gather` reads a trace into a bounded story, `page` writes it; `page.css` and `page.js` draw.

Whatever a trace holds is only ever text: names come from scenarios that others wrote.
"""
