"""The project's own figures, each beside a floor measured in the same run."""
