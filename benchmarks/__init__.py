"""The project's own performance figures, each next to a floor measured in the same run."""
