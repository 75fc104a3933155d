"""The project's own performance figures, each next to a floor: the minimum cost of the same work,
measured in the same run.
"""
