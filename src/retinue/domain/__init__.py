"""The nouns, pure: nothing here imports anything of ours but its neighbours."""
