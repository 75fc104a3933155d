"""Simulates the owner's schedules and agents in a dry run: in simulated time, on a copy of the database.

The engine, the scheduler and the store are the real ones. A stub replaces the runners. It
simulates the duration and cost of each run, estimated from the last real runs, but calls no model
and no tool. No approval is requested and no message is sent.
"""
