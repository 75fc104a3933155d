"""Back up and purge the database, and erase people from it."""
