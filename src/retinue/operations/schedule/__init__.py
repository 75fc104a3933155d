"""Operations of the noun `schedule`."""
