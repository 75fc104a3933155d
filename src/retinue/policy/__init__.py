"""Pure decisions: facts in, a decision with a because out. Nothing here fetches."""
