"""The tools that agents can call, and the toolbox that decides and performs the calls."""
