"""Operations on the audit log."""
