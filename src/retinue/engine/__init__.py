"""The engine: claims batches from lanes, runs them, and commits every step and result."""
