"""Operations on the server: status, logs, doctor, backup and purge."""
