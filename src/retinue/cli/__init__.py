"""Operations in a terminal. Imports the standard library and itself, nothing of ours."""
