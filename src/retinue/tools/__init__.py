"""The tools that agents can call, and the toolbox that decides which calls are allowed and performs them."""
