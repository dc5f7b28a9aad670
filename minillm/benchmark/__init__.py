"""How fast, against which limit, beside whom: `minillm bench train | lora | decode | prefill | ops | profile`.

A prediction comes first: what a piece of work must compute and move (work.py), divided by what this machine can
(ceilings.py).  Then every side does that work in a process of its own, taking turns (race.py, worker.py), so that a
noisy moment hits all of them.  Ratios are medians over pairs of turns.
"""
