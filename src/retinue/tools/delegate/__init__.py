"""Tools by which agents work together: who is here, work handed to another, and what came of it."""
