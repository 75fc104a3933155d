"""A dry run: the owner's schedules and agents in simulated time, on a copy of the database.

The engine, the scheduler and the store are the real ones. A stub replaces the models: it takes as
long as the last real runs, costs as much, and has no effect. No person is asked and no message is
sent.
"""
