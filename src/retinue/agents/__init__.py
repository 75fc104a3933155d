"""Who is on the staff, and what they are told."""
