"""A rehearsal: the owner's own schedules and agents, in time that only seems to pass, on a copy of the store.

The engine, the clockwork and the store are those of the house. What thinks is an understudy: it takes as long as the
last real runs did, costs what they would cost, and does nothing else. Nobody is asked and nobody hears of it.
"""
